"""Where an opened segment goes on, and why: the seed's precedence, a row each (E6); shown to people."""

from __future__ import annotations

import pytest

from ister.broker.topic.resuming import Reason, resume
from ister.errors import InvariantBroken
from ister.metadata.commands import OpenedSegment, TrimTopic
from ister.testing.cluster import World, run_story
from tests.metadata.chains import ONE, TWO, accept_loss, apply, create, node, seal, state_after, the_topic
from tests.moves.moving_helpers import a_node_other_than, moved

UID = 4


def test_sealed_state_the_next_leader_goes_on_where_the_last_one_sealed() -> None:
    state = state_after(node(1), node(2), node(3), create(), OpenedSegment(UID, 1, ONE))
    apply(state, seal(UID, 1, 22, then=TWO))
    found = resume(the_topic(state), None)
    assert (found.offset, found.reason) == (22, Reason.SEALED_STATE)
    assert str(found) == "at offset 22, by sealed state: node 1 sealed default/t:1 there"


def test_segment_catalog_where_what_was_before_is_trimmed() -> None:
    state = state_after(node(1), node(2), node(3), create())
    apply(state, seal(UID, 1, 22, then=TWO))
    apply(state, TrimTopic(UID, 22))
    found = resume(the_topic(state), None)
    assert (found.offset, found.reason) == (22, Reason.CATALOG)


def test_local_wal_a_segment_with_a_log_goes_on_behind_it_whatever_was_sealed_before() -> None:
    """D10: a sealed state from before does not outrank a newer log."""
    state = state_after(node(1), node(2), node(3), create())
    apply(state, seal(UID, 1, 22, then=TWO))
    apply(state, OpenedSegment(UID, 2, TWO))
    found = resume(the_topic(state), 28)
    assert (found.offset, found.reason) == (28, Reason.LOCAL_WAL)
    with pytest.raises(InvariantBroken):
        resume(the_topic(state), 21)


def test_empty_topic_begins_at_zero() -> None:
    state = state_after(node(1), node(2), node(3), create())
    found = resume(the_topic(state), None)
    assert (found.offset, found.reason) == (0, Reason.EMPTY)


def test_behind_an_accepted_loss_it_goes_on_past_what_may_have_been_given_out() -> None:
    """F6, D20."""
    state = state_after(node(1), node(2), node(3), create())
    apply(state, accept_loss(UID, 1, 90, 5, then=TWO, by=TWO))
    found = resume(the_topic(state), None)
    assert (found.offset, found.reason) == (90, Reason.SEALED_STATE)
    assert "given up" in found.detail


def test_describe_says_where_the_leader_went_on_after_a_start_a_move_and_a_restart() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", [b"x"] * 22)
            assert (await log.describe_topic("t")).resumed == "at offset 0, by empty topic: default/t is new"
            old, target = world.leader_of("t").node_id, a_node_other_than(world, "t")
            await moved(log, "t", target)
            assert (await log.describe_topic("t")).resumed == (
                f"at offset 22, by sealed state: node {old} sealed default/t:1 there"
            )
            await log.append("t", [b"x"] * 6)
            world.nodes[target].kill()
            await world.nodes[target].start()
            await log.append("t", [b"x"])
            assert (await log.describe_topic("t")).resumed == (
                "at offset 28, by local wal: the log of default/t:2 ends there"
            )

    run_story(story)
