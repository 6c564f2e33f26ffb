"""What power cuts right now would leave of every copy of every segment, read off the disks from outside.

A segment with several replicas has one log for ever: whatever a disk has of it is a prefix, byte for byte, of
what any other has (invariant 2), since one process wrote all of it (A3). So the frames that were seen
anywhere are kept here, and each copy is held against them. A frame's header has the checksum of its body, and
both were checked: equal headers are equal bytes.

Copies are looked at from where the last look ended. A copy that rots meanwhile still counts for what it was
seen to have: that it had been made durable is what an acknowledgement promised. `is_whole` looks afresh.
"""

from __future__ import annotations

from collections.abc import Callable

from ister.broker.topic.known import segment_path
from ister.frame import HEADER_SIZE, Frame, FrameHeader, decode, decode_header
from ister.metadata.state import SegmentState, TopicState
from ister.testing import SimDisk
from ister.testing.history import History
from ister.wal.doubts import SUFFIX as DOUBT
from ister.wal.marks import uid_of


class DurableCopies:
    def __init__(self, history: History, disk_of: Callable[[int], SimDisk]) -> None:
        """`disk_of` finds the disk of a member, be it out of the cluster."""
        self._history = history
        self._disk_of = disk_of
        self._frames: dict[int, list[FrameHeader]] = {}
        """By a segment's uid: all frames that were ever durable anywhere, in their order."""
        self._seen: dict[tuple[int, int], tuple[int, int]] = {}
        """By member and segment: how many frames of its copy were looked at, and their bytes."""
        self._damaged: set[tuple[int, int]] = set()

    def damaged(self, member: int, segment_uid: int) -> None:
        """This copy is about to rot. It goes on to answer for what it was sent, until somebody notices: so it
        counts for all of it, until it is whole again."""
        self._damaged.add((member, segment_uid))

    def is_damaged(self, member: int, segment_uid: int) -> bool:
        return (member, segment_uid) in self._damaged

    def frames(self, segment_uid: int) -> list[FrameHeader]:
        return self._frames.get(segment_uid, [])

    def end_of(self, member: int, topic: TopicState, segment: SegmentState) -> int:
        """Up to which offset this member's copy is durable, or was."""
        if (member, segment.uid) in self._damaged:
            return 1 << 62
        path, key = segment_path(topic.uid, segment) + ".log", (member, segment.uid)
        disk, frames = self._disk_of(member), self._frames.setdefault(segment.uid, [])
        count, position = self._seen.get(key, (0, 0))
        if position and not _durable(disk, path, position - 1, position):
            count = position = 0  # it was cut or replaced, and begins anew
        while (header := _frame_at(disk, path, position)) is not None:
            end = frames[count - 1].end_offset if count else segment.base_offset
            if uid_of(header) != segment.uid or header.base_offset != end:
                break
            if count == len(frames):
                frames.append(header)
            elif frames[count] != header:
                self._history.violated(
                    f"invariant 2: offset {end} of {topic.key_of(segment)} is {header} on {disk.name}, and "
                    f"was {frames[count]} on another disk"
                )
                break
            count, position = count + 1, position + header.size
        self._seen[key] = (count, position)
        return frames[count - 1].end_offset if count else segment.base_offset

    def is_whole(self, member: int, topic: TopicState, segment: SegmentState) -> bool:
        """Whether this member's copy of a sealed segment has all of it, now and intact."""
        key = member, segment.uid
        was_damaged = key in self._damaged
        self._damaged.discard(key)
        self._seen.pop(key, None)
        assert segment.data_end is not None
        is_whole = self.end_of(member, topic, segment) >= segment.data_end
        if was_damaged and not is_whole:
            self._damaged.add(key)
        return is_whole

    def is_certain(self, member: int, topic: TopicState, segment: SegmentState) -> bool:
        """Whether a recovery would find a log, with no torn tail, and none that was cut before (P3)."""
        self._seen.pop((member, segment.uid), None)
        self.end_of(member, topic, segment)
        _, position = self._seen[member, segment.uid]
        path, disk = segment_path(topic.uid, segment), self._disk_of(member)
        if disk.exists(path + DOUBT) or _durable(disk, path + ".log", position, None).strip(b"\0"):
            return False
        if not disk.exists(path + ".log") or not disk.cached_bytes(path + ".log"):
            return not segment.log_exists
        return _is_clean(disk.cached_bytes(path + ".log", position))

    def size_of(self, member: int, segment_uid: int) -> int:
        """The bytes of the frames that were found in a copy when it was last looked at."""
        return self._seen.get((member, segment_uid), (0, 0))[1]


def _frame_at(disk: SimDisk, path: str, position: int) -> FrameHeader | None:
    """The frame that starts there and is durable, whole and intact."""
    head = _durable(disk, path, position, position + HEADER_SIZE)
    header = decode_header(head) if len(head) == HEADER_SIZE else None
    if not isinstance(header, FrameHeader):
        return None
    frame = decode(_durable(disk, path, position, position + header.size))
    return frame.header if isinstance(frame, Frame) else None


def _is_clean(data: bytes) -> bool:
    """Whole frames, and nothing behind them: a write that failed leaves a part of one."""
    position = 0
    while isinstance(found := decode(data, position), Frame):
        position += found.header.size
    return not data[position:].strip(b"\0")


def _durable(disk: SimDisk, path: str, start: int, end: int | None) -> bytes:
    try:
        return disk.durable_bytes(path, start, end)
    except OSError:
        return b""
