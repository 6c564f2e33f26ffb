"""Opening a segment's log after any kind of stop.

Fault model: the process was killed, the power failed, or the disk lied. The file may end in a torn frame,
may hold frames that were written and never synced, may be followed by reserved zeros, and any byte may
have rotted.

What recovery promises:
- Everything that was acknowledged is kept, or the open fails with `CorruptSegment`.
- A tail is cut only where it is torn, and nothing follows that proves it was ever durable (P3); the cut is
  reported. Damage before the tail is an error that names offsets, never a silent end.
- In a follower's log the frames prove nothing, and damage past the last checkpoint is where it ends. A
  replica remembers such a cut, since what was cut may have been acknowledged.
- What is kept is durable before it is served (P2): the part past the last checkpoint is written again and
  synced. (Written again, because after an fsync that failed just before a crash the kernel may hold such
  bytes as clean, and a sync alone would then prove nothing: P1.)
- The work is bounded by what was written since the last checkpoint, not by the size of the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

from ister.errors import CorruptSegment
from ister.frame import (
    FRAME_LIMIT,
    HEADER_SIZE,
    MAGIC,
    Corrupt,
    Frame,
    FrameHeader,
    Incomplete,
    decode,
    decode_header,
)
from ister.io.disk import Disk, File, parent
from ister.wal.checking import next_frame
from ister.wal.doubts import HEAD_BYTES, cut_log, doubtful_until, remember_doubt
from ister.wal.marks import durable_before, uid_of
from ister.wal.producers import ProducerRow, ProducerTable
from ister.wal.side_file import SparseIndex, checkpoint_block, read_blocks, write_block

log = logging.getLogger("ister.wal.opening")

_CHUNK_BYTES = 4 * 1024 * 1024

NEW = "new"
"""The source of a log that was made just now."""


@dataclass(frozen=True)
class SegmentIdentity:
    """Which segment a file is: its uid is in every frame, so that no other's frames are taken for its own."""

    key: str
    uid: int
    base_offset: int
    path: str
    """Without suffix; the log is `.log`, the side file `.side`."""


@dataclass
class OpenedLog:
    """A segment's log, open and known to its end."""

    file: File
    side: File
    side_position: int
    index: SparseIndex
    producers: ProducerTable
    position: int
    end_offset: int
    last_append_time_us: int
    source: str
    """Where the knowledge came from, for people: `new`, `checkpoint`, `checkpoint + scan`, `scan`."""
    cut_bytes: int = 0
    cut_reason: str = ""
    scanned_bytes: int = 0
    in_doubt: bool = False
    """More was in use here than there is now, and it may have been acknowledged (P3)."""
    doubtful_until: int = 0
    """A replica's doubt ends when its log reaches this position again."""

    def take(self, header: FrameHeader) -> None:
        """This frame follows in the log."""
        self.index.add(header.base_offset, self.position, header.append_time_us)
        if header.producer_id:
            self.producers.record(
                header.producer_id, header.sequence, header.count, header.base_offset, header.append_time_us
            )
        self.position += header.size
        self.end_offset = header.end_offset
        self.last_append_time_us = max(self.last_append_time_us, header.append_time_us)

    def checkpoint(self) -> None:
        """Note in the side file that the log is durable up to here. Without it, opening takes longer."""
        try:
            block = checkpoint_block(
                self.index, self.producers, self.position, self.end_offset, self.last_append_time_us
            )
            self.side_position = write_block(self.side, self.side_position, block)
        except OSError as error:
            log.warning("checkpoint at offset %d was not written: %s", self.end_offset, error)

    def close(self) -> None:
        self.file.close()
        self.side.close()


def create(
    disk: Disk, identity: SegmentIdentity, carried: list[ProducerRow], last_append_time_us: int
) -> OpenedLog:
    """Make a new segment's files, durably. The segment is empty, and has a head: none is emptied unseen."""
    with ExitStack() as opened:
        file = disk.open(identity.path + ".log", create=True)
        opened.callback(file.close)
        side = disk.open(identity.path + ".side", create=True)
        opened.callback(side.close)
        if side.size():  # checkpoints of a log that is gone would speak of this one after a crash
            side.truncate(0)
            side.sync()
        cut_log(file, 0)
        file.sync()
        disk.sync_directory(parent(identity.path))
        opened.pop_all()
    table = ProducerTable(carried)
    return OpenedLog(
        file, side, 0, SparseIndex(), table, 0, identity.base_offset, last_append_time_us, source=NEW
    )


class Synced(NamedTuple):
    """How far a process that had a log open has synced it, and answered for it."""

    end_offset: int
    position: int


def recover(
    disk: Disk,
    identity: SegmentIdentity,
    carried: list[ProducerRow],
    last_append_time_us: int,
    *,
    sealed_end: int | None = None,
    cut_at: int | None = None,
    is_follower: bool = False,
    is_replicated: bool = False,
    synced: Synced | None = None,
) -> OpenedLog:
    """Open a segment that exists. `carried` is what the seal before it brought: producers, append time.

    A sealed segment must reach its end, and is clipped there (F3). `cut_at` is the committed end in memory of
    a process that goes on after a failed write: the log must reach it too, and frames past it must not come
    back. `is_follower` says that another node led: the marks in the frames prove nothing here. With it, or
    with `is_replicated`, a tail that is cut is remembered (`ister.wal.doubts`); but not one past what this
    very process has `synced` and answered for: a failed write left it, and nobody was told of it. A log that
    ends before that is in doubt, however clean its end.
    """
    try:
        file = disk.open(identity.path + ".log")
    except FileNotFoundError as error:
        raise CorruptSegment(
            f"segment {identity.key} has no log at {disk.location}/{identity.path}.log",
            hint="Restore the file from a copy. If it cannot be had, delete the topic to start over.",
        ) from error
    with ExitStack() as opened:  # a damaged segment is tried again and again, and must not use up the files
        opened.callback(file.close)
        side = disk.open(identity.path + ".side", create=True)
        opened.callback(side.close)
        must_reach = sealed_end if sealed_end is not None else cut_at
        state, proven = load(file, side, identity, carried, last_append_time_us, must_reach)
        checkpointed = state.position
        scan(state, identity, must_reach, proven, is_follower)
        if must_reach is not None and state.end_offset < must_reach:
            raise _too_short(identity, state.end_offset, must_reach)
        if sealed_end is None:
            if synced is not None:
                state.in_doubt = state.end_offset < synced.end_offset
            if is_follower or is_replicated:
                _settle_doubt(disk, identity, state, synced.position if synced is not None else 0)
            make_durable(disk, identity, state, checkpointed)
            if state.position > checkpointed:
                state.checkpoint()
        opened.pop_all()
        return state


def measure(
    disk: Disk, identity: SegmentIdentity, carried: list[ProducerRow], last_append_time_us: int
) -> OpenedLog:
    """How far a replica's log goes, durably (P2). Unlike `recover` it cuts nothing: what lies behind damage
    may be all that is left of it. To be closed."""
    with ExitStack() as opened:
        file = disk.open(identity.path + ".log")
        opened.callback(file.close)
        side = disk.open(identity.path + ".side", create=True)
        opened.callback(side.close)
        state, proven = load(file, side, identity, carried, last_append_time_us, None)
        checkpointed = state.position
        scan(state, identity, None, proven, is_follower=True)
        state.cut_bytes = 0
        make_durable(disk, identity, state, checkpointed)
        opened.pop_all()
        return state


def load(
    file: File,
    side: File,
    identity: SegmentIdentity,
    carried: list[ProducerRow],
    last_append_time_us: int,
    stop_at: int | None,
) -> tuple[OpenedLog, int]:
    """What the checkpoints up to `stop_at` know; and the position up to which the log was durable, by any."""
    blocks = read_blocks(side)
    proven = blocks[-1].checkpoint.position if blocks else 0
    # A replica may have made checkpoints of what was never committed, and now lies past the end, or is gone.
    kept = [block for block in blocks if stop_at is None or block.checkpoint.end_offset <= stop_at]
    if (kept[-1].checkpoint.position if kept else 0) > file.size():
        raise CorruptSegment(
            f"segment {identity.key}: the log has {file.size()} bytes, but {proven} were durable "
            f"(up to offset {blocks[-1].checkpoint.end_offset})"
        )
    proven = min(proven, file.size())
    index = SparseIndex()
    for block in kept:
        index.load(block.checkpoint.entries)
    if not kept:
        table = ProducerTable(carried)
        state = OpenedLog(
            file, side, 0, index, table, 0, identity.base_offset, last_append_time_us, source="scan"
        )
        return state, proven
    last, side_position = kept[-1]
    state = OpenedLog(
        file,
        side,
        side_position,
        index,
        ProducerTable(last.producers),
        last.position,
        last.end_offset,
        last.last_append_time_us,
        source="checkpoint",
    )
    return state, proven


def scan(
    state: OpenedLog, identity: SegmentIdentity, stop_at: int | None, proven: int, is_follower: bool
) -> None:
    """Read frames from where the knowledge ends to where the log does. Below `proven` it does not end."""
    size = state.file.size()
    started = state.position
    buffer = b""
    buffer_at = state.position
    while state.position < size and (stop_at is None or state.end_offset < stop_at):
        found = next_frame(buffer, state.position - buffer_at, identity.uid, state.end_offset)
        if isinstance(found, Incomplete) and buffer_at + len(buffer) < size:
            have = buffer_at + len(buffer) - state.position
            buffer_at = state.position
            buffer = state.file.read(
                min(max(_CHUNK_BYTES, have + found.missing), size - buffer_at), buffer_at
            )
            continue
        if isinstance(found, FrameHeader):
            state.take(found)
            continue
        _end_of_log(state, identity, size, found, proven, is_follower)
        break
    state.scanned_bytes = state.position - started
    if state.scanned_bytes:
        state.source = "scan" if started == 0 else "checkpoint + scan"
    if stop_at is not None and state.end_offset > stop_at:
        raise CorruptSegment(
            f"segment {identity.key} is to end at offset {stop_at}, but a frame reaches across it, to "
            f"{state.end_offset}"
        )
    if stop_at is not None and state.end_offset == stop_at and state.position < size and not state.cut_bytes:
        state.cut_bytes = _used_bytes(state.file, state.position, size)
        state.cut_reason = f"refused or unacknowledged records past the end at {stop_at}"


def _end_of_log(
    state: OpenedLog,
    identity: SegmentIdentity,
    size: int,
    found: Incomplete | Corrupt,
    proven: int,
    is_follower: bool,
) -> None:
    """Nothing usable at this position. Is it the end, a torn tail, or damage with records behind it (P3)?"""
    used = _used_bytes(state.file, state.position, size)
    if used == 0 and state.position >= proven:
        return
    reason = found.reason if isinstance(found, Corrupt) else f"{found.missing} bytes are missing"
    if state.position < proven:
        raise CorruptSegment(
            f"segment {identity.key} is damaged at byte {state.position}: offset {state.end_offset} cannot "
            f"be read ({reason}), and {proven} bytes were durable"
        )
    later = None if is_follower else _find_proof(state, identity)
    if later is not None:
        raise CorruptSegment(
            f"segment {identity.key} is damaged at byte {state.position}: offsets {state.end_offset} to "
            f"{later.base_offset - 1} cannot be read ({reason}), offset {later.base_offset} and later can"
        )
    state.cut_bytes = used
    state.cut_reason = reason
    state.in_doubt = True


def has_frames_behind(state: OpenedLog, identity: SegmentIdentity) -> bool:
    """Whether an intact frame lies behind the one that cannot be read. In a follower's log that does not say
    that this one was durable: one write may have brought both, and a power cut have kept the later one."""
    return next(_frames_behind(state, identity), None) is not None


def _find_proof(state: OpenedLog, identity: SegmentIdentity) -> FrameHeader | None:
    """The first intact frame behind the one that cannot be read, if it or a later one was made when this one
    was durable."""
    first: FrameHeader | None = None
    for header in _frames_behind(state, identity):
        first = first or header
        if durable_before(header) > state.end_offset:
            return first
    return None


def _used_bytes(file: File, position: int, size: int) -> int:
    """How many bytes from `position` on are in use: all up to the last one that is not zero."""
    end = size
    while end > position:
        start = max(position, end - _CHUNK_BYTES)
        chunk = file.read(end - start, start).rstrip(b"\0")
        if chunk:
            return start + len(chunk) - position
        end = start
    return 0


def _frames_behind(state: OpenedLog, identity: SegmentIdentity) -> Iterator[FrameHeader]:
    """The intact frames of this segment behind the one at the state's position, which cannot be read."""
    file, size = state.file, state.file.size()
    unread = decode_header(file.read(HEADER_SIZE, state.position), limit=FRAME_LIMIT)
    # What lies within a frame is a producer's bytes, and may look like anything (W13).
    position = state.position + (unread.size if isinstance(unread, FrameHeader) else 1)
    while position < size:
        chunk = file.read(min(_CHUNK_BYTES, size - position), position)
        at = chunk.find(MAGIC)
        while at >= 0:
            header = decode_header(chunk[at : at + HEADER_SIZE], limit=FRAME_LIMIT)
            if isinstance(header, Incomplete):
                header = decode_header(file.read(HEADER_SIZE, position + at), limit=FRAME_LIMIT)
            if (
                isinstance(header, FrameHeader)
                and uid_of(header) == identity.uid
                and header.base_offset >= state.end_offset
                and position + at + header.size <= size
                and isinstance(decode(file.read(header.size, position + at), limit=FRAME_LIMIT), Frame)
            ):
                yield header
            at = chunk.find(MAGIC, at + 1)
        position += max(1, len(chunk) - len(MAGIC) + 1)


def _settle_doubt(disk: Disk, identity: SegmentIdentity, state: OpenedLog, synced_position: int) -> None:
    """A tail that is about to be cut is remembered first; one that was cut, until the log has it again."""
    known = doubtful_until(disk, identity.path)
    used = max(state.position + state.cut_bytes, synced_position)
    state.doubtful_until = max(known, used if state.in_doubt else 0)
    if state.in_doubt:  # written again if it is known: what can be read may not be durable (P2)
        remember_doubt(disk, identity.path, state.doubtful_until)
    state.in_doubt = state.position < state.doubtful_until


def make_durable(
    disk: Disk,
    identity: SegmentIdentity,
    state: OpenedLog,
    checkpointed: int,
    *,
    gives_back_space: bool = False,
) -> None:
    """Cut what is torn, then make what is kept durable before anybody relies on it (P2), its name too.

    Reserved zeros behind a clean end stay: on a full disk there might be no getting them back (P5). What is
    never appended to again gives them back.
    """
    disk.sync_directory(parent(identity.path))
    if state.cut_bytes and state.side.size() > state.side_position:
        # First what speaks of the part that goes: a log shorter than a checkpoint says is a damaged one.
        state.side.truncate(state.side_position)
        state.side.sync()
    if state.cut_bytes or (gives_back_space and state.file.size() > state.position):
        state.file.truncate(state.position)
    position = checkpointed
    while position < state.position:
        chunk = state.file.read(min(_CHUNK_BYTES, state.position - position), position)
        state.file.write([chunk], position)
        position += len(chunk)
    if state.file.size() < HEAD_BYTES and not gives_back_space:
        cut_log(state.file, 0)
    state.file.sync()


def _too_short(identity: SegmentIdentity, end: int, known_end: int) -> CorruptSegment:
    return CorruptSegment(
        f"segment {identity.key} is known to reach offset {known_end}, but its log ends at {end}: "
        f"offsets {end} to {known_end - 1} cannot be read"
    )
