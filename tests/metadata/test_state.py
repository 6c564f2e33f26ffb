"""The state machine: compare-and-set seals, gapless chains, apply as a pure function (R3, H1, I3)."""

from __future__ import annotations

from ister.metadata.codec import decode_command
from ister.metadata.commands import (
    Command,
    CreateTopic,
    DeleteTopic,
    FoundCluster,
    RemoveNode,
    Result,
    SealSegment,
    TrimTopic,
    UpsertNode,
)
from ister.metadata.state import ClusterState
from ister.protocol.messages import TopicSettings
from tests.metadata.chains import NEW_TWO, ONE, TWO, apply, chain, create, disk, node, seal, state_after


def with_topic(*commands: Command | None) -> ClusterState:
    """Node 1, a topic whose uid is 2, and then the commands."""
    return state_after(node(1), create(), *commands)


# Topics and their chains.


def test_i3_creating_twice_gives_the_existing_topic() -> None:
    state = state_after(node(1))
    first = state.apply(2, create())
    second = state.apply(3, create())
    assert (first.result, second.result) == (Result.CREATED, Result.EXISTS)
    assert first.topic_uid == second.topic_uid == 2


def test_i3_a_topic_made_again_has_another_uid_and_starts_over() -> None:
    state = with_topic(seal(2, 1, 10), DeleteTopic(2), create())
    topic = state.topics["default/t"]
    assert (topic.uid, topic.open_segment.base_offset) == (5, 0)
    assert apply(state, seal(2, 2, 20)) is Result.STALE, "a command for its predecessor"


def test_i1_a_cluster_is_founded_once() -> None:
    state = state_after(FoundCluster("c1"), node(1), create())
    assert apply(state, FoundCluster("c2")) is Result.STALE
    assert ClusterState.from_bytes(state.to_bytes()).cluster_id == "c1"


def test_h1_a_seal_proposed_twice_is_applied_once() -> None:
    state = with_topic(seal(2, 1, 10))
    assert apply(state, seal(2, 1, 10)) is Result.STALE
    assert apply(state, seal(2, 1, 99)) is Result.STALE
    assert chain(state) == [(1, 0, 10), (2, 10, None)]


def test_h1_a_seal_before_the_base_is_refused() -> None:
    state = with_topic(seal(2, 1, 10))
    outcome = state.apply(4, seal(2, 2, 9))
    assert (outcome.result, "before the base 10" in outcome.detail) == (Result.REFUSED, True)


def test_a_seal_carries_producers_to_the_next_segment_only() -> None:
    rows = [(7, [(0, 1, 0, 5)])]
    command = SealSegment(2, 1, 10, 1000, ONE, [ONE], rows, 77, ONE, 1, 50)
    topic = with_topic(command).topics["default/t"]
    assert topic.open_segment.carried_producers == rows
    assert topic.open_segment.carried_append_time_us == 77
    assert topic.segments[0].carried_producers == []


def test_an_offset_at_a_boundary_belongs_to_the_next_segment_and_empty_ones_hold_nothing() -> None:
    topic = with_topic(seal(2, 1, 10), seal(2, 2, 10), seal(2, 3, 20)).topics["default/t"]
    holders = [(offset, topic.holding(offset)) for offset in (0, 9, 10, 19, 20, 500)]
    assert [(offset, found and found.segment) for offset, found in holders] == [
        (0, 1),
        (9, 1),
        (10, 3),
        (19, 3),
        (20, 4),
        (500, 4),
    ]


def test_trimming_drops_whole_segments_and_only_up_to_a_base() -> None:
    state = with_topic(seal(2, 1, 10), seal(2, 2, 20))
    assert apply(state, TrimTopic(2, 15)) is Result.REFUSED
    assert apply(state, TrimTopic(2, 10)) is Result.APPLIED
    assert apply(state, TrimTopic(2, 10)) is Result.STALE
    topic = state.topics["default/t"]
    assert (topic.start_offset, [s.segment for s in topic.segments]) == (10, [2, 3])
    assert topic.holding(5) is None
    assert apply(state, TrimTopic(2, 20)) is Result.APPLIED
    assert [s.segment for s in topic.segments] == [3]


def test_r3_an_unknown_command_has_an_error_result_and_is_no_crash() -> None:
    assert decode_command(b"\x92\xaaFromFuture\x01") is None
    assert decode_command(b"garbage") is None
    state = state_after(node(1))
    assert apply(state, None) is Result.REFUSED
    assert apply(state, create()) is Result.CREATED


# Who may lead, and who may still speak for it.


def test_a_seal_of_an_earlier_start_of_the_leader_is_refused() -> None:
    """The old process proposes the seal at 10 and dies while that is on its way. The new one announces
    itself, appends to the segment, acknowledges up to 15; then the old proposal arrives. It must not cut at
    10."""
    state = with_topic(node(1, starts=2))
    outcome = state.apply(4, seal(2, 1, 10, starts=1))
    assert (outcome.result, "started again" in outcome.detail) == (Result.REFUSED, True)
    assert chain(state) == [(1, 0, None)]
    assert apply(state, seal(2, 1, 15, starts=2)) is Result.APPLIED
    assert chain(state) == [(1, 0, 15), (2, 15, None)]


def test_a_seal_of_the_leaders_old_disk_or_of_a_node_that_is_gone_is_refused() -> None:
    state = with_topic(node(1, disk_number=9, client_port=0), node(1, disk_number=9, starts=2))
    assert apply(state, seal(2, 1, 10, starts=2)) is Result.REFUSED, "by the old disk, at any start"
    assert apply(state, seal(2, 1, 10, by=TWO)) is Result.REFUSED, "by a node that is not in the cluster"
    assert chain(state) == [(1, 0, None)]


def test_h1_no_segment_is_opened_on_a_node_that_is_unknown_or_has_only_been_let_in() -> None:
    state = state_after(node(1))
    refused = state.apply(2, create(leader=TWO))
    assert (refused.result, "node 2 is not active" in refused.detail) == (Result.REFUSED, True)
    assert apply(state, node(2, starts=0, client_port=0)) is Result.APPLIED
    assert apply(state, create(leader=TWO)) is Result.REFUSED, "nobody knows yet where clients find it"
    assert "default/t" not in state.topics
    assert apply(state, create()) is Result.CREATED
    assert apply(state, seal(5, 1, 10, then=TWO)) is Result.REFUSED
    assert chain(state) == [(1, 0, None)]
    assert apply(state, node(2)) is Result.APPLIED
    assert apply(state, seal(5, 1, 10, then=TWO)) is Result.APPLIED
    assert state.topics["default/t"].open_segment.leader == TWO


def test_h1_every_replica_of_a_new_segment_is_active_not_only_its_leader() -> None:
    state = state_after(node(1))
    settings = TopicSettings()
    assert apply(state, CreateTopic("default/t", settings, ONE, [ONE, TWO], 1)) is Result.REFUSED
    assert apply(state, node(2)) is Result.APPLIED
    assert apply(state, CreateTopic("default/t", settings, ONE, [ONE, TWO], 1)) is Result.CREATED
    assert apply(state, RemoveNode(2)) is Result.REFUSED


def test_i2_no_segment_is_opened_on_the_old_disk_of_a_node_that_has_another_one() -> None:
    state = state_after(node(1), node(2), node(2, disk_number=9, starts=0, client_port=0), node(2, 9))
    assert apply(state, create("default/old", leader=TWO)) is Result.REFUSED
    assert apply(state, create("default/t", leader=NEW_TWO)) is Result.CREATED
    assert apply(state, seal(6, 1, 10, then=TWO)) is Result.REFUSED
    assert state.active_members == sorted([ONE, NEW_TWO])


def test_the_open_segments_that_a_member_leads_follow_every_change() -> None:
    state = state_after(node(1), node(2), create(), create("default/u", leader=TWO))
    assert (state.led_by(ONE), state.led_by(TWO)) == ({3: "default/t:1"}, {4: "default/u:1"})
    apply(state, seal(3, 1, 10, then=TWO))
    apply(state, DeleteTopic(4))
    for view in (state, ClusterState.from_bytes(state.to_bytes())):
        assert (view.led_by(ONE), view.led_by(TWO)) == ({}, {3: "default/t:2"})


# Nodes.


def test_i2_a_start_number_that_does_not_grow_is_a_copied_directory() -> None:
    state = state_after(node(1, starts=3))
    assert apply(state, node(1, starts=3)) is Result.APPLIED, "the same announcement once more"
    moved = UpsertNode(1, disk(1), 3, "elsewhere", 6001, "elsewhere", 9091)
    outcome = state.apply(3, moved)
    assert (outcome.result, "copy" in outcome.detail) == (Result.REFUSED, True)
    assert apply(state, node(1, starts=2)) is Result.REFUSED
    assert apply(state, node(1, starts=4)) is Result.APPLIED


def test_r2_a_node_is_not_removed_while_it_has_what_nobody_else_has() -> None:
    state = state_after(node(1), node(2), create(leader=TWO))
    assert apply(state, RemoveNode(9)) is Result.STALE
    outcome = state.apply(state.applied_index + 1, RemoveNode(2))
    assert (outcome.result, "the open default/t:1" in outcome.detail) == (Result.REFUSED, True)
    apply(state, seal(3, 1, 10, by=TWO, then=ONE))
    outcome = state.apply(state.applied_index + 1, RemoveNode(2))
    assert (outcome.result, "the last copy of default/t:1" in outcome.detail) == (Result.REFUSED, True)
    apply(state, TrimTopic(3, 10))
    assert apply(state, RemoveNode(2)) is Result.APPLIED
    assert apply(state, DeleteTopic(3)) is Result.APPLIED
    assert apply(state, RemoveNode(1)) is Result.REFUSED, "the last one"


def test_i2_a_member_that_was_removed_never_comes_back_and_its_node_only_on_another_disk() -> None:
    state = state_after(node(1), node(2), RemoveNode(2))
    state = ClusterState.from_bytes(state.to_bytes())
    outcome = state.apply(4, node(2, starts=2))
    assert (outcome.result, "node 2 was removed" in outcome.detail) == (Result.REFUSED, True)
    assert apply(state, node(2, starts=2, client_port=0)) is Result.REFUSED, "nor is it let in"
    assert apply(state, node(2, disk_number=9, starts=0, client_port=0)) is Result.APPLIED
    assert apply(state, node(2, disk_number=9)) is Result.APPLIED


def test_i2_a_disk_takes_a_nodes_place_by_being_let_in_not_by_announcing_itself() -> None:
    """Else two machines with one id would push each other out in turn."""
    new = node(2, disk_number=9)
    state = state_after(node(1), node(2), node(2, disk_number=9, starts=0, client_port=0), new)
    outcome = state.apply(5, node(2, starts=2))
    assert (outcome.result, "on another disk" in outcome.detail) == (Result.REFUSED, True)
    assert state.nodes[2].disk_id == disk(9)


def test_i2_a_disk_whose_place_was_taken_is_not_let_in_by_a_request_that_was_long_on_its_way() -> None:
    """Found by simulation: the node that was there announced itself for ever, and was refused."""
    state = state_after(node(1), node(2), node(2, disk_number=9, starts=0, client_port=0))
    state = ClusterState.from_bytes(state.to_bytes())
    assert apply(state, node(2, starts=0, client_port=0)) is Result.REFUSED
    assert apply(state, node(2, disk_number=9)) is Result.APPLIED
    assert apply(state, node(2, starts=0, client_port=0)) is Result.REFUSED
    assert state.nodes[2].disk_id == disk(9)
