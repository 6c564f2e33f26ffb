"""Offsets with something known of each, kept as ranges: what is handed out to whom, what has come back."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

from ister.errors import invariant

V = TypeVar("V")


class RangeMap(Generic[V]):
    """Disjoint ranges in order, each with a value. Neighbours of equal value are joined."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._values: list[V] = []
        self.count = 0
        """How many offsets there are."""

    def __len__(self) -> int:
        return len(self._starts)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int, V]]:
        return zip(list(self._starts), list(self._ends), list(self._values), strict=True)

    @property
    def first(self) -> tuple[int, int, V] | None:
        return (self._starts[0], self._ends[0], self._values[0]) if self._starts else None

    @property
    def end(self) -> int:
        return self._ends[-1] if self._ends else 0

    def put(self, start: int, end: int, value: V) -> None:
        """Offsets that are not there yet."""
        invariant(start < end, f"{start} to {end} is no range of offsets")
        place = bisect_left(self._starts, start)
        is_free = (place == 0 or self._ends[place - 1] <= start) and (
            place == len(self._starts) or end <= self._starts[place]
        )
        invariant(is_free, f"some of the offsets {start} to {end} are there already")
        self.count += end - start
        joins_left = place > 0 and self._ends[place - 1] == start and self._values[place - 1] == value
        joins_right = (
            place < len(self._starts) and self._starts[place] == end and self._values[place] == value
        )
        first = place - 1 if joins_left else place
        last = place + 1 if joins_right else place
        new_start = self._starts[first] if joins_left else start
        new_end = self._ends[place] if joins_right else end
        self._replace(first, last, [(new_start, new_end, value)])

    def carve(self, start: int, end: int) -> list[tuple[int, int, V]]:
        """Take out what is there of a range; returns it."""
        first = bisect_right(self._ends, start)
        last = bisect_left(self._starts, end, lo=first)
        if first >= last:
            return []
        found, kept = [], []
        for place in range(first, last):
            low, high, value = self._starts[place], self._ends[place], self._values[place]
            inner = max(low, start), min(high, end)
            found.append((*inner, value))
            self.count -= inner[1] - inner[0]
            if low < start:
                kept.append((low, start, value))
            if end < high:
                kept.append((end, high, value))
        self._replace(first, last, kept)
        return found

    def at(self, offset: int) -> tuple[int, int, V] | None:
        place = bisect_right(self._starts, offset) - 1
        if place < 0 or self._ends[place] <= offset:
            return None
        return self._starts[place], self._ends[place], self._values[place]

    def first_from(self, offset: int) -> tuple[int, int, V] | None:
        """What is there of the first range that has something at an offset or behind it."""
        place = bisect_right(self._ends, offset)
        if place == len(self._starts):
            return None
        return max(offset, self._starts[place]), self._ends[place], self._values[place]

    def _replace(self, first: int, last: int, rows: list[tuple[int, int, V]]) -> None:
        self._starts[first:last] = [row[0] for row in rows]
        self._ends[first:last] = [row[1] for row in rows]
        self._values[first:last] = [row[2] for row in rows]
