"""Bringing a log up to an offset from another replica: for a recovery, after a seal, for repair.

Fault model: the source may send anything: nothing, half a frame, rotten bytes, another segment's frames, a
gap, more than was asked for. The disk here may fail or fill up, and process or power be lost at any step.

What holds:
- A frame is written here only after its checksums, its segment and its place were checked. The log is always
  a prefix of the source's, byte for byte; what is there when all stops is where the next attempt goes on.
- A copy is done when all of it is durable. What was not synced well is not synced again to ask (P1): the next
  attempt opens the log through recovery, which writes it anew.
- A corrupt copy is replaced as a whole: a crash leaves the old log or the new one.
- Nobody is sent a frame whose body was not checked here first: a corrupt copy is never a source.

Errors: `CorruptFrame` is the source's fault, and names it; `CorruptSegment` is damage here; `StorageFailed`
is this disk. What `Source.read` raises goes through. A log has one owner at a time: copies, cuts and appends
of one segment never run at once. Whoever has a log open that is replaced goes on seeing the old one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from ister.errors import CorruptFrame, StorageFailed
from ister.frame import Bytes, FrameHeader
from ister.io.clock import Clock
from ister.io.disk import Disk, File, parent
from ister.replication.sharing import Throttle, run_to_end
from ister.wal.checking import check_run
from ister.wal.doubts import cut_log
from ister.wal.opening import OpenedLog, SegmentIdentity, create, recover
from ister.wal.producers import ProducerRow, ProducerTable
from ister.wal.reader import plan_read
from ister.wal.side_file import CHECKPOINT_INTERVAL_BYTES, SparseIndex

CHUNK_BYTES = 1024 * 1024
ASIDE = ".copy"
_SOURCE_HINT = "Nothing of this was kept. The copy is tried again, from another replica where there is one."

T = TypeVar("T")


@dataclass(frozen=True)
class Source:
    """Where a copy comes from."""

    name: str
    """For people: which node it is."""
    read: Callable[[int, int], Awaitable[Bytes]]
    """Whole frames from an offset on, of at most so many bytes, or one frame if that is larger."""


@dataclass(frozen=True)
class Wanted:
    """The log that is to be here: which, how far, and what the seal before it brought."""

    identity: SegmentIdentity
    end_offset: int
    carried: list[ProducerRow]
    last_append_time_us: int


@dataclass(frozen=True)
class Copied:
    """A log that is durable here up to the offset asked for, and what it knows there."""

    end_offset: int
    end_position: int
    producers: ProducerTable
    last_append_time_us: int
    copied_bytes: int = 0
    """How much of it came from the source now."""


async def copy_log(
    disk: Disk, clock: Clock, wanted: Wanted, source: Source, *, bytes_per_second: int = 0
) -> Copied:
    """Bring the log here up to the end wanted. One that is longer stays so: only a seal cuts (F3)."""
    state = await _on_disk(disk, wanted, lambda: _open_or_create(disk, wanted), _close)
    if state.end_offset > wanted.end_offset:
        _close(state)
        return await _on_disk(disk, wanted, lambda: _clipped(disk, wanted))
    try:
        return await _fill(disk, clock, wanted, state, source, bytes_per_second)
    finally:
        _close(state)


async def replace_copy(
    disk: Disk, clock: Clock, wanted: Wanted, source: Source, *, bytes_per_second: int = 0
) -> Copied:
    """Pull all of the log into files aside, and put them in the place of those that are here."""
    aside = replace(wanted, identity=replace(wanted.identity, path=wanted.identity.path + ASIDE))
    state = await _on_disk(disk, wanted, lambda: _create_aside(disk, aside), _close)
    try:
        try:
            copied = await _fill(disk, clock, aside, state, source, bytes_per_second)
        finally:
            _close(state)
    except BaseException:
        with contextlib.suppress(OSError):  # the next attempt removes them
            await run_to_end(disk, lambda: _remove_logs(disk, aside.identity.path))
        raise
    await _on_disk(disk, wanted, lambda: _put_in_place(disk, aside.identity.path, wanted.identity.path))
    return copied


def read_frames(
    file: File,
    index: SparseIndex,
    key: str,
    limit_position: int,
    limit_offset: int,
    offset: int,
    max_bytes: int,
) -> bytes:
    """Whole frames from `offset` on for another replica, each checked here; none at the limit. Blocking.

    The limit is where this log ends for the one who asks: a frame's end, as position and offset. An `OSError`
    goes through: who has the log knows what that says of it.
    """
    if offset >= limit_offset:
        return b""
    plan = plan_read(key, file, index, limit_position, limit_offset, offset, max_bytes)
    found = plan.run_checked()
    if found.damage is not None:
        raise found.damage
    return b"".join(found.buffers)


# Opening and closing.


def _open_or_create(disk: Disk, wanted: Wanted) -> OpenedLog:
    identity = wanted.identity
    if disk.exists(identity.path + ".log"):
        return recover(disk, identity, wanted.carried, wanted.last_append_time_us, is_follower=True)
    disk.make_directory(parent(identity.path))
    return create(disk, identity, wanted.carried, wanted.last_append_time_us)


def _create_aside(disk: Disk, aside: Wanted) -> OpenedLog:
    disk.make_directory(parent(aside.identity.path))
    _remove_logs(disk, aside.identity.path)
    return _open_or_create(disk, aside)


def _clipped(disk: Disk, wanted: Wanted) -> Copied:
    """What a longer log, which was made durable when it was opened, says at the end wanted."""
    state = recover(
        disk, wanted.identity, wanted.carried, wanted.last_append_time_us, sealed_end=wanted.end_offset
    )
    _close(state)
    return _copied(state)


def _copied(state: OpenedLog, copied_bytes: int = 0) -> Copied:
    return Copied(state.end_offset, state.position, state.producers, state.last_append_time_us, copied_bytes)


def _close(state: OpenedLog) -> None:
    for file in (state.file, state.side):
        with contextlib.suppress(OSError):  # what counts was synced
            file.close()


def _remove_logs(disk: Disk, path: str) -> None:
    for suffix in (".log", ".side"):
        disk.remove(path + suffix)


def _put_in_place(disk: Disk, aside: str, path: str) -> None:
    """The log first: the old checkpoints are true of it too, since copies have the same bytes at the same
    positions. The new ones would call the old log whole, with the damage for which it is replaced. Those
    past the end of the new log are an error, and it is replaced once more."""
    directory = parent(path)
    disk.rename(aside + ".log", path + ".log")
    disk.sync_directory(directory)
    disk.rename(aside + ".side", path + ".side")
    disk.sync_directory(directory)


async def _on_disk(
    disk: Disk, wanted: Wanted, work: Callable[[], T], undo: Callable[[T], None] | None = None
) -> T:
    try:
        return await run_to_end(disk, work, undo)
    except OSError as error:
        raise StorageFailed(
            f"segment {wanted.identity.key} cannot be copied to {disk.location}: {error}",
            hint="Check free space and the kernel's log on this node; the copy is tried again.",
        ) from error


# Filling.


async def _fill(
    disk: Disk, clock: Clock, wanted: Wanted, state: OpenedLog, source: Source, bytes_per_second: int
) -> Copied:
    throttle = Throttle(bytes_per_second)
    growing = _GrowingLog(wanted, state, source.name)
    started = state.position
    while state.end_offset < wanted.end_offset:
        data = await source.read(state.end_offset, CHUNK_BYTES)
        await _on_disk(disk, wanted, lambda data=data: growing.append(data))  # type: ignore[misc]
        if state.end_offset < wanted.end_offset:
            await throttle.passed(len(data))
    await _on_disk(disk, wanted, growing.finish)
    return _copied(state, state.position - started)


class _GrowingLog:
    """The blocking half: checks what came, writes it, and syncs it now and then."""

    def __init__(self, wanted: Wanted, state: OpenedLog, source_name: str) -> None:
        self._wanted = wanted
        self._state = state
        self._source_name = source_name
        self._synced = state.position

    def append(self, data: Bytes) -> None:
        state = self._state
        headers = self._checked(data)
        try:
            state.file.write([data], state.position)
        except OSError:
            with contextlib.suppress(OSError):  # a part of it may be there: recovery would cut it too
                cut_log(state.file, state.position)
            raise
        for header in headers:
            state.take(header)
        if state.position - self._synced >= CHECKPOINT_INTERVAL_BYTES:
            self._sync()

    def finish(self) -> None:
        """Nothing more comes: give reserved space back, make all of it durable, and quick to open."""
        state = self._state
        if state.file.size() > state.position:
            cut_log(state.file, state.position)
        self._sync()

    def _sync(self) -> None:
        self._state.file.sync()
        if self._state.position > self._synced:
            self._synced = self._state.position
            self._state.checkpoint()

    def _checked(self, data: Bytes) -> list[FrameHeader]:
        """The frames that came, if each of them is intact and has its place right here."""
        if not len(data):
            raise self._wrong(self._state.end_offset, "it sent nothing")
        run = check_run(data, self._wanted.identity.uid, self._state.end_offset, self._wanted.end_offset)
        if run.ends_because:
            raise self._wrong(run.end_offset, run.ends_because)
        return run.headers

    def _wrong(self, offset: int, reason: str) -> CorruptFrame:
        identity = self._wanted.identity
        return CorruptFrame(
            f"{self._source_name} sent no good frame of segment {identity.key} (uid {identity.uid}) for "
            f"offset {offset}: {reason}",
            hint=_SOURCE_HINT,
        )
