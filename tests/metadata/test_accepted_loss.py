"""An operator accepts a loss: the topic goes on past all that may have been acknowledged (F6)."""

from __future__ import annotations

import msgspec
import pytest

from ister.metadata.chain import MAX_LOST_RANGES
from ister.metadata.commands import AlterTopic, AnyCommand, Result, TrimTopic
from ister.metadata.state import ClusterState, LostRange
from tests.metadata.chains import (
    NEW_TWO,
    ONE,
    THREE,
    TWO,
    accept_loss,
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

TOPIC = 4


def with_topic(*commands: AnyCommand | None) -> ClusterState:
    """Three nodes, a topic that only node 2 has, sealed at 10; segment 2 is open there. Then index 6."""
    return state_after(
        node(1), node(2), node(3), create(leader=TWO), seal(TOPIC, 1, 10, by=TWO, then=TWO), *commands
    )


def test_f6_the_segment_is_sealed_past_what_may_have_been_given_out_and_the_range_is_kept() -> None:
    state = with_topic()
    assert apply(state, accept_loss(TOPIC, 2, 4010, 10)) is Result.APPLIED
    assert chain(state) == [(1, 0, 10), (2, 10, 4010), (3, 4010, None)]
    for view in (state, ClusterState.from_bytes(state.to_bytes())):
        topic = the_topic(view)
        assert topic.lost == [LostRange(10, 4010, 2, 60)]
        lost = topic.segments[1]
        assert (lost.lost_from, lost.data_end) == (10, 10)
        assert (lost.sealed_by, lost.sealed_at_us, lost.replicas) == (ONE, 60, [TWO])
        assert (topic.open_segment.leader, topic.open_segment.opened_at_us) == (ONE, 60)
        assert topic.segments[0].lost_from is None, "other segments have no mark"
    assert apply(state, accept_loss(TOPIC, 2, 4010, 10)) is Result.STALE


def test_f6_the_next_segment_knows_the_producers_that_the_command_names_and_goes_on_in_time() -> None:
    rows = [(7, [(0, 1, 0, 5)])]
    state = with_topic()
    the_topic(state).open_segment.carried_producers = [(8, [(0, 1, 0, 5)])]
    command = msgspec.structs.replace(accept_loss(TOPIC, 2, 40, 10), producers=rows)
    assert apply(state, command) is Result.APPLIED
    lost, opened = the_topic(state).segments[1:]
    assert (lost.carried_producers, opened.carried_producers) == ([], rows)
    assert lost.last_append_time_us == opened.carried_append_time_us == 10, "what the seal before brought"


def test_f6_what_can_still_be_read_is_kept_and_time_never_goes_back_behind_it() -> None:
    state = with_topic(accept_loss(TOPIC, 2, 40, 15, last_append_time_us=33))
    lost, opened = the_topic(state).segments[1:]
    assert (lost.lost_from, lost.data_end, lost.end_position, lost.last_append_time_us) == (15, 15, 1500, 33)
    assert opened.carried_append_time_us == 33
    assert the_topic(state).lost == [LostRange(15, 40, 2, 60)]


def test_f6_a_recovery_that_was_begun_ends_with_it() -> None:
    state = state_after(node(1), node(2), node(3), create(leader=TWO, replicas=[TWO, ONE, THREE]))
    assert apply(state, recover(TOPIC, 1, by=ONE)) is Result.APPLIED
    loss, begun = accept_loss(TOPIC, 1, 40, 5), the_topic(state).open_segment.recovery
    result, detail = result_of(state, loss)
    assert result is Result.REFUSED and f"recovery {begun}" in detail, "it may have heard more than was shown"
    assert apply(state, msgspec.structs.replace(loss, recovery=begun)) is Result.APPLIED
    assert apply(state, seal(TOPIC, 1, 7, by=ONE, recovery=begun)) is Result.STALE
    assert apply(state, seal(TOPIC, 1, 7, by=TWO)) is Result.STALE


def test_f6_the_highest_limit_that_the_leader_may_have_had_is_kept_while_the_segment_is_open() -> None:
    state = with_topic()
    default = the_topic(state).settings.segment_records
    for value, limit in ((10, default), (2 * default, 2 * default), (20, 2 * default)):
        assert apply(state, AlterTopic(TOPIC, {"segment_records": value})) is Result.APPLIED
        assert the_topic(state).open_segment.records_limit == limit
    for known, expected in ((default, Result.REFUSED), (2 * default, Result.APPLIED)):
        command = msgspec.structs.replace(accept_loss(TOPIC, 2, 40, 10), records_limit=known)
        result, detail = result_of(state, command)
        assert (result, "was raised to" in detail) == (expected, expected is Result.REFUSED)
    assert [one.records_limit for one in the_topic(state).segments] == [0, 0, 20]


@pytest.mark.parametrize(
    ("command", "before", "expected", "said"),
    [
        (accept_loss(99, 2, 40, 10), [], Result.STALE, "no topic with uid 99"),
        (accept_loss(TOPIC, 1, 40, 10), [], Result.STALE, "segment 1 of default/t is not the open one"),
        (
            accept_loss(TOPIC, 2, 40, 10),
            [seal(TOPIC, 2, 20, by=TWO)],
            Result.STALE,
            "segment 2 of default/t is not the open one, which is 3",
        ),
        (accept_loss(TOPIC, 2, 40, 10, is_stopped=False), [], Result.REFUSED, "nobody states that node 2"),
        (accept_loss(TOPIC, 2, 9, 9), [], Result.REFUSED, "end 9 lies before the base 10"),
        (accept_loss(TOPIC, 2, 40, 9), [], Result.REFUSED, "begins at 9, which is not within default/t:2"),
        (accept_loss(TOPIC, 2, 40, 41), [], Result.REFUSED, "begins at 41, which is not within default/t:2"),
        (accept_loss(TOPIC, 2, 40, 10, by=NEW_TWO), [], Result.REFUSED, "node 2 is not active"),
        (accept_loss(TOPIC, 2, 40, 10, then=NEW_TWO), [], Result.REFUSED, "node 2 is not active"),
        (accept_loss(TOPIC, 2, 40, 10, then_on=[THREE]), [], Result.REFUSED, "is not among the replicas"),
        (accept_loss(TOPIC, 2, 40, 10, then_on=[ONE, ONE]), [], Result.REFUSED, "named twice"),
        (
            accept_loss(TOPIC, 2, 40, 10, leader_starts=1),
            [node(2, starts=2)],
            Result.REFUSED,
            "node 2, which leads default/t:2, was started again",
        ),
    ],
)
def test_a_loss_that_is_not_to_be_accepted(
    command: AnyCommand, before: list[AnyCommand], expected: Result, said: str
) -> None:
    state = with_topic(*before)
    result, detail = result_of(state, command)
    assert (result, said in detail) == (expected, True), detail
    assert the_topic(state).lost == []


@pytest.mark.parametrize(
    ("command", "before"),
    [
        (accept_loss(TOPIC, 2, 10, 10), []),
        (accept_loss(TOPIC, 2, 40, 40), []),
        (accept_loss(TOPIC, 2, 40, 10, leader_starts=1), []),
        (accept_loss(TOPIC, 2, 40, 10), [node(2, starts=2)]),
        (accept_loss(TOPIC, 2, 40, 10, leader_starts=1), [node(2, disk_number=9, starts=0, client_port=0)]),
    ],
    ids=[
        "empty",
        "nothing lost",
        "the start is the known one",
        "the start is not looked at",
        "disk replaced",
    ],
)
def test_a_loss_that_is_just_allowed(command: AnyCommand, before: list[AnyCommand]) -> None:
    assert apply(with_topic(*before), command) is Result.APPLIED


def test_the_list_of_losses_is_bounded_and_the_segments_keep_their_own_marks() -> None:
    state = with_topic()
    for number in range(2, MAX_LOST_RANGES + 5):
        assert apply(state, accept_loss(TOPIC, number, 10 * number, 10 * number - 10)) is Result.APPLIED
    topic = the_topic(state)
    assert len(topic.lost) == MAX_LOST_RANGES
    assert topic.lost[-1].segment == MAX_LOST_RANGES + 4, "the newest are kept"
    assert [s.lost_from for s in topic.segments[1:-1]] == [10 * s.segment - 10 for s in topic.segments[1:-1]]


def test_a_trim_takes_the_mark_with_its_segment_and_leaves_the_record() -> None:
    state = with_topic(accept_loss(TOPIC, 2, 40, 10), TrimTopic(TOPIC, 40))
    assert chain(state) == [(3, 40, None)]
    assert the_topic(state).lost == [LostRange(10, 40, 2, 60)]
