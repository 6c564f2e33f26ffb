"""Reading whole frames from a segment's file.

A reader is told how far the log is committed and never looks past it. Where the sparse index knows a frame
boundary near the end of the wanted range, the answer is cut there, so that a sequential reader costs one
`read` per answer and no walk over frames: the next request starts exactly at an index entry.

What is served is checked first, bodies too (`run_checked`): so rot is found by the node that has it. What
lies before it is served; the error says which offsets are damaged and where the next frame is. That is at the
damaged frame's end, as long as its header can be read; else at the next place that the index knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ister.errors import CorruptSegment
from ister.frame import (
    FRAME_LIMIT,
    HEADER_SIZE,
    Corrupt,
    FrameHeader,
    Incomplete,
    base_and_count,
    decode_header,
)
from ister.io.disk import File
from ister.wal.checking import check_frames
from ister.wal.side_file import SparseIndex


class Found(NamedTuple):
    """Whole frames, end to end over all buffers."""

    buffers: Sequence[bytes | bytearray | memoryview]
    records: int
    """How many records they hold."""
    damage: CorruptSegment | None = None
    """What lies right behind them and cannot be read, where that was met."""


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
    index: SparseIndex
    offset: int
    start: int
    """A frame's position at or before the frame that holds `offset`."""
    cut: int
    """A frame boundary at which to end, if it lies behind the wanted frame; else frames are walked."""
    cut_offset: int
    """The offset of the record behind `cut`."""
    limit: int
    """Where the committed log ends: a frame boundary too."""
    limit_offset: int
    max_bytes: int

    def run(self) -> Found:
        """As it is on the disk; only the headers that are walked over are checked. Blocking."""
        return self._read()[2]

    def run_checked(self) -> Found:
        """Good frames only: up to the first that is not, which is told. `CorruptSegment` if that is the one
        that holds `offset`. Blocking."""
        position, base_offset, found = self._read()
        (data,) = found.buffers
        good, end_offset, reason = check_frames(data, base_offset)
        if not reason:
            return found
        header, behind = decode_header(data, good, limit=FRAME_LIMIT), None
        if isinstance(header, FrameHeader) and header.base_offset >= end_offset:
            is_next = header.base_offset == end_offset
            behind = header.end_offset if is_next else header.base_offset  # else some are missing before it
        damage = self._damaged(position + good, reason, end_offset, behind)
        if not good:
            raise damage
        return Found([memoryview(data)[:good]], end_offset - base_offset, damage)

    def _read(self) -> tuple[int, int, Found]:
        """Where the first frame lies, its offset, and all of them in one buffer."""
        position, header = self._find()
        end, end_offset = self.cut, self.cut_offset
        if end <= position:
            end, end_offset = self._walk(position, header)
        data = self.file.read(end - position, position)
        if len(data) != end - position:
            raise self._damaged(position, f"the file ends {end - position - len(data)} bytes early")
        return position, header.base_offset, Found([memoryview(data)], end_offset - header.base_offset)

    def _find(self) -> tuple[int, FrameHeader]:
        """The frame that holds `offset`."""
        position, expected = self.start, None
        while position < self.limit:
            header = self.header_at(position, expected)
            if header.base_offset <= self.offset < header.end_offset:
                return position, header
            if header.base_offset > self.offset:
                break
            position, expected = position + header.size, header.end_offset
        raise self._damaged(position, f"offset {self.offset} is not where the index says")

    def _walk(self, position: int, header: FrameHeader) -> tuple[int, int]:
        """The end of the whole frames that fit into `max_bytes`, as position and offset; at least one."""
        end, end_offset = position + header.size, header.end_offset
        while end < self.limit:
            following = self._decode_at(end)
            if not isinstance(following, FrameHeader):
                break  # these are good; who goes on with that one is told
            if end + following.size - position > self.max_bytes:
                break
            end, end_offset = end + following.size, following.end_offset
        return end, end_offset

    def header_at(self, position: int, expected: int | None) -> FrameHeader:
        """Of the frame there. `expected` is its offset, where the frame before it was looked at too."""
        header = self._decode_at(position)
        if isinstance(header, FrameHeader):
            return header
        if expected is None:
            expected = self.index.offset_at(position)
        reason = header.reason if isinstance(header, Corrupt) else f"{header.missing} bytes are missing"
        raise self._damaged(position, reason, expected)

    def _decode_at(self, position: int) -> FrameHeader | Incomplete | Corrupt:
        return decode_header(self.file.read(HEADER_SIZE, position), limit=FRAME_LIMIT)

    def _damaged(
        self, position: int, reason: str, first: int | None = None, end: int | None = None
    ) -> CorruptSegment:
        """`first` is the offset at `position`, `end` where the frame there ends: as far as that is known."""
        where = f"segment {self.key} is damaged at byte {position}"
        if first is None:
            return CorruptSegment(f"{where}: {reason}")
        if end is None:
            end = min(self.index.offset_behind(position) or self.limit_offset, self.limit_offset)
        what = f"offset {first}" if end == first + 1 else f"offsets {first} to {end - 1}"
        return CorruptSegment(
            f"{where}, {what} cannot be read: {reason}",
            hint=f"Read on from offset {end}; for what is damaged, restore the segment from a copy.",
            offsets=(first, end),
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
    return ReadPlan(key, file, index, offset, start, cut, cut_offset, limit, limit_offset, max_bytes)


def plan_search(
    key: str, file: File, index: SparseIndex, limit: int, limit_offset: int, time_us: int
) -> ReadPlan:
    """Of the headers from the last place on that lies before a time."""
    start = index.position_for_time(time_us)
    return ReadPlan(key, file, index, 0, start, 0, 0, limit, limit_offset, 0)


def first_offset_at_or_after(plan: ReadPlan, time_us: int) -> int | None:
    """The base of the first frame appended at or after a time; None if none is. Blocking."""
    position, expected = plan.start, None
    while position < plan.limit:
        header = plan.header_at(position, expected)
        if header.append_time_us >= time_us:
            return header.base_offset
        position, expected = position + header.size, header.end_offset
    return None
