"""METRICS: the documented fields, and beside them those that unchanged clients of Walrus look for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ister.broker.text.raft_view import matches_of, raft_object
from ister.raft import Membership, PeerStatus, ProgressState, RaftStatus, Role
from ister.testing.cluster import World, run_story
from tests.text.fakes import member
from tests.text.test_text_on_a_cluster import talk


def status_of(node: int, role: Role, leader: int, **fields: Any) -> RaftStatus:
    membership = Membership((member(1), member(2)), (member(3),))
    common = {"term": 5, "commit": 40, "applied": 39, "last_index": 42, "first_index": 10, "transferee": 0}
    given = {"snapshot_index": 9, "snapshot_term": 4, "peers": (), **common, **fields}
    return RaftStatus(node_id=member(node), role=role, leader=leader, membership=membership, **given)


@pytest.mark.parametrize(
    ("role", "leader", "state", "shown"),
    [
        (Role.LEADER, member(1), "Leader", 1),
        (Role.FOLLOWER, member(2), "Follower", 2),
        (Role.PRE_CANDIDATE, 0, "Candidate", None),
    ],
)
def test_metrics_show_raft_by_node(role: Role, leader: int, state: str, shown: int | None) -> None:
    assert raft_object(status_of(1, role, leader), {}, None) == {
        "id": 1,
        "state": state,
        "current_term": 5,
        "current_leader": shown,
        "membership": {"voters": [1, 2], "learners": [3]},
        "membership_config": {
            "membership": {
                "configs": [[1, 2]],
                "nodes": {"1": {"addr": ""}, "2": {"addr": ""}, "3": {"addr": ""}},
            }
        },
        "last_log_index": 42,
        "last_applied": 39,
        "snapshot": {"index": 9, "term": 4},
        "replication": None,
    }


def test_a_learner_says_that_it_is_one_and_a_node_without_a_snapshot_that_it_has_none() -> None:
    shown = raft_object(status_of(3, Role.FOLLOWER, member(1), snapshot_index=0), {}, None)
    assert (shown["state"], shown["snapshot"]) == ("Learner", None)


def test_replication_has_the_leader_and_every_other_node() -> None:
    peers = tuple(
        PeerStatus(member(node), ProgressState.REPLICATE, match, match + 1, True)
        for node, match in ((2, 41), (3, 7))
    )
    status = status_of(1, Role.LEADER, member(1), peers=peers)
    shown = raft_object(status, {}, matches_of(status))["replication"]
    assert shown == {"1": {"index": 42}, "2": {"index": 41}, "3": {"index": 7}}


async def wait_for_node(world: World, node_id: int) -> dict[str, Any]:
    """What the ancestor's scripts wait for before they begin, whichever node they ask."""
    client = await talk(world, node_id, "script")
    while True:
        metrics: dict[str, Any] = json.loads(await client.ask(b"METRICS"))
        replication = metrics["replication"] or {}
        behind = [node for node, one in replication.items() if one["index"] < metrics["last_log_index"]]
        if metrics["current_leader"] and len(replication) == len(world.nodes) and not behind:
            return metrics


def test_every_node_tells_how_far_all_are_so_that_the_ancestors_scripts_begin() -> None:
    async def story(world: World) -> None:
        leader = world.metadata_leader().node_id
        for node_id in world.nodes:
            metrics = await wait_for_node(world, node_id)
            assert metrics["current_leader"] == leader
            config = metrics["membership_config"]["membership"]
            assert [sorted(voters) for voters in config["configs"]] == [[1, 2, 3]]
            assert config["nodes"]["2"] == {"addr": "node-2:6001"}

    run_story(story)


def test_a_node_that_finds_no_leader_says_that_it_does_not_know_how_far_others_are() -> None:
    async def story(world: World) -> None:
        lonely = next(node for node in world.up if node is not world.metadata_leader())
        client = await talk(world, lonely.node_id)
        for node in world.up:
            if node is not lonely:
                node.kill(power=True)
        metrics = json.loads(await client.ask(b"METRICS"))
        assert metrics["replication"] is None
        assert metrics["membership"]["voters"]

    run_story(story)
