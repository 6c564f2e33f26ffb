"""Recoveries in the metadata: numbered, superseded, the only way to seal in a leader's place (F1, F2)."""

from __future__ import annotations

import pytest

from ister.metadata.commands import Command, DeleteTopic, Result
from ister.metadata.state import ClusterState
from tests.metadata.chains import (
    FOUR,
    NEW_TWO,
    ONE,
    THREE,
    TWO,
    apply,
    chain,
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


def with_topic(*commands: Command | None) -> ClusterState:
    """Four nodes, a topic on the first three, led by the first; then the commands, from index 6 on."""
    return state_after(*(node(number) for number in (1, 2, 3, 4)), create(replicas=ALL), *commands)


# Beginning one.


def test_f1_a_recoverys_number_is_its_index_and_a_later_one_supersedes_it() -> None:
    state = with_topic()
    assert apply(state, recover(TOPIC, 1)) is Result.APPLIED
    last = the_topic(state).open_segment
    assert (last.recovery, last.coordinator) == (6, TWO)
    assert apply(state, recover(TOPIC, 1, by=THREE)) is Result.APPLIED
    assert (last.recovery, last.coordinator) == (7, THREE)
    assert apply(state, recover(TOPIC, 1, by=THREE)) is Result.APPLIED, "again, by the same one"
    assert (last.recovery, chain(state)) == (8, [(1, 0, None)])


def test_a3_the_leader_itself_may_begin_one_after_a_restart() -> None:
    state = with_topic(node(1, starts=2))
    assert apply(state, recover(TOPIC, 1, by=ONE, starts=2)) is Result.APPLIED


@pytest.mark.parametrize(
    ("command", "before", "expected", "said"),
    [
        (recover(99, 1), [], Result.STALE, "no topic with uid 99"),
        (recover(TOPIC, 1), [DeleteTopic(TOPIC)], Result.STALE, "no topic with uid 5"),
        (recover(TOPIC, 1), [seal(TOPIC, 1, 9)], Result.STALE, "segment 1 of default/t is not the open one"),
        (recover(TOPIC, 2), [], Result.STALE, "segment 2 of default/t is not the open one"),
        (recover(TOPIC, 1, by=FOUR), [], Result.REFUSED, "node 4 has no replica of default/t:1"),
        (recover(TOPIC, 1, by=NEW_TWO), [], Result.REFUSED, "node 2 has no replica of default/t:1 on that"),
        (
            recover(TOPIC, 1),
            [node(2, disk_number=9, starts=0, client_port=0)],
            Result.REFUSED,
            "node 2 is not active on that disk",
        ),
        (recover(TOPIC, 1), [node(2, starts=2)], Result.REFUSED, "node 2 was started again"),
        (
            recover(TOPIC, 2, by=ONE),
            [seal(TOPIC, 1, 9, then=ONE)],
            Result.REFUSED,
            "default/t:2 has one replica, on node 1",
        ),
    ],
)
def test_a_recovery_that_is_not_to_begin(
    command: Command, before: list[Command], expected: Result, said: str
) -> None:
    state = with_topic(*before)
    result, detail = result_of(state, command)
    assert (result, said in detail) == (expected, True), detail
    assert all(
        segment.recovery == segment.coordinator == 0
        for topic in state.topics.values()
        for segment in topic.segments
    )


# Ending one.


def test_f1_a_leader_that_was_declared_lost_can_not_seal_any_more() -> None:
    state = with_topic(recover(TOPIC, 1))
    result, detail = result_of(state, seal(TOPIC, 1, 9, by=ONE))
    assert result is Result.REFUSED
    assert "recovery 6 of default/t:1 stands, begun by node 2: this seal is of no recovery" in detail
    assert apply(state, seal(TOPIC, 1, 7, by=TWO, then=TWO, recovery=6)) is Result.APPLIED
    assert chain(state) == [(1, 0, 7), (2, 7, None)]


def test_f1_an_older_recovery_can_not_seal_and_the_last_one_seals_once() -> None:
    state = with_topic(recover(TOPIC, 1), recover(TOPIC, 1, by=THREE))
    result, detail = result_of(state, seal(TOPIC, 1, 9, by=TWO, recovery=6))
    assert result is Result.REFUSED
    assert "recovery 7 of default/t:1 stands, begun by node 3: this seal is of recovery 6" in detail
    assert apply(state, seal(TOPIC, 1, 8, by=THREE, recovery=7)) is Result.APPLIED
    assert apply(state, seal(TOPIC, 1, 8, by=THREE, recovery=7)) is Result.STALE
    assert chain(state) == [(1, 0, 8), (2, 8, None)]


def test_a_seal_of_a_recovery_that_nobody_began_is_refused() -> None:
    result, detail = result_of(with_topic(), seal(TOPIC, 1, 9, recovery=6))
    assert (result, "of recovery 6, and none was begun" in detail) == (Result.REFUSED, True)


def test_a_recovery_is_ended_by_the_one_that_began_it() -> None:
    state = with_topic(recover(TOPIC, 1))
    result, detail = result_of(state, seal(TOPIC, 1, 9, by=THREE, recovery=6))
    assert (result, "is for node 2 to end, not for node 3" in detail) == (Result.REFUSED, True)


def test_a_coordinator_that_was_started_again_begins_again() -> None:
    """Its predecessor's seal is still on its way, and is not what the new one will find."""
    state = with_topic(recover(TOPIC, 1), node(2, starts=2))
    result, detail = result_of(state, seal(TOPIC, 1, 9, by=TWO, recovery=6))
    assert (result, "started again" in detail) == (Result.REFUSED, True)
    assert apply(state, recover(TOPIC, 1, starts=2)) is Result.APPLIED
    assert apply(state, seal(TOPIC, 1, 9, by=TWO, starts=2, recovery=9)) is Result.APPLIED


def test_the_next_segment_begins_without_a_recovery_and_the_sealed_one_keeps_its_number() -> None:
    state = with_topic(recover(TOPIC, 1), seal(TOPIC, 1, 9, by=TWO, then=TWO, then_on=[TWO, ONE], recovery=6))
    first, second = ClusterState.from_bytes(state.to_bytes()).topics["default/t"].segments
    assert (first.recovery, first.coordinator) == (6, TWO)
    assert (second.recovery, second.coordinator) == (0, 0)
    assert apply(state, seal(TOPIC, 2, 10, by=TWO, recovery=6)) is Result.REFUSED
    assert apply(state, seal(TOPIC, 2, 10, by=TWO)) is Result.APPLIED


# The replicas of what is sealed.


def test_f2_a_recoverys_seal_names_who_has_the_segment_substitutes_among_them() -> None:
    state = with_topic(
        recover(TOPIC, 1), seal(TOPIC, 1, 9, by=TWO, then=TWO, recovery=6, replicas=[TWO, THREE, FOUR])
    )
    assert the_topic(state).segments[0].replicas == [TWO, THREE, FOUR]
    assert the_topic(state).segments[0].leader == ONE, "who wrote it does not change"
    assert [state.followed_by(member) for member in (*ALL, FOUR)] == [{}, {}, {}, {}]


def test_a_seal_that_names_nobody_leaves_the_replicas_as_they_are() -> None:
    state = with_topic(recover(TOPIC, 1), seal(TOPIC, 1, 9, by=TWO, recovery=6))
    assert the_topic(state).segments[0].replicas == ALL


@pytest.mark.parametrize(
    ("replicas", "said"),
    [
        ([TWO, THREE, TWO], "node 2 is named twice"),
        ([TWO, NEW_TWO], "node 2 is not active on that disk"),
        ([TWO, 7 << 31], "node 7 is not active on that disk"),
    ],
)
def test_a_recoverys_seal_with_replicas_that_can_not_be_is_refused(replicas: list[int], said: str) -> None:
    state = with_topic(recover(TOPIC, 1))
    result, detail = result_of(state, seal(TOPIC, 1, 9, by=TWO, recovery=6, replicas=replicas))
    assert (result, said in detail) == (Result.REFUSED, True)


def test_f4_a_leaders_own_seal_changes_no_replicas() -> None:
    state = with_topic()
    result, detail = result_of(state, seal(TOPIC, 1, 9, replicas=[ONE, TWO]))
    assert (result, "change by a recovery only" in detail) == (Result.REFUSED, True)
    assert apply(state, seal(TOPIC, 1, 9, replicas=ALL)) is Result.APPLIED, "it may name them as they are"


@pytest.mark.parametrize(
    ("then_on", "said"),
    [
        ([TWO, THREE], "node 1 is to lead, and is not among the replicas"),
        ([], "node 1 is to lead, and is not among the replicas"),
        ([ONE, TWO, TWO], "node 2 is named twice among the replicas"),
        ([ONE, NEW_TWO], "node 2 is not active on that disk"),
    ],
)
def test_h1_no_segment_is_opened_on_replicas_that_can_not_be(then_on: list[int], said: str) -> None:
    state = with_topic()
    for command in (seal(TOPIC, 1, 9, then=ONE, then_on=then_on), create("default/u", replicas=then_on)):
        result, detail = result_of(state, command)
        assert (result, said in detail) == (Result.REFUSED, True)
