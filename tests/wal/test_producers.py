"""A5: sequences, repeats, and a table that is the fold of the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.errors import DuplicateSequence, OutOfSequence, Overloaded, UnknownProducer
from ister.wal.producers import FRAMES_REMEMBERED, PRODUCERS_CARRIED, ProducerTable

FAR = 1 << 60


def table_with(frames: int, *, producer: int = 5, count: int = 2) -> ProducerTable:
    table = ProducerTable()
    for number in range(frames):
        table.record(producer, number * count, count, 100 + number * count, number)
    return table


def test_a5_an_unknown_producer_starts_at_0() -> None:
    assert ProducerTable().check(5, 0, 3, 0) is None
    with pytest.raises(UnknownProducer, match="sequence 7"):
        ProducerTable().check(5, 7, 3, 0)


def test_a5_only_the_next_sequence_is_appended() -> None:
    table = table_with(3)
    assert table.check(5, 6, 1, FAR) is None
    with pytest.raises(OutOfSequence, match="sent sequence 8, 6 is next"):
        table.check(5, 8, 1, FAR)


def test_a5_an_exact_repeat_gets_its_original_offsets() -> None:
    original = table_with(3).check(5, 2, 2, FAR)
    assert original is not None
    assert (original.base_offset, original.append_time_us) == (102, 1)


@pytest.mark.parametrize(("sequence", "count"), [(2, 1), (2, 3), (3, 2), (1, 2), (5, 4)])
def test_a5_a_partial_overlap_is_refused(sequence: int, count: int) -> None:
    with pytest.raises(DuplicateSequence):
        table_with(3).check(5, sequence, count, FAR)


def test_a5_only_the_last_frames_are_remembered_in_the_rows() -> None:
    rows = table_with(40).rows()
    assert [frame[0] for frame in rows[0][1]] == [2 * n for n in range(40 - FRAMES_REMEMBERED, 40)]
    with pytest.raises(DuplicateSequence):
        ProducerTable(rows).check(5, 2 * (39 - FRAMES_REMEMBERED), 2, FAR)


def test_a_producer_may_not_have_more_uncommitted_frames_than_are_remembered() -> None:
    table = table_with(FRAMES_REMEMBERED)
    with pytest.raises(Overloaded, match="8 batches"):
        table.check(5, 2 * FRAMES_REMEMBERED, 1, committed_end=100)
    assert table.check(5, 2 * FRAMES_REMEMBERED, 1, committed_end=101) is None


def test_a5_expiry_drops_the_silent_ones_and_then_the_oldest() -> None:
    table = ProducerTable()
    for producer in range(1, PRODUCERS_CARRIED + 51):
        table.record(producer, 0, 1, producer, append_time_us=producer)
    carried = table.expired(before_us=20)
    assert len(carried) == PRODUCERS_CARRIED
    assert [row[0] for row in carried.rows()] == list(range(51, PRODUCERS_CARRIED + 51))
    assert len(table.expired(before_us=PRODUCERS_CARRIED + 41)) == 10


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), max_size=80),
    st.integers(0, 8),
)
def test_refusing_the_uncommitted_leaves_the_fold_of_what_is_left(
    appends: list[tuple[int, int]], uncommitted: int
) -> None:
    """Invariant 6: after any refusal the table equals the fold of the log (at most 8 frames in flight)."""
    whole, offset, next_sequence, log = ProducerTable(), 0, dict.fromkeys(range(1, 5), 0), []
    for producer, count in appends:
        log.append((producer, next_sequence[producer], count, offset, offset))
        whole.record(*log[-1])
        offset += count
        next_sequence[producer] += count
    kept = log[: max(0, len(log) - uncommitted)]
    end = kept[-1][3] + kept[-1][2] if kept else 0
    fold = ProducerTable()
    for row in kept:
        fold.record(*row)
    assert whole.without_records_past(end).rows() == fold.rows()
    assert ProducerTable(whole.rows()).rows() == whole.rows()


def test_f6_a_producer_whose_records_may_be_lost_is_not_told_to_send_earlier_ones_first() -> None:
    """What it was acknowledged in between is gone: it would wait for ever for its turn."""
    table = table_with(3)
    table.lost_end = 5000
    assert table.check(5, 6, 1, FAR) is None, "its next one, as far as is known"
    assert table.check(5, 4, 2, FAR) is not None, "a repeat of what is still there"
    with pytest.raises(UnknownProducer, match="sent sequence 8, 6 is next as far as is known") as told:
        table.check(5, 8, 1, FAR)
    assert "Open a new producer" in told.value.hint
    table.record(5, 6, 1, 5000, 9)
    with pytest.raises(OutOfSequence):
        table.check(5, 8, 1, FAR)
