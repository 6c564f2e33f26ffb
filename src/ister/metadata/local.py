"""Metadata of a single node: a journal of commands and a snapshot, in the node's own directory.

Fault model: the process may stop at any line; the disk keeps what was synced, and may tear or rot.

The journal is a segment of the log engine: each command is a frame, its index the frame's offset. A
command is applied and answered after it is durable. A snapshot is the whole state at an index, written
aside, synced and renamed; the journal that it replaces is removed only after that. Opening reads the
snapshot and applies the journal behind it; nothing is consumed by that, so any number of restarts see the
same. A damaged snapshot or journal is an error, never an empty state.

The journal's file has space reserved ahead, so that a full disk can still seal and trim (P5). A failed
write or sync of it stops the node (P1): `on_fatal`.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count

from ister.errors import CorruptSegment, IsterError, StorageFailed
from ister.frame import FrameHeader, crc32c, decode_header, encode, frames_in
from ister.io.clock import Clock
from ister.io.disk import Disk, read_whole, write_whole
from ister.metadata.commands import AnyCommand, Outcome, decode_command, encode_command
from ister.metadata.state import ClusterState
from ister.metadata.store import Watcher
from ister.wal.group_commit import FlushJob, GroupCommit
from ister.wal.leases import Leases
from ister.wal.recovery import Recovered, SegmentIdentity, create, recover
from ister.wal.segment import FsyncPolicy, Segment
from ister.wal.tail import HotTail

log = logging.getLogger("ister.metadata")

DIRECTORY = "metadata"
SNAPSHOT_EVERY = 10_000
RESERVE_BYTES = 1024 * 1024

_SNAPSHOT = struct.Struct("<4sIQ")
_MAGIC = b"ISTS"


class LocalMetadata:
    """A `MetadataStore` of one node."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        commits: GroupCommit,
        *,
        on_fatal: Callable[[IsterError], None],
        snapshot_every: int = SNAPSHOT_EVERY,
    ) -> None:
        self.state = ClusterState()
        self._disk = disk
        self._clock = clock
        self._commits = commits
        self._on_fatal = on_fatal
        self._snapshot_every = snapshot_every
        self._leases = Leases(clock)
        self._watchers: list[Watcher] = []
        self._tokens = count(1)
        self._proposals: dict[int, tuple[AnyCommand, asyncio.Future[Outcome]]] = {}
        self._journal: Segment | None = None
        self._snapshot_index = 0
        self._snapshot_due = snapshot_every
        self._rotating: asyncio.Task[None] | None = None
        self._hot = HotTail(0)

    async def open(self) -> None:
        recovered, identity, commands = await self._disk.run(self._load)
        for command in commands:
            self.state.apply(self.state.applied_index + 1, command)
        log.info(
            "metadata recovered",
            extra={
                "fields": {
                    "snapshot_index": self._snapshot_index,
                    "applied_index": self.state.applied_index,
                    "topics": len(self.state.topics),
                    "cut_bytes": recovered.cut_bytes,
                }
            },
        )
        if recovered.cut_bytes:
            log.warning(
                "recovery cut %d bytes of the metadata journal after index %d: %s",
                recovered.cut_bytes,
                self.state.applied_index,
                recovered.cut_reason,
            )
        self._use(identity, recovered)

    def _load(self) -> tuple[Recovered, SegmentIdentity, list[AnyCommand | None]]:
        self._disk.make_directory(DIRECTORY)
        # What is seen may be a killed process's, and not durable yet; it is about to be relied on (P2).
        self._disk.sync_directory(DIRECTORY)
        if self._disk.exists(f"{DIRECTORY}/snapshot"):
            self.state = _decode_snapshot(read_whole(self._disk, f"{DIRECTORY}/snapshot"))
        self._snapshot_index = self.state.applied_index
        self._snapshot_due = self._snapshot_index + self._snapshot_every
        identity = _identity(self.state.applied_index + 1)
        if not self._disk.exists(identity.path + ".log"):
            if self._snapshot_index or any(n.endswith(".log") for n in self._disk.list(DIRECTORY)):
                raise CorruptSegment(
                    f"the metadata journal {identity.path}.log is missing",
                    hint="Restore the data directory's metadata folder from a copy.",
                )
            return _create_journal(self._disk, identity), identity, []
        recovered = recover(self._disk, identity, [], 0)
        for name in self._disk.list(DIRECTORY):
            # Journals that a snapshot covers, or that a crash left before their snapshot was there.
            if name.startswith("journal-") and not identity.path.endswith(name.rpartition(".")[0]):
                self._disk.remove(f"{DIRECTORY}/{name}")
        _reserve(recovered)
        data = recovered.file.read(recovered.position, 0)
        return recovered, identity, [_command(frame.records()[0].value) for frame in frames_in(data)]

    def _use(self, identity: SegmentIdentity, recovered: Recovered) -> None:
        self._leases.replace(frozenset({identity.key}))
        self._journal = Segment(
            identity,
            recovered,
            owner=self,
            leases=self._leases,
            commits=self._commits,
            tail=self._hot.of_segment(),
            policy=FsyncPolicy.FSYNC,
        )

    def watch(self, watcher: Watcher) -> None:
        self._watchers.append(watcher)

    async def propose(self, command: AnyCommand) -> Outcome:
        while self._rotating is not None:
            await asyncio.shield(self._rotating)
        assert self._journal is not None
        frame = bytearray(encode([encode_command(command)]))
        header = decode_header(frame)
        assert isinstance(header, FrameHeader)
        token = next(self._tokens)
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._proposals[token] = (command, future)
        try:
            now = self._clock.monotonic()
            self._journal.append(frame, header, self._clock.now_us(), self, token, now)
        except IsterError:
            del self._proposals[token]
            raise
        # Whoever asked may be gone before the answer; the command is in the journal and applied all the same.
        return await future

    # The journal's sink and owner.

    def appended(self, token: int, base_offset: int, append_time_us: int) -> None:
        """Durable: apply, tell the watchers, answer. In the order of the journal, by its own promise."""
        command, future = self._proposals.pop(token)
        outcome = self.state.apply(base_offset, command)
        for watcher in self._watchers:
            watcher(command, outcome)
        if not future.done():
            future.set_result(outcome)

    def refused(self, token: int, error: IsterError) -> None:
        _, future = self._proposals.pop(token)
        if not future.done():
            future.set_exception(error)

    def committed(self, segment: Segment) -> None:
        if self.state.applied_index >= self._snapshot_due and self._rotating is None:
            self._rotating = asyncio.get_running_loop().create_task(self._rotate())

    def failed(self, segment: Segment, job: FlushJob) -> None:
        error = StorageFailed(
            f"the metadata journal cannot be written: {job.error}",
            hint="The node stops. Free space or repair the disk, then start it again.",
        )
        segment.fail(error)
        self._on_fatal(error)

    def stopped(self, segment: Segment) -> None:
        """Nothing to do: `failed` has said it all."""

    # Snapshots.

    async def _rotate(self) -> None:
        """Snapshot, then a new journal behind it, then the old one goes. Proposals wait meanwhile."""
        try:
            old = self._journal
            assert old is not None
            while not old.is_idle:
                if old.failure is not None:
                    return
                await asyncio.sleep(0.001)
            index, data = self.state.applied_index, _encode_snapshot(self.state)
            identity = _identity(index + 1)

            def work() -> Recovered:
                recovered = _create_journal(self._disk, identity)
                with ExitStack() as undone:
                    undone.callback(recovered.file.close)
                    undone.callback(recovered.side.close)
                    write_whole(self._disk, f"{DIRECTORY}/snapshot", data)
                    undone.pop_all()
                return recovered

            try:
                recovered = await self._disk.run(work)
            except OSError as error:
                await self._snapshot_failed(old, identity, data, error)
                return
            self._snapshot_index = index
            self._snapshot_due = index + self._snapshot_every
            self._use(identity, recovered)
            old.close()
            await self._disk.run(lambda: self._remove_journal(old.identity))
        except OSError as error:
            log.warning("a metadata journal was not removed, the next start tries again: %s", error)
        finally:
            self._rotating = None

    async def _snapshot_failed(
        self, old: Segment, unused: SegmentIdentity, data: bytes, error: OSError
    ) -> None:
        """If the new snapshot may be in place, the next start begins behind it, and would not look at what
        the old journal gets from now on: then this node stops (P1). Else the old journal goes on."""
        try:
            seen = await self._disk.run(lambda: self._visible_snapshot())
        except OSError:
            seen = data
        if seen != data:
            log.warning("metadata snapshot was not written, it is tried again later: %s", error)
            self._snapshot_due = self.state.applied_index + max(1, self._snapshot_every // 10)
            await self._disk.run(lambda: self._remove_journal(unused))
            return
        fault = StorageFailed(
            f"the metadata snapshot may or may not be durable: {error}",
            hint="The node stops. Check the disk, then start it again; nothing is lost.",
        )
        old.fail(fault)
        self._on_fatal(fault)

    def _visible_snapshot(self) -> bytes:
        path = f"{DIRECTORY}/snapshot"
        return read_whole(self._disk, path) if self._disk.exists(path) else b""

    def _remove_journal(self, identity: SegmentIdentity) -> None:
        self._disk.remove(identity.path + ".log")
        self._disk.remove(identity.path + ".side")

    async def close(self) -> None:
        if self._rotating is not None:
            await asyncio.wait([self._rotating])
        if self._journal is not None:
            self._journal.close()


def _identity(first_index: int) -> SegmentIdentity:
    path = f"{DIRECTORY}/journal-{first_index:016d}"
    return SegmentIdentity(f"metadata:{first_index}", first_index, first_index, path)


def _create_journal(disk: Disk, identity: SegmentIdentity) -> Recovered:
    recovered = create(disk, identity, [], 0)
    _reserve(recovered)
    return recovered


def _reserve(recovered: Recovered) -> None:
    """Space ahead for the journal (P5). Without it the node still starts: it may be what makes room."""
    try:
        recovered.file.allocate(recovered.position + RESERVE_BYTES)
        recovered.file.sync()
    except OSError as error:
        log.warning("no space could be reserved for the metadata journal: %s", error)


def _command(value: bytes | None) -> AnyCommand | None:
    return decode_command(value or b"")


def _encode_snapshot(state: ClusterState) -> bytes:
    payload = state.to_bytes()
    return _SNAPSHOT.pack(_MAGIC, crc32c(payload), len(payload)) + payload


def _decode_snapshot(data: bytes) -> ClusterState:
    hint = "Restore the data directory's metadata folder from a copy."
    if len(data) < _SNAPSHOT.size:
        raise CorruptSegment(f"the metadata snapshot has only {len(data)} bytes", hint=hint)
    magic, crc, size = _SNAPSHOT.unpack_from(data)
    payload = data[_SNAPSHOT.size :]
    if magic != _MAGIC or len(payload) != size or crc32c(payload) != crc:
        raise CorruptSegment("the metadata snapshot does not match its checksum", hint=hint)
    return ClusterState.from_bytes(payload)
