"""C1, C2, C3: who is known to have all of a sealed segment, by what, and who may leave it for that."""

from __future__ import annotations

import msgspec
import pytest

from ister.metadata.commands import (
    AcceptGone,
    CopyEntry,
    KeptPart,
    RemoveNode,
    ReportCopies,
    Reported,
    Result,
    SetReplicas,
)
from ister.metadata.state import ClusterState, SegmentState
from tests.metadata.chains import (
    FOUR,
    ONE,
    THREE,
    TWO,
    apply,
    create,
    member,
    node,
    recover,
    result_of,
    seal,
    state_after,
    the_topic,
)

FIVE = member(5)
ALL = [ONE, TWO, THREE]


def sealed_on(
    replicas: list[int] = ALL, whole: list[int] | None = None, end: int = 10
) -> tuple[ClusterState, int]:
    """Segment 1 was led by the first of these; the topic goes on on node 5."""
    state = state_after(*(node(number) for number in range(1, 6)), create(leader=ONE, replicas=[*replicas]))
    uid = the_topic(state).uid
    holders = [ONE, TWO] if whole is None else whole
    assert apply(state, seal(uid, 1, end, then=FIVE, then_on=[FIVE], holders=holders)) is Result.APPLIED
    return state, uid


def first(state: ClusterState) -> SegmentState:
    return the_topic(state).segments[0]


def report(
    state: ClusterState,
    who: int,
    what: Reported,
    end: int = 0,
    *,
    number: int = 1,
    starts: int = 1,
    index: int | None = None,
) -> Result:
    entry = CopyEntry(the_topic(state).uid, first(state).uid, what, end)
    at = state.applied_index if index is None else index
    return apply(state, ReportCopies(who, starts, number, at, [entry]))


def change(state: ClusterState, replicas: list[int], **other: list[int]) -> Result:
    segment = first(state)
    expected = other.get("expected", segment.replicas)
    whole = other.get("whole", segment.whole)
    return apply(state, SetReplicas(the_topic(state).uid, 1, expected, replicas, expected_whole=whole))


def removal(number: int) -> RemoveNode:
    return RemoveNode(number, by_name=True)


# What is known.


def test_c1_the_seal_names_those_who_have_acknowledged_its_end() -> None:
    state, _ = sealed_on(whole=[TWO, ONE, FIVE])
    assert first(state).whole == [ONE, TWO], "of the list only, in its order"


def test_c1_the_seal_of_a_recovery_names_those_who_hold_it() -> None:
    state = state_after(*(node(number) for number in range(1, 6)), create(leader=ONE, replicas=ALL))
    uid = the_topic(state).uid
    assert apply(state, recover(uid, 1, TWO)) is Result.APPLIED
    ended = seal(
        uid, 1, 10, by=TWO, then=FIVE, then_on=[FIVE],
        recovery=the_topic(state).open_segment.recovery,
        replicas=[TWO, FOUR, ONE, THREE], holders=[TWO, FOUR],
    )  # fmt: skip
    assert apply(state, ended) is Result.APPLIED
    assert first(state).whole == [TWO, FOUR]


def test_c1_of_an_empty_segment_everybody_has_all_and_nobody_reports() -> None:
    state, _ = sealed_on(whole=[], end=0)
    assert all(first(state).is_whole_at(one) for one in ALL) and not first(state).is_whole_at(FOUR)
    assert report(state, THREE, Reported.DAMAGED) is Result.APPLIED
    assert first(state).told == []
    assert apply(state, removal(1)) is Result.APPLIED


def test_c1_who_leaves_the_list_leaves_what_is_known_of_it() -> None:
    state, _ = sealed_on(whole=ALL)
    assert report(state, THREE, Reported.DAMAGED) is Result.APPLIED
    assert change(state, [TWO]) is Result.APPLIED
    assert (first(state).whole, first(state).told) == ([TWO], [])
    assert change(state, [TWO, ONE]) is Result.APPLIED
    assert first(state).whole == [TWO], "who comes again has to say so again"


def test_c2_a_report_makes_a_copy_whole_and_one_of_damage_takes_that_back() -> None:
    state, _ = sealed_on()
    assert report(state, THREE, Reported.WHOLE) is Result.APPLIED
    assert first(state).whole == ALL
    assert report(state, ONE, Reported.DAMAGED) is Result.APPLIED
    told = first(state).told_by(ONE)
    assert first(state).whole == [TWO, THREE] and told is not None and told.state == Reported.DAMAGED
    assert report(state, ONE, Reported.WHOLE, number=2) is Result.APPLIED
    assert (first(state).whole, first(state).told) == (ALL, [])


def test_c2_a_report_that_was_overtaken_says_nothing() -> None:
    """Damage hangs in an election; what came of it is told first. It must not be the old one that counts."""
    state, _ = sealed_on()
    assert report(state, ONE, Reported.DAMAGED, number=2) is Result.APPLIED
    assert report(state, ONE, Reported.WHOLE, number=1) is Result.STALE
    assert report(state, ONE, Reported.WHOLE, number=2) is Result.STALE
    assert first(state).whole == [TWO]


def test_c2_numbers_begin_anew_with_each_start_and_another_start_says_nothing() -> None:
    state, _ = sealed_on()
    assert report(state, ONE, Reported.DAMAGED, number=7) is Result.APPLIED
    assert report(state, ONE, Reported.WHOLE, number=8, starts=2) is Result.STALE
    assert apply(state, node(1, starts=2)) is Result.APPLIED
    assert report(state, ONE, Reported.WHOLE, number=8) is Result.STALE
    assert report(state, ONE, Reported.WHOLE, number=1, starts=2) is Result.APPLIED
    assert first(state).whole == [ONE, TWO]


def test_c2_an_announcement_that_is_applied_twice_does_not_begin_the_numbers_anew() -> None:
    state, _ = sealed_on()
    assert report(state, ONE, Reported.DAMAGED, number=2) is Result.APPLIED
    assert apply(state, node(1)) is Result.APPLIED
    assert report(state, ONE, Reported.WHOLE, number=1) is Result.STALE


def test_c2_a_report_from_before_the_list_changed_is_not_believed() -> None:
    """3 had all of it, left, deleted its files, and was listed again. Its old word comes now."""
    state, _ = sealed_on(whole=ALL)
    before = state.applied_index
    assert change(state, [ONE, TWO]) is Result.APPLIED
    assert change(state, [ONE, TWO, THREE]) is Result.APPLIED
    assert report(state, THREE, Reported.WHOLE, index=before) is Result.APPLIED
    assert first(state).whole == [ONE, TWO]
    assert report(state, THREE, Reported.WHOLE, number=2) is Result.APPLIED
    assert first(state).whole == [ONE, TWO, THREE]


@pytest.mark.parametrize("what", [CopyEntry(99, 6, 1), CopyEntry(6, 99, 1), CopyEntry(6, 7, 1)])
def test_c2_of_what_is_not_there_or_open_nothing_can_be_said(what: CopyEntry) -> None:
    state, _ = sealed_on()
    before = [(one.whole, one.told) for one in the_topic(state).segments]
    assert apply(state, ReportCopies(ONE, 1, 1, state.applied_index, [what])) is Result.APPLIED
    assert [(one.whole, one.told) for one in the_topic(state).segments] == before


def test_c2_one_that_is_not_in_the_list_says_nothing_of_it() -> None:
    state, _ = sealed_on()
    assert report(state, FOUR, Reported.WHOLE) is Result.APPLIED
    assert (first(state).whole, first(state).told) == ([ONE, TWO], [])


def test_r3_what_is_known_is_in_a_snapshot() -> None:
    state, _ = sealed_on()
    assert report(state, THREE, Reported.SHORT, 7, number=3) is Result.APPLIED
    again = ClusterState.from_bytes(state.to_bytes())
    assert again.to_bytes() == state.to_bytes()
    assert report(again, THREE, Reported.WHOLE, number=3) is Result.STALE


def test_c1_what_an_operator_kept_is_whole_at_those_who_have_the_longest() -> None:
    state, uid = sealed_on()
    assert apply(state, RemoveNode(1, disk_gone=True)) is Result.APPLIED
    assert report(state, TWO, Reported.SHORT, 5) is Result.APPLIED
    assert report(state, THREE, Reported.SHORT, 7) is Result.APPLIED
    kept = KeptPart(first(state).uid, 7, 0, 0, [TWO, THREE], [THREE])
    assert apply(state, AcceptGone(uid, [first(state).uid], 1, TWO, [kept], whole=1)) is Result.APPLIED
    assert (first(state).whole, first(state).told) == ([THREE], [])
    assert apply(state, removal(3)) is Result.REFUSED


# Who may leave.


def test_c3_a_list_and_who_has_it_are_compared_together() -> None:
    state, _ = sealed_on(whole=ALL)
    assert change(state, [ONE, TWO], whole=[ONE, TWO]) is Result.STALE
    assert change(state, [ONE, TWO], expected=[ONE, TWO]) is Result.STALE
    assert change(state, [ONE, TWO]) is Result.APPLIED


def test_c3_nobody_leaves_a_list_while_too_few_that_stay_have_all_of_it() -> None:
    state, uid = sealed_on()
    leaves = SetReplicas(uid, 1, ALL, [TWO, THREE], expected_whole=[ONE, TWO])
    result, detail = result_of(state, leaves)
    assert (result, "node 1 is needed" in detail) == (Result.REFUSED, True), detail
    assert report(state, THREE, Reported.WHOLE) is Result.APPLIED
    assert change(state, [TWO, THREE]) is Result.APPLIED


def test_c3_who_comes_counts_for_nothing_before_it_has_said_so() -> None:
    state, _ = sealed_on()
    assert change(state, [TWO, THREE, FOUR]) is Result.REFUSED
    assert change(state, [*ALL, FOUR]) is Result.APPLIED
    assert change(state, [TWO, THREE, FOUR]) is Result.REFUSED
    assert report(state, FOUR, Reported.WHOLE) is Result.APPLIED
    assert change(state, [TWO, THREE, FOUR]) is Result.APPLIED


def test_c3_one_that_has_said_that_it_is_short_may_leave_while_one_that_stays_has_all() -> None:
    state, _ = sealed_on(whole=[ONE])
    assert change(state, [ONE, TWO]) is Result.REFUSED
    assert report(state, THREE, Reported.SHORT, 4) is Result.APPLIED
    assert change(state, [ONE, TWO]) is Result.APPLIED


def test_c3_one_that_is_damaged_does_not_leave_for_that() -> None:
    """What is good of it may be nowhere else."""
    state, _ = sealed_on(whole=[ONE])
    assert report(state, THREE, Reported.DAMAGED) is Result.APPLIED
    assert change(state, [ONE, TWO]) is Result.REFUSED


def test_r2_a_node_goes_once_those_who_stay_have_said_that_they_have_all() -> None:
    """1 and 2 acknowledged it, 3 was down and may end short."""
    state, _ = sealed_on()
    result, detail = result_of(state, removal(1))
    assert (result, "only node 2 is known to have all" in detail) == (Result.REFUSED, True), detail
    assert report(state, THREE, Reported.WHOLE) is Result.APPLIED
    assert apply(state, removal(1)) is Result.APPLIED
    assert apply(state, removal(2)) is Result.APPLIED
    result, detail = result_of(state, removal(3))
    assert (result, "the last copy of default/t:1" in detail) == (Result.REFUSED, True), detail


def test_r2_damage_that_was_found_keeps_the_others() -> None:
    state, _ = sealed_on(whole=ALL)
    assert report(state, THREE, Reported.DAMAGED) is Result.APPLIED
    assert [apply(state, removal(number)) for number in (1, 2)] == [Result.REFUSED, Result.REFUSED]
    assert apply(state, removal(3)) is Result.APPLIED


def test_i2_another_disk_takes_a_place_only_if_what_is_left_is_enough() -> None:
    state, _ = sealed_on(whole=ALL)
    comes = node(3, 9, starts=0, client_port=0)
    named = msgspec.structs.replace(comes, by_name=True)
    assert report(state, ONE, Reported.DAMAGED) is Result.APPLIED
    assert apply(state, named) is Result.REFUSED
    assert report(state, ONE, Reported.WHOLE, number=2) is Result.APPLIED
    assert apply(state, named) is Result.APPLIED


def test_c3_an_operator_who_says_that_a_disk_is_gone_is_believed() -> None:
    state, _ = sealed_on(whole=[ONE])
    assert apply(state, removal(1)) is Result.REFUSED
    assert apply(state, RemoveNode(1, disk_gone=True, by_name=True)) is Result.APPLIED


# What was decided before there were names.


def test_r3_a_seal_of_before_makes_nobody_whole_until_they_report() -> None:
    state = state_after(*(node(number) for number in range(1, 6)), create(leader=ONE, replicas=ALL))
    uid = the_topic(state).uid
    assert apply(state, seal(uid, 1, 10, then=FIVE, then_on=[FIVE], whole=2)) is Result.APPLIED
    assert (first(state).whole, first(state).listed_at) == ([], 0)
    assert apply(state, removal(1)) is Result.REFUSED
    for who in ALL:
        assert report(state, who, Reported.WHOLE) is Result.APPLIED
    assert apply(state, removal(1)) is Result.APPLIED


def test_r3_a_list_that_was_set_by_a_command_of_before_keeps_what_is_known_of_those_in_it() -> None:
    state, uid = sealed_on(whole=ALL)
    assert apply(state, SetReplicas(uid, 1, ALL, [ONE, TWO, FOUR])) is Result.APPLIED
    assert first(state).whole == [ONE, TWO]
