"""What may be given up of a segment, by what its replicas answer: what the cluster cannot find (F6)."""

from __future__ import annotations

import pytest

from ister.metadata.state import SegmentState
from ister.protocol.replication import FenceAnswer
from ister.replication.recovery.reach import reach_of

A, B, C, D, E = (number << 31 | number for number in range(1, 6))


def segment(*replicas: int) -> SegmentState:
    return SegmentState(2, 9, 100, replicas[0], list(replicas), 0, [], 0, recovery=30)


def log(end: int, *, commit: int = 0, in_doubt: bool = False, position: int | None = None) -> FenceAnswer:
    return FenceAnswer(end, end * 10 if position is None else position, in_doubt, commit)


def test_of_one_replica_nothing_can_be_reached_and_all_of_it_may_be_given_up() -> None:
    found = reach_of(segment(A), {})
    assert (found.end_offset, found.holders, found.known_end, found.refusal) == (100, (), 100, "")
    assert not found.is_enough


def test_the_longest_of_those_that_answer_is_kept() -> None:
    found = reach_of(segment(A, B, C, D, E), {B: log(110), D: log(120, commit=108)})
    assert (found.end_offset, found.holders, found.known_end, found.refusal) == (120, (D,), 120, "")
    found = reach_of(segment(A, B, C, D, E), {B: log(120), D: log(120, commit=140)})
    assert (found.holders, found.known_end) == ((B, D), 140), "more is known to be committed than they have"


@pytest.mark.parametrize(
    ("replicas", "answers", "is_enough"),
    [
        ((A, B), {}, False),
        ((A, B), {B: log(110)}, True),
        ((A, B, C), {B: log(110)}, False),
        ((A, B, C), {B: log(110), C: log(105)}, True),
        ((A, B, C), {B: log(110), C: log(105, in_doubt=True)}, False),
        ((A, B, C), {A: log(110), B: log(110, in_doubt=True), C: log(105, in_doubt=True)}, True),
        ((A, B, C, D, E), {B: log(110), C: log(105)}, False),
        ((A, B, C, D, E), {B: log(110), C: log(105), E: log(100)}, True),
    ],
)
def test_p3_nothing_may_be_given_up_where_a_recovery_finds_all(
    replicas: tuple[int, ...], answers: dict[int, FenceAnswer], is_enough: bool
) -> None:
    found = reach_of(segment(*replicas), answers)
    assert (found.is_enough, bool(found.refusal)) == (is_enough, is_enough)


def test_what_is_known_to_be_committed_and_nobody_has_is_lost_however_many_answer() -> None:
    found = reach_of(segment(A, B, C), {B: log(110, commit=115), C: log(110)})
    assert (found.is_enough, found.refusal, found.known_end) == (False, "", 115)


def test_logs_that_differ_are_for_a_person_to_look_at() -> None:
    found = reach_of(segment(A, B, C), {B: log(110), C: log(110, position=7)})
    assert "logs of nodes 2 and 3 differ" in found.refusal
    assert not found.is_enough
