"""Reading whole frames from a segment's file.

A reader is told how far the log is committed and never looks past it. Where the sparse index knows a frame
boundary near the end of the wanted range, the answer is cut there, so that a sequential reader costs one
`read` per answer and no walk over frames: the next request starts exactly at an index entry.

Checksums of bodies are verified by who consumes them (they are the producer's own); here only the chain
of headers that is walked over is.
"""

from __future__ import annotations

from dataclasses import dataclass

from ister.errors import CorruptSegment
from ister.frame import HEADER_SIZE, FrameHeader, decode_header
from ister.io.disk import File
from ister.wal.side_file import SparseIndex

_FRAME_LIMIT = 1 << 31


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
    limit: int
    """Where the committed log ends: a frame boundary too."""
    max_bytes: int

    def run(self) -> memoryview:
        position, header = self._find()
        end = min(self.cut, self.limit)
        if end <= position:
            end = self._walk(position, header)
        data = self.file.read(end - position, position)
        if len(data) != end - position:
            raise self._damaged(position, f"the file ends {end - position - len(data)} bytes early")
        return memoryview(data)

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

    def _walk(self, position: int, header: FrameHeader) -> int:
        """The end of the whole frames that fit into `max_bytes`; at least one."""
        end = position + header.size
        while end < self.limit:
            size = self._header_at(end).size
            if end + size - position > self.max_bytes:
                break
            end += size
        return min(end, self.limit)

    def _header_at(self, position: int) -> FrameHeader:
        header = decode_header(self.file.read(HEADER_SIZE, position), limit=_FRAME_LIMIT)
        if not isinstance(header, FrameHeader):
            raise self._damaged(position, str(header))
        return header

    def _damaged(self, position: int, reason: str) -> CorruptSegment:
        return CorruptSegment(
            f"segment {self.key} is damaged at byte {position}, offset {self.offset} cannot be read: {reason}"
        )


def plan_read(key: str, file: File, index: SparseIndex, limit: int, offset: int, max_bytes: int) -> ReadPlan:
    start = index.position_for(offset)
    cut = limit if limit - start <= max_bytes else index.last_position_up_to(start + max_bytes)
    return ReadPlan(key, file, offset, start, cut, limit, max_bytes)


def first_offset_at_or_after(key: str, file: File, start: int, limit: int, time_us: int) -> int | None:
    """The base of the first frame appended at or after a time, walking from `start`; None if none is."""
    plan = ReadPlan(key, file, 0, start, 0, limit, 0)
    position = start
    while position < limit:
        header = plan._header_at(position)
        if header.append_time_us >= time_us:
            return header.base_offset
        position += header.size
    return None
