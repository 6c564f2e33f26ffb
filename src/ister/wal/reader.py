"""Reading whole frames from a segment's file.

A reader is told how far the log is committed and never looks past it. Where the sparse index knows a frame
boundary near the end of the wanted range, the answer is cut there, so that a sequential reader costs one
`read` per answer and no walk over frames: the next request starts exactly at an index entry.

Checksums of bodies are verified by who consumes them (they are the producer's own); here only the chain
of headers that is walked over is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ister.errors import CorruptSegment
from ister.frame import HEADER_SIZE, FrameHeader, base_and_count, decode_header
from ister.io.disk import File
from ister.wal.side_file import SparseIndex

_FRAME_LIMIT = 1 << 31


class Found(NamedTuple):
    """Whole frames, end to end over all buffers."""

    buffers: Sequence[bytes | bytearray | memoryview]
    records: int
    """How many records they hold."""


def found_in(frames: Sequence[bytes | bytearray | memoryview]) -> Found:
    """Frames that lie in memory, one a buffer."""
    if not frames:
        return Found(frames, 0)
    first, last = base_and_count(frames[0]), base_and_count(frames[-1])
    return Found(frames, last[0] + last[1] - first[0])


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A range to read, decided on the loop; `run` may be in a thread."""

    key: str
    file: File
    offset: int
    start: int
    """A frame's position at or before the frame that holds `offset`."""
    cut: int
    """A frame boundary at which to end, if it lies behind the wanted frame; else frames are walked."""
    cut_offset: int
    """The offset of the record behind `cut`."""
    limit: int
    """Where the committed log ends: a frame boundary too."""
    max_bytes: int

    def run(self) -> Found:
        position, header = self._find()
        end, end_offset = self.cut, self.cut_offset
        if end <= position:
            end, end_offset = self._walk(position, header)
        data = self.file.read(end - position, position)
        if len(data) != end - position:
            raise self._damaged(position, f"the file ends {end - position - len(data)} bytes early")
        return Found([memoryview(data)], end_offset - header.base_offset)

    def _find(self) -> tuple[int, FrameHeader]:
        """The frame that holds `offset`."""
        position = self.start
        while position < self.limit:
            header = self._header_at(position)
            if header.base_offset <= self.offset < header.end_offset:
                return position, header
            if header.base_offset > self.offset:
                break
            position += header.size
        raise self._damaged(position, f"offset {self.offset} is not where the index says")

    def _walk(self, position: int, header: FrameHeader) -> tuple[int, int]:
        """The end of the whole frames that fit into `max_bytes`, as position and offset; at least one."""
        end, end_offset = position + header.size, header.end_offset
        while end < self.limit:
            following = self._header_at(end)
            if end + following.size - position > self.max_bytes:
                break
            end, end_offset = end + following.size, following.end_offset
        return end, end_offset

    def _header_at(self, position: int) -> FrameHeader:
        header = decode_header(self.file.read(HEADER_SIZE, position), limit=_FRAME_LIMIT)
        if not isinstance(header, FrameHeader):
            raise self._damaged(position, str(header))
        return header

    def _damaged(self, position: int, reason: str) -> CorruptSegment:
        return CorruptSegment(
            f"segment {self.key} is damaged at byte {position}, offset {self.offset} cannot be read: {reason}"
        )


def plan_read(
    key: str, file: File, index: SparseIndex, limit: int, limit_offset: int, offset: int, max_bytes: int
) -> ReadPlan:
    """`limit` is where the committed log ends, `limit_offset` the offset that it ends at."""
    start = index.position_for(offset)
    if limit - start <= max_bytes:
        cut, cut_offset = limit, limit_offset
    else:
        cut, cut_offset = index.last_place_up_to(min(start + max_bytes, limit))
    return ReadPlan(key, file, offset, start, cut, cut_offset, limit, max_bytes)


def first_offset_at_or_after(key: str, file: File, start: int, limit: int, time_us: int) -> int | None:
    """The base of the first frame appended at or after a time, walking from `start`; None if none is."""
    plan = ReadPlan(key, file, 0, start, 0, 0, limit, 0)
    position = start
    while position < limit:
        header = plan._header_at(position)
        if header.append_time_us >= time_us:
            return header.base_offset
        position += header.size
    return None
