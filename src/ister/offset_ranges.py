"""Sets of offsets, kept as ranges: what was acknowledged of a topic, in one piece or in many.

Pure bookkeeping, the same for the broker and its clients. A set costs as much as it has separate ranges,
however many offsets lie in them, and adding to its end, which is the common case, costs next to nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from ister.errors import invariant

Range = tuple[int, int]
"""From the first offset to before the second."""


class OffsetRanges:
    """Disjoint ranges in order, none touching the next."""

    __slots__ = ("_ends", "_starts", "count")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.count = 0
        """How many offsets there are."""
        for start, end in ranges:
            self.add(start, end)

    def __len__(self) -> int:
        return len(self._starts)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __iter__(self) -> Iterator[Range]:
        return zip(list(self._starts), list(self._ends), strict=True)

    def __contains__(self, offset: int) -> bool:
        place = bisect_right(self._starts, offset) - 1
        return place >= 0 and offset < self._ends[place]

    def add(self, start: int, end: int) -> int:
        """Returns how many of them were not there."""
        invariant(start < end, f"{start} to {end} is no range of offsets")
        starts, ends = self._starts, self._ends
        first = bisect_left(ends, start)
        last = bisect_right(starts, end, lo=first)
        known = sum(ends[place] - starts[place] for place in range(first, last))
        if first < last:
            start, end = min(start, starts[first]), max(end, ends[last - 1])
        starts[first:last] = [start]
        ends[first:last] = [end]
        added = end - start - known
        self.count += added
        return added

    def missing(self, start: int, end: int) -> list[Range]:
        """What of a range is not there."""
        found = []
        place = bisect_right(self._ends, start)
        while start < end:
            is_last = place == len(self._starts) or self._starts[place] >= end
            gap_end = end if is_last else self._starts[place]
            if start < gap_end:
                found.append((start, gap_end))
            if is_last:
                break
            start = self._ends[place]
            place += 1
        return found

    def take_first(self) -> Range:
        start, end = self._starts.pop(0), self._ends.pop(0)
        self.count -= end - start
        return start, end

    def take_all(self) -> list[Range]:
        found = list(self)
        self._starts, self._ends, self.count = [], [], 0
        return found

    @property
    def first(self) -> Range | None:
        return (self._starts[0], self._ends[0]) if self._starts else None

    @property
    def end(self) -> int:
        """Behind the last of them; 0 of none."""
        return self._ends[-1] if self._ends else 0


class Acknowledged:
    """A low-water mark, below which everything is acknowledged, and the set that is beyond it (S2).

    The mark only moves past what is acknowledged without a gap, so that a crash repeats records and skips
    none.
    """

    __slots__ = ("beyond", "low")

    def __init__(self, low: int, beyond: Iterable[Range] = ()) -> None:
        self.low = low
        """The lowest offset that is not acknowledged: the cursor (S4)."""
        self.beyond = OffsetRanges()
        for start, end in beyond:
            self.add(start, end)

    def __contains__(self, offset: int) -> bool:
        return offset < self.low or offset in self.beyond

    def add(self, start: int, end: int) -> int:
        """Returns how many of them were not acknowledged before."""
        start = max(start, self.low)
        if start >= end:
            return 0
        added = self.beyond.add(start, end)
        first = self.beyond.first
        if first is not None and first[0] == self.low:
            self.low = self.beyond.take_first()[1]
        return added

    def missing(self, start: int, end: int) -> list[Range]:
        return self.beyond.missing(max(start, self.low), end)

    @property
    def end(self) -> int:
        """Behind the last one that is acknowledged."""
        return max(self.low, self.beyond.end)
