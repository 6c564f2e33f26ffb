"""Who has which segment: SetReplicas, RemoveNode, and the index of what a member follows (F4, R2)."""

from __future__ import annotations

import pytest

from ister.metadata.commands import Command, DeleteTopic, RemoveNode, Result, SetReplicas, TrimTopic
from ister.metadata.state import ClusterState
from tests.metadata.chains import (
    FOUR,
    NEW_TWO,
    ONE,
    THREE,
    TWO,
    accept_loss,
    apply,
    create,
    node,
    recover,
    result_of,
    seal,
    state_after,
    the_topic,
)

ALL = [ONE, TWO, THREE]
TOPIC = 5
LET_IN_NEW_TWO = node(2, disk_number=9, starts=0, client_port=0)


def with_topic(*commands: Command | None) -> ClusterState:
    """Four nodes, a topic on the first three, led by the first; then the commands, from index 6 on."""
    return state_after(*(node(number) for number in (1, 2, 3, 4)), create(replicas=ALL), *commands)


def with_sealed(*commands: Command | None) -> ClusterState:
    """The same, with segment 1 sealed and segment 2 open on node 1 alone; the commands from index 7 on."""
    return with_topic(seal(TOPIC, 1, 9), *commands)


# SetReplicas.


def test_f4_a_sealed_segments_replicas_change_by_compare_and_set() -> None:
    state = with_sealed()
    assert apply(state, SetReplicas(TOPIC, 1, ALL, [ONE, THREE, FOUR])) is Result.APPLIED
    assert the_topic(state).segments[0].replicas == [ONE, THREE, FOUR]
    result, detail = result_of(state, SetReplicas(TOPIC, 1, ALL, [ONE, TWO, FOUR]))
    assert (result, "are now on nodes 1, 3, 4" in detail) == (Result.STALE, True)


def test_f4_members_that_stay_need_not_be_in_the_cluster_any_more() -> None:
    state = with_sealed(LET_IN_NEW_TWO, node(2, disk_number=9))
    assert apply(state, SetReplicas(TOPIC, 1, ALL, [*ALL, FOUR])) is Result.APPLIED
    assert apply(state, SetReplicas(TOPIC, 1, [*ALL, FOUR], [ONE, THREE, FOUR])) is Result.APPLIED


@pytest.mark.parametrize(
    ("command", "before", "expected", "said"),
    [
        (SetReplicas(99, 1, ALL, [ONE]), [], Result.STALE, "no topic with uid 99"),
        (SetReplicas(TOPIC, 3, ALL, [ONE]), [], Result.STALE, "no segment 3 of default/t"),
        (SetReplicas(TOPIC, 0, ALL, [ONE]), [], Result.STALE, "no segment 0 of default/t"),
        (SetReplicas(TOPIC, 1, ALL, [ONE]), [TrimTopic(TOPIC, 9)], Result.STALE, "no segment 1 of default/t"),
        (SetReplicas(TOPIC, 2, [ONE], [ONE, TWO]), [], Result.REFUSED, "default/t:2 is open"),
        (SetReplicas(TOPIC, 1, [ONE, TWO], [ONE]), [], Result.STALE, "are now on nodes 1, 2, 3"),
        (SetReplicas(TOPIC, 1, ALL, []), [], Result.REFUSED, "no node would be left"),
        (SetReplicas(TOPIC, 1, ALL, [ONE, ONE]), [], Result.REFUSED, "node 1 is named twice"),
        (SetReplicas(TOPIC, 1, ALL, [*ALL, NEW_TWO]), [], Result.REFUSED, "node 2 is not active"),
        (SetReplicas(TOPIC, 1, ALL, [*ALL, FOUR]), [RemoveNode(4)], Result.REFUSED, "node 4 is not active"),
        (SetReplicas(TOPIC, 1, ALL, [TWO]), [LET_IN_NEW_TWO], Result.REFUSED, "no node would be left"),
    ],
)
def test_replicas_that_are_not_to_be_set(
    command: Command, before: list[Command], expected: Result, said: str
) -> None:
    result, detail = result_of(with_sealed(*before), command)
    assert (result, said in detail) == (expected, True), detail


# RemoveNode.


def test_r2_a_node_that_only_follows_an_open_segment_is_not_removed_either() -> None:
    state = with_topic()
    for number in (1, 2, 3):
        result, detail = result_of(state, RemoveNode(number))
        assert (result, "holds the open default/t:1" in detail) == (Result.REFUSED, True)
    assert apply(state, RemoveNode(4)) is Result.APPLIED


def test_r2_a_node_goes_while_another_one_in_the_cluster_has_what_it_has_and_the_lists_stay() -> None:
    state = with_sealed(seal(TOPIC, 2, 12, then=FOUR), TrimTopic(TOPIC, 9))
    assert apply(state, SetReplicas(TOPIC, 2, [ONE], ALL)) is Result.APPLIED
    assert apply(state, RemoveNode(1)) is Result.APPLIED
    assert apply(state, RemoveNode(2)) is Result.APPLIED
    result, detail = result_of(state, RemoveNode(3))
    assert (result, "the last copy of default/t:2" in detail) == (Result.REFUSED, True)
    assert the_topic(state).segments[0].replicas == ALL


def test_i2_a_node_on_another_disk_does_not_hold_what_the_old_one_had() -> None:
    state = with_topic(
        seal(TOPIC, 1, 9, then=FOUR), LET_IN_NEW_TWO, node(2, disk_number=9), RemoveNode(1), RemoveNode(3)
    )
    assert list(state.nodes) == [2, 3, 4], "node 3 stays: the disk that node 2 is on has no copy"
    assert apply(state, RemoveNode(2)) is Result.APPLIED


def test_f6_what_was_given_up_whole_holds_no_node_back_and_what_was_given_up_in_part_does() -> None:
    whole = with_topic(accept_loss(TOPIC, 1, 40, 0, then=FOUR, by=FOUR))
    assert [apply(whole, RemoveNode(number)) for number in (1, 2, 3)] == [Result.APPLIED] * 3
    part = with_topic(accept_loss(TOPIC, 1, 40, 5, then=FOUR, by=FOUR))
    assert [apply(part, RemoveNode(number)) for number in (1, 2)] == [Result.APPLIED] * 2
    assert apply(part, RemoveNode(3)) is Result.REFUSED


# What a member follows.


def test_the_open_segments_that_a_member_follows_come_and_go_with_every_change() -> None:
    state = with_topic(create("default/u", leader=TWO, replicas=[TWO, THREE]))

    def followed() -> list[dict[int, int]]:
        restored = ClusterState.from_bytes(state.to_bytes())
        seen = [[view.followed_by(who) for who in (*ALL, FOUR)] for view in (state, restored)]
        assert seen[0] == seen[1]
        return seen[0]

    assert followed() == [{}, {TOPIC: 5}, {TOPIC: 5, 6: 6}, {}]
    assert apply(state, seal(TOPIC, 1, 9, then=TWO, then_on=[TWO, FOUR])) is Result.APPLIED
    assert followed() == [{}, {}, {6: 6}, {TOPIC: 7}]
    assert apply(state, seal(TOPIC, 1, 9, then=ONE)) is Result.STALE
    assert followed() == [{}, {}, {6: 6}, {TOPIC: 7}]
    assert apply(state, recover(TOPIC, 2, by=FOUR)) is Result.APPLIED
    assert apply(state, seal(TOPIC, 2, 9, by=FOUR, recovery=9, replicas=[FOUR, ONE])) is Result.APPLIED
    assert followed() == [{}, {}, {6: 6}, {}], "by the replicas that it had, not those that the seal names"
    assert apply(state, accept_loss(6, 1, 40, 0, then_on=ALL)) is Result.APPLIED
    assert followed() == [{}, {6: 11}, {6: 11}, {}]
    assert apply(state, DeleteTopic(6)) is Result.APPLIED
    assert followed() == [{}, {}, {}, {}]
