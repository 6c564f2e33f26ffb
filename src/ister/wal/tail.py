"""The hot tail: the newest frames of every segment, in memory, within one bound in bytes.

Live readers are served from here without touching the disk. What a commit cycle takes comes in as one piece
and leaves as one, so that a lone record costs no bookkeeping of its own. Pieces leave in the order in which
they came, whichever segment they belong to: the bound holds for the whole node, and a busy topic has most.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import NamedTuple

Bytes = bytes | bytearray | memoryview

_PIECE_BYTES = 256 * 1024
"""Frames of a larger cycle come in one by one: else the bound would be kept in steps too coarse for it."""


class _Piece(NamedTuple):
    bases: list[int]
    frames: list[Bytes]
    size: int


_NOTHING = _Piece([], [], 0)


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
        """Pieces are gone out of their turn; their entries in the order go when they are half of it."""
        self.bytes -= size
        self._cleared_count += count
        if self._cleared_count > 1000 and self._cleared_count * 2 > len(self._order):
            self._order = deque(tail for tail in self._order if tail._pieces)
            self._cleared_count = 0


class TailOfSegment:
    """One segment's share. Its lists are parallel; the dropped pieces in front are cut in bulk."""

    __slots__ = ("_dropped", "_firsts", "_hot", "_pieces")

    def __init__(self, hot: HotTail) -> None:
        self._hot = hot
        self._firsts: list[int] = []
        """The base offset of each piece's first frame."""
        self._pieces: list[_Piece] = []
        self._dropped = 0

    def add(self, bases: list[int], frames: list[Bytes], size: int) -> None:
        """Frames that follow those that are here, the offset that each begins at, and their size in all."""
        if size <= _PIECE_BYTES or len(frames) == 1:
            self._add(_Piece(bases, frames, size))
            return
        for base, frame in zip(bases, frames, strict=True):
            self._add(_Piece([base], [frame], len(frame)))

    def _add(self, piece: _Piece) -> None:
        self._firsts.append(piece.bases[0])
        self._pieces.append(piece)
        self._hot._added(self, piece.size)

    def _drop_oldest(self) -> int:
        place = self._dropped
        if place == len(self._pieces):
            return 0  # cleared since
        size = self._pieces[place].size
        self._pieces[place] = _NOTHING
        self._dropped = place + 1
        if self._dropped > 256 and self._dropped * 2 > len(self._pieces):
            del self._firsts[: self._dropped]
            del self._pieces[: self._dropped]
            self._dropped = 0
        return size

    def read(self, offset: int, end_offset: int, max_bytes: int) -> list[Bytes] | None:
        """Whole frames from the one that holds `offset` up to `end_offset`; None if it is not here."""
        place = bisect_right(self._firsts, offset) - 1
        if place < self._dropped:
            return None
        found: list[Bytes] = []
        size = 0
        at = bisect_right(self._pieces[place].bases, offset) - 1
        while place < len(self._pieces):
            bases, frames, _ = self._pieces[place]
            while at < len(frames):
                size += len(frames[at])
                if bases[at] >= end_offset or (found and size > max_bytes):
                    return found
                found.append(frames[at])
                at += 1
            place, at = place + 1, 0
        return found

    def clear(self) -> None:
        """Forget this segment's frames: it is closed, cut, or gone."""
        left = self._pieces[self._dropped :]
        self._firsts.clear()
        self._pieces.clear()
        self._dropped = 0
        self._hot._cleared(len(left), sum(piece.size for piece in left))
