"""How much one micro-batch takes of what is there: at least and at most so many records, so many bytes.

Spark knows one limit at a time, so that all of them are kept here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ister.io.clock import monotonic
from ister.protocol.messages import SegmentDescription, TopicDescription
from ister.spark.options import TriggerLimits

Gaps = Sequence[tuple[int, int]]
Spans = Mapping[str, tuple[int, int]]
"""By topic: where a batch begins, and where it may end."""


class Admission:
    """Whether a batch is worth its while now."""

    def __init__(self, limits: TriggerLimits, now: Callable[[], float] = monotonic) -> None:
        self._limits = limits
        self._now = now
        self._last: float | None = None
        """When the last batch was let through, or the query began."""

    def admits(self, count: int) -> bool:
        """Whether so many records are enough, or have waited long enough. What is there when the query begins
        always is."""
        least, now = self._limits.min_offsets, self._now()
        if self._last is None:
            self._last = now
        elif (
            least is not None and count < least and (not count or now - self._last < self._limits.max_delay_s)
        ):
            return False
        elif count:
            self._last = now
        return True


def gaps_of(there: TopicDescription) -> list[tuple[int, int]]:
    """The offsets that have no records: dropped, or given up. What is waited for in vain is no load."""
    lost = [(part.end_offset - part.lost, part.end_offset) for part in there.segments if part.lost]
    return [(0, there.start_offset), *lost]


def at_most(count: int, spans: Spans, gaps: Mapping[str, Gaps] | None = None) -> dict[str, int]:
    """Where each topic's part ends if there are to be `count` records in all: in proportion to what each has,
    but one of each at least, so that no topic waits for ever on a busier one."""
    gaps = gaps or {}
    sizes = {topic: _present(start, end, gaps.get(topic, ())) for topic, (start, end) in spans.items()}
    total = sum(sizes.values())
    if total <= count:
        return {topic: end for topic, (_, end) in spans.items()}
    shares = {topic: min(size, max(1, size * count // total)) for topic, size in sizes.items()}
    for topic in sorted(shares, key=lambda name: shares[name], reverse=True):
        # The ones given to the smallest come out of the largest.
        excess = sum(shares.values()) - count
        shares[topic] -= max(0, min(excess, shares[topic] - 1))
    return {
        topic: _offset_behind(start, shares[topic], gaps.get(topic, ())) if sizes[topic] else end
        for topic, (start, end) in spans.items()
    }


def _present(start: int, end: int, gaps: Gaps) -> int:
    absent = sum(max(0, min(end, last) - max(start, first)) for first, last in gaps)
    return end - start - absent


def _offset_behind(start: int, count: int, gaps: Gaps) -> int:
    """Behind so many records that are there."""
    for first, last in gaps:
        if start < first and count <= first - start:
            break
        if start < last:
            count -= max(0, first - start)
            start = last
    return start + count


def at_most_bytes(
    size: int, spans: Spans, segments: Mapping[str, Sequence[SegmentDescription]]
) -> dict[str, int]:
    """Where each topic's part ends if all have about `size` bytes, as they are stored: by the mean size of
    the records of each segment, which is what a description of a topic knows. One of each at least."""
    sizes = {topic: _bytes_between(segments.get(topic, ()), *span) for topic, span in spans.items()}
    total = sum(sizes.values())
    if total <= size:
        return {topic: end for topic, (_, end) in spans.items()}
    return {
        topic: _offset_after(segments.get(topic, ()), start, end, sizes[topic] * size / total)
        for topic, (start, end) in spans.items()
    }


def _bytes_between(segments: Sequence[SegmentDescription], start: int, end: int) -> float:
    return sum(_mean(part) * max(0, min(end, _end(part)) - max(start, part.base_offset)) for part in segments)


def _offset_after(segments: Sequence[SegmentDescription], start: int, end: int, size: float) -> int:
    """Up to where there are about so many bytes."""
    for part in segments:
        first, last = max(start, part.base_offset), min(end, _end(part))
        if first < last:
            there = _mean(part) * (last - first)
            if there > size:
                return max(start + 1, first + int(size / _mean(part)))
            size -= there
    return end


def _end(part: SegmentDescription) -> int:
    """Those that were given up are its last ones, and have no bytes."""
    return part.end_offset - part.lost


def _mean(part: SegmentDescription) -> float:
    count = _end(part) - part.base_offset
    return part.bytes / count if count > 0 else 0.0
