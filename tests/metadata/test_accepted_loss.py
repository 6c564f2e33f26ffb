"""An operator accepts a loss: the topic goes on past all that may have been acknowledged (F6)."""

from __future__ import annotations

import msgspec
import pytest

from ister.metadata.chain import MAX_LOST_RANGES
from ister.metadata.codec import decode_command
from ister.metadata.commands import (
    AcceptGone,
    AlterTopic,
    Command,
    KeptPart,
    RemoveNode,
    Result,
    SetReplicas,
    TrimTopic,
)
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


def with_topic(*commands: Command | None) -> ClusterState:
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
    command: Command, before: list[Command], expected: Result, said: str
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
def test_a_loss_that_is_just_allowed(command: Command, before: list[Command]) -> None:
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


def sealed_on_two(*commands: Command | None) -> ClusterState:
    """Node 2 alone has segments 1, 2 and 4 of a topic, 0 to 10, 10 to 20 and 30 to 40; its disk was replaced.
    Segment 3 is node 3's, the open one node 1's. Then index 10."""
    return state_after(
        node(1),
        node(2),
        node(3),
        create(leader=TWO),
        seal(TOPIC, 1, 10, by=TWO, then=TWO),
        seal(TOPIC, 2, 20, by=TWO, then=THREE),
        seal(TOPIC, 3, 30, by=THREE, then=TWO),
        seal(TOPIC, 4, 40, by=TWO, then=ONE),
        msgspec.structs.replace(node(2, 9, client_port=0), replaces=True),
        *commands,
    )


def gone(*uids: int) -> AcceptGone:
    return AcceptGone(TOPIC, list(uids), 60, ONE)


def test_f6_sealed_segments_of_disks_that_left_are_given_up_by_name_and_in_ranges() -> None:
    state = sealed_on_two()
    uids = [segment.uid for segment in the_topic(state).segments]
    assert apply(state, gone(uids[0], uids[1], uids[3])) is Result.APPLIED
    for view in (state, ClusterState.from_bytes(state.to_bytes())):
        topic = the_topic(view)
        assert topic.lost == [LostRange(0, 20, 1, 60, True), LostRange(30, 40, 4, 60, True)]
        assert [segment.lost_from for segment in topic.segments] == [0, 10, None, 30, None]
        assert [segment.end_position for segment in topic.segments[:4]] == [0, 0, 3000, 0]
        assert chain(view) == [(1, 0, 10), (2, 10, 20), (3, 20, 30), (4, 30, 40), (5, 40, None)]
    assert apply(state, gone(uids[0], uids[1], uids[3])) is Result.STALE, "the same again"


def test_f6_what_a_disk_in_the_cluster_has_is_not_given_up_nor_what_is_open() -> None:
    state = sealed_on_two()
    uids = [segment.uid for segment in the_topic(state).segments]
    result, detail = result_of(state, gone(uids[0], uids[2]))
    assert (result, detail) == (
        Result.REFUSED,
        "node 3 is in the cluster, and has a copy of default/t:3",
    )
    assert result_of(state, gone(uids[4])) == (Result.REFUSED, "default/t:5 is open")
    assert apply(state, gone(uids[0], 77)) is Result.STALE
    assert apply(state, gone()) is Result.STALE
    assert apply(state, AcceptGone(TOPIC, [uids[0]], 60, TWO)) is Result.REFUSED, "asked of a disk that left"


def test_f6_a_rest_that_a_disk_took_with_it_is_added_to_what_was_lost_of_a_segment_before() -> None:
    state = with_topic(
        accept_loss(TOPIC, 2, 40, 15), msgspec.structs.replace(node(2, 9, client_port=0), replaces=True)
    )
    segment = the_topic(state).segments[1]
    assert apply(state, gone(segment.uid)) is Result.APPLIED
    assert (segment.lost_from, segment.end_offset) == (10, 40)
    assert the_topic(state).lost[-1] == LostRange(10, 15, 2, 60, True)


def sealed_on_three(*commands: Command | None) -> tuple[ClusterState, int]:
    """All three nodes have segment 1, 0 to 10; the disk of node 2 was replaced. And the segment's uid."""
    state = state_after(
        node(1),
        node(2),
        node(3),
        create(leader=TWO, replicas=[TWO, ONE, THREE]),
        seal(TOPIC, 1, 10, by=TWO, then=ONE),
        node(2, 9, client_port=0),
        *commands,
    )
    return state, the_topic(state).segments[0].uid


def rest(uid: int, end: int = 4, position: int = 400, asked: list[int] | None = None) -> AcceptGone:
    part = KeptPart(uid, end, position, 3, [ONE, THREE] if asked is None else asked)
    return AcceptGone(TOPIC, [uid], 60, ONE, [part])


def test_f6_what_is_left_of_a_sealed_segment_is_kept_and_the_rest_given_up_once() -> None:
    state, uid = sealed_on_three()
    assert apply(state, rest(uid)) is Result.APPLIED
    for view in (state, ClusterState.from_bytes(state.to_bytes())):
        segment = the_topic(view).segments[0]
        assert (segment.data_end, segment.end_offset, segment.end_position) == (4, 10, 400)
        assert segment.last_append_time_us == 3, "nobody who looks for a later time is sent there"
        assert the_topic(view).lost == [LostRange(4, 10, 1, 60, True)]
        assert chain(view) == [(1, 0, 10), (2, 10, None)]
    assert apply(state, rest(uid)) is Result.STALE, "the same again"
    assert apply(state, rest(uid, 6)) is Result.REFUSED, "what was given up does not come back"
    assert apply(state, rest(uid, 2, 200)) is Result.APPLIED, "and less may be left of it later"
    assert the_topic(state).lost[-1] == LostRange(2, 4, 1, 60, True)


def test_f6_a_part_that_is_nothing_is_all_of_a_segment_given_up() -> None:
    state, uid = sealed_on_three()
    assert apply(state, rest(uid, 0, 0)) is Result.APPLIED
    assert the_topic(state).segments[0].is_empty


@pytest.mark.parametrize(
    "asked",
    [[ONE], [ONE, THREE, TWO], [ONE, NEW_TWO], [THREE, ONE]],
    ids=["one less", "gone", "new", "order"],
)
def test_f6_a_rest_is_stale_unless_exactly_those_were_asked_who_are_there(asked: list[int]) -> None:
    state, uid = sealed_on_three()
    result, detail = result_of(state, rest(uid, asked=asked))
    assert result is Result.STALE
    assert "those in the cluster that are to have it are now 1, 3" in detail


def test_f6_a_rest_is_stale_once_another_disk_came_or_left() -> None:
    state, uid = sealed_on_three(msgspec.structs.replace(node(3, 9, client_port=0), replaces=True))
    assert apply(state, rest(uid)) is Result.STALE
    state, uid = sealed_on_three(node(2, 9, starts=2))
    assert apply(state, SetReplicas(TOPIC, 1, [TWO, ONE, THREE], [ONE, THREE, NEW_TWO])) is Result.APPLIED
    assert apply(state, rest(uid)) is Result.STALE


@pytest.mark.parametrize(("end", "position"), [(11, 400), (-1, 400), (4, 1001), (4, -1)])
def test_f6_a_rest_outside_its_segment_is_refused(end: int, position: int) -> None:
    state, uid = sealed_on_three()
    assert apply(state, rest(uid, end, position)) is Result.REFUSED


def test_f6_a_part_that_nobody_was_asked_for_is_refused() -> None:
    state = sealed_on_two()
    uid = the_topic(state).segments[0].uid
    assert result_of(state, rest(uid, asked=[])) == (
        Result.REFUSED,
        "nobody was asked what is left of default/t:1",
    )


def test_f6_a_loss_in_part_and_a_whole_one_behind_it_are_one_range() -> None:
    state, first = sealed_on_three(seal(TOPIC, 2, 20, by=ONE, then=THREE), node(4))
    state.apply(state.applied_index + 1, msgspec.structs.replace(node(1, 9, client_port=0), replaces=True))
    second = the_topic(state).segments[1].uid
    part = KeptPart(first, 4, 400, 3, [THREE])
    assert apply(state, AcceptGone(TOPIC, [first, second], 60, THREE, [part])) is Result.APPLIED
    assert the_topic(state).lost == [LostRange(4, 20, 1, 60, True)]


def test_a_command_of_before_parts_were_kept_is_read() -> None:
    old = msgspec.msgpack.encode(["AcceptGone", TOPIC, [7], 60, ONE])
    assert decode_command(old) == AcceptGone(TOPIC, [7], 60, ONE, [])


def test_i2_a_disk_that_alone_has_records_is_replaced_only_by_an_operators_word() -> None:
    state = with_topic()
    empty = node(2, 9, client_port=0)
    assert result_of(state, empty) == (
        Result.REFUSED,
        "node 2 has the last copy of default/t:1, on another disk",
    )
    assert apply(state, msgspec.structs.replace(empty, replaces=True)) is Result.APPLIED
    assert apply(state, node(2, 9, starts=2)) is Result.APPLIED, "it announces itself as any other"
    replicated = state_after(
        node(1),
        node(2),
        node(3),
        create(leader=TWO, replicas=[TWO, ONE]),
        seal(TOPIC, 1, 0, by=TWO, then=ONE),
    )
    assert apply(replicated, empty) is Result.APPLIED, "nothing was only there"


def test_i2_a_replacement_that_was_long_on_its_way_does_not_push_out_a_disk_that_came_back() -> None:
    state = with_topic(node(2, starts=2))
    late = msgspec.structs.replace(node(2, 9, client_port=0), replaces=True, replaced_starts=1)
    assert apply(state, late) is Result.REFUSED
    assert apply(state, RemoveNode(2, True, 1)) is Result.REFUSED
    assert apply(state, msgspec.structs.replace(late, replaced_starts=2)) is Result.APPLIED
