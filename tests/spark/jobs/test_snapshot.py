"""A topic's line cut into shares: whole, in order, none twice, of the size that was asked for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.protocol.messages import SegmentDescription, TopicDescription, TopicSettings
from ister.spark.jobs.lake.table import DataFile, joined_gaps
from ister.spark.jobs.snapshot import Snapshot, reach, shares
from ister.spark.jobs.tiering.cutting import Cutting

pytestmark = pytest.mark.spark


def snapshot(*segments: tuple[int, int]) -> Snapshot:
    """Of segments of so many records and bytes."""
    parts, base = [], 0
    for number, (records, size) in enumerate(segments, 1):
        end = base + records
        is_sealed = number < len(segments)
        parts.append(SegmentDescription(number, number + 10, base, end, size, 1, is_sealed, 0, 0, "", [1, 2]))
        base = end
    total = sum(size for _, size in segments)
    return Snapshot(
        "c", TopicDescription("default/t", 5, 0, base, total, TopicSettings(), parts, 0, []), base
    )


SEGMENTS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 100_000)), min_size=1, max_size=6)


@given(SEGMENTS, st.integers(1, 200_000))
def test_shares_are_the_whole_line_and_stay_within_segments(
    segments: list[tuple[int, int]], size: int
) -> None:
    seen = snapshot(*segments)
    cut = list(shares(seen, 0, seen.end, size))
    assert sum(share.range.count for share in cut) == seen.end
    assert all(share.range.count for share in cut)
    assert all(one.range.end == other.range.start for one, other in pairwise(cut))
    ends = {part.segment: (part.base_offset, end) for part, end in seen.segments()}
    assert all(
        ends[share.segment][0] <= share.range.start and share.range.end <= ends[share.segment][1]
        for share in cut
    )


@given(SEGMENTS, st.integers(1, 50_000), st.integers(1, 4), st.integers(1, 20))
def test_what_is_tiered_is_cut_whole_and_in_order(
    segments: list[tuple[int, int]], file_bytes: int, at_once: int, ratio: int
) -> None:
    seen = snapshot(*segments)
    cutting = Cutting(seen, 0, file_bytes, seen.size_between(0, seen.end), at_once)
    at = 0
    for share in cutting.shares():
        assert share.range.start == at < share.range.end
        at = share.range.end
        cutting.learn(share, [DataFile("x", share.size // ratio, 1, 0, 0)])
    assert at == seen.end


def test_shares_grow_as_records_are_seen_to_compress() -> None:
    seen = snapshot(*[(1_000, 100_000)] * 20)
    cutting = Cutting(seen, 0, 50_000, 2_000_000, 2)
    given_out = cutting.shares()
    first = next(given_out)
    assert first.size == pytest.approx(50_000, rel=0.1)
    cutting.learn(first, [DataFile("x", 10_000, 1, 0, 0)])
    assert next(given_out).size == pytest.approx(250_000, rel=0.1)


def test_a_reach_goes_across_segments() -> None:
    seen = snapshot((100, 1_000), (100, 2_000), (100, 1_000))
    share = reach(seen, 50, 300, 2_000)
    assert (share.range.start, share.range.end, share.size) == (50, 175, 2_000)


def test_gaps_that_touch_are_one() -> None:
    assert joined_gaps([(20, 30), (0, 5), (5, 9), (25, 40)]) == ((0, 9), (20, 40))
