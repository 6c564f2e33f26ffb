"""The hot tail: the newest frames of every segment, in memory, within one bound in bytes.

Live readers are served from here without touching the disk. Frames leave in the order in which they came,
whichever segment they belong to, so the bound holds for the whole node and a busy topic has most of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

Bytes = bytes | bytearray | memoryview


class HotTail:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._order: deque[TailOfSegment] = deque()
        self._cleared_count = 0
        self.bytes = 0

    def of_segment(self) -> TailOfSegment:
        return TailOfSegment(self)

    def _added(self, tail: TailOfSegment, size: int) -> None:
        self._order.append(tail)
        self.bytes += size
        while self.bytes > self._max_bytes:
            self.bytes -= self._order.popleft()._drop_oldest()

    def _cleared(self, count: int, size: int) -> None:
        """Frames are gone out of their turn; their entries in the order go when they are half of it."""
        self.bytes -= size
        self._cleared_count += count
        if self._cleared_count > 1000 and self._cleared_count * 2 > len(self._order):
            self._order = deque(tail for tail in self._order if tail._frames)
            self._cleared_count = 0


class TailOfSegment:
    """One segment's share. Bases and frames are parallel lists; the dropped ones in front are cut in bulk."""

    __slots__ = ("_bases", "_dropped", "_frames", "_hot")

    def __init__(self, hot: HotTail) -> None:
        self._hot = hot
        self._bases: list[int] = []
        self._frames: list[Bytes] = []
        self._dropped = 0

    def add(self, base_offset: int, frame: Bytes) -> None:
        self._bases.append(base_offset)
        self._frames.append(frame)
        self._hot._added(self, len(frame))

    def _drop_oldest(self) -> int:
        place = self._dropped
        if place == len(self._frames):
            return 0  # cleared since
        size = len(self._frames[place])
        self._frames[place] = b""
        self._dropped = place + 1
        if self._dropped > 256 and self._dropped * 2 > len(self._frames):
            del self._bases[: self._dropped]
            del self._frames[: self._dropped]
            self._dropped = 0
        return size

    def read(self, offset: int, end_offset: int, max_bytes: int) -> list[Bytes] | None:
        """Whole frames from the one that holds `offset` up to `end_offset`; None if it is not here."""
        bases = self._bases
        place = bisect_right(bases, offset) - 1
        if place < self._dropped:
            return None
        found: list[Bytes] = []
        size = 0
        while place < len(bases) and bases[place] < end_offset:
            frame = self._frames[place]
            size += len(frame)
            if found and size > max_bytes:
                break
            found.append(frame)
            place += 1
        return found

    def clear(self) -> None:
        """Forget this segment's frames: it is closed, cut, or gone."""
        left = self._frames[self._dropped :]
        self._bases.clear()
        self._frames.clear()
        self._dropped = 0
        self._hot._cleared(len(left), sum(map(len, left)))
