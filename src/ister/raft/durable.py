"""Raft's log, vote and snapshots on disk: the `Storage` that a node really runs on.

    raft/journal-<number>.log    frames of the log engine, each one `append`: entries and a hard state
    raft/snapshot                the newest snapshot: metadata, data, checksum
    raft/snapshot.new            one that is being written
    raft/incoming                chunks of a snapshot on its way in

The journal is append-only: an entry that replaces a conflicting one is simply written later, and loading
folds the records in order (an entry cuts everything from its index on; the last hard state holds). So
nothing durable is ever overwritten, and loading consumes nothing: any number of restarts see the same.

A frame is all or nothing, which gives the contract's "one call is never seen in part". Compaction writes a
new journal whose first frame is all that is kept; until that frame is durable the old journal counts, and
afterwards the new one does, whichever files a crash leaves behind.

The journal has space reserved ahead, so that a full disk can still seal and trim (P5). A snapshot or a
compaction that finds no room is an `OSError` and changes nothing: the journal goes on as it is.

Fault model: as in `ister.raft.storage`. Damage before a journal's tail, or in the snapshot, is an error that
stops the start: a node that forgets its vote or its log must not come back as the same node (I2, R1).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack

import msgspec

from ister.errors import CorruptFrame, CorruptSegment, StorageFailed, invariant
from ister.frame import FRAME_LIMIT, HEADER_SIZE, FrameHeader, decode_header, encode, frames_in, stamp
from ister.io.disk import Disk, File
from ister.raft.messages import Entry, SnapshotMetadata
from ister.raft.snapshot_file import (
    ASIDE,
    DIRECTORY,
    INCOMING,
    RESTORE_HINT,
    SNAPSHOT,
    StoredSnapshot,
    WrittenSnapshot,
)
from ister.raft.storage import HardState, SnapshotHandle, StoredState, entries_after
from ister.wal.marks import marked, uid_of
from ister.wal.opening import SegmentIdentity, create, recover

log = logging.getLogger("ister.raft.storage")

RESERVE_BYTES = 1024 * 1024
_LEAST_RESERVE_BYTES = 64 * 1024

_ENTRY = b"E"
_HARD_STATE = b"H"
STOPS_HINT = "The node stops. Free space or repair the disk, then start it again."


class DurableStorage:
    """One node's Raft state in its data directory.

    Blocking: the driver calls it in a worker thread, one call after the other, never two at once. Two are
    exceptions: `append` only queues, and `write_snapshot` may run beside everything but itself.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._number = 0
        self._file: File | None = None
        self._position = 0
        self._reserve_at = 0
        self._records = 0
        self._durable_records = 0
        self._queued: list[bytearray] = []
        self._queued_at = 0
        self._broken = False
        self._incoming: tuple[SnapshotMetadata, File, int] | None = None
        # What is kept besides the file, to write a compacted journal without reading the old one.
        self._hard_state = HardState()
        self._entries: list[Entry] = []
        self._snapshot: StoredSnapshot | None = None

    # Loading.

    def load(self, *, may_be_new: bool = True) -> StoredState:
        """What this node knew when it stopped; nothing at all only if it may be new (I2)."""
        self._disk.make_directory(DIRECTORY)
        self._disk.sync_directory(DIRECTORY)  # what is seen may not be durable yet, and is relied on (P2)
        self._disk.remove(INCOMING)
        if self._disk.exists(SNAPSHOT):
            self._snapshot = StoredSnapshot.open(self._disk, SNAPSHOT)
        numbers = self._journals()
        for number in reversed(numbers):
            if self._load_journal(number):
                break
        else:
            if len(numbers) > 1 or self._snapshot is not None or not may_be_new:
                raise CorruptSegment(
                    f"no journal of the metadata in {self._disk.location}/{DIRECTORY} can be read",
                    hint=RESTORE_HINT,
                )
            self._start_journal(1, HardState(), [])
        self._reserve(self._position)
        self._check_snapshot()
        if self._snapshot is not None:
            self._cut_what_the_snapshot_replaced(self._snapshot.metadata)
        for number in numbers:
            if number != self._number:
                self._remove_journal(number)
        return StoredState(self._hard_state, tuple(self._entries), self._snapshot)

    def _check_snapshot(self) -> None:
        """What the journal does not have, the snapshot must: else a file is missing, or an old copy."""
        covered = self._snapshot.metadata.index if self._snapshot is not None else 0
        first, last = (self._entries[0].index, self._entries[-1].index) if self._entries else (covered + 1, 0)
        if first > covered + 1 or self._hard_state.commit > max(covered, last):
            raise CorruptSegment(
                f"the metadata journal in {self._disk.location}/{DIRECTORY} goes on from index {first - 1} "
                f"and knows of {self._hard_state.commit}, the snapshot beside it ends at {covered}",
                hint=RESTORE_HINT,
            )

    def _cut_what_the_snapshot_replaced(self, snapshot: SnapshotMetadata) -> None:
        entries = self._entries
        self._entries = list(entries_after(snapshot, entries))
        end = (entries[-1].index, entries[-1].term) if entries else None
        if end is not None and not self._entries and end != (snapshot.index, snapshot.term):
            # A crash came between a snapshot's installation and the journal behind it. What the snapshot
            # replaced must not be taken for a part of what follows it. (Entries that lead up to it do no
            # harm, and go when there is room for another journal.)
            self._start_journal(self._number + 1, self._hard_state, [])

    def seed(self, state: StoredState) -> None:
        """Make this disk that of a founding member. Only for one that has nothing yet (I1)."""
        fresh = self._hard_state == HardState() and not self._entries and self._snapshot is None
        invariant(fresh, "a disk that has a Raft state is never bootstrapped")
        self.append(state.hard_state, state.entries)
        self.sync()

    @property
    def is_empty(self) -> bool:
        return self._hard_state == HardState() and not self._entries and self._snapshot is None

    def _journals(self) -> list[int]:
        names = [name for name in self._disk.list(DIRECTORY) if name.startswith("journal-")]
        return sorted(int(name[8:24]) for name in names if name.endswith(".log"))

    def _load_journal(self, number: int) -> bool:
        """Fold a journal; False if even its first frame is not there, so that an older one counts."""
        self._check_name(number)
        identity = _identity(number)
        try:
            recovered = recover(self._disk, identity, [], 0)
            recovered.side.close()
            data = recovered.file.read(recovered.position, 0)
            if not data:
                recovered.file.close()
                return False
            for frame in frames_in(data, limit=FRAME_LIMIT):
                for record in frame.records(FRAME_LIMIT):
                    self._fold(record.value or b"")
        except (CorruptSegment, CorruptFrame) as error:
            raise CorruptSegment(
                f"the metadata journal {self._disk.location}/{identity.path}.log: {error.message}",
                hint=RESTORE_HINT,
            ) from error
        if recovered.cut_bytes:
            log.warning(
                "recovery cut %d bytes of the metadata journal: %s", recovered.cut_bytes, recovered.cut_reason
            )
        self._number, self._file, self._position = number, recovered.file, recovered.position
        self._records = self._durable_records = recovered.end_offset
        self._queued_at = self._position
        return True

    def _check_name(self, number: int) -> None:
        """A journal under another's name would be cut as if it were torn."""
        path = _identity(number).path + ".log"
        file = self._disk.open(path)
        try:
            header = decode_header(file.read(HEADER_SIZE, 0), limit=FRAME_LIMIT)
        finally:
            file.close()
        if isinstance(header, FrameHeader) and uid_of(header) != number:
            raise CorruptSegment(
                f"{self._disk.location}/{path} is the metadata journal {uid_of(header)} under another name",
                hint=RESTORE_HINT,
            )

    def _fold(self, record: bytes) -> None:
        kind, body = record[:1], record[1:]
        if kind == _HARD_STATE:
            self._hard_state = msgspec.msgpack.decode(body, type=HardState)
        elif kind == _ENTRY:
            self._take(msgspec.msgpack.decode(body, type=Entry))
        else:
            raise CorruptSegment(
                f"the metadata journal has a record of unknown kind {kind!r}", hint=RESTORE_HINT
            )

    def _take(self, entry: Entry) -> None:
        entries = self._entries
        if entries and entry.index <= entries[-1].index:
            del entries[max(0, entry.index - entries[0].index) :]
        invariant(
            not entries or entry.index == entries[-1].index + 1,
            f"entry {entry.index} does not follow {entries[-1].index if entries else 0}",
        )
        entries.append(entry)

    # Appending.

    def append(self, hard_state: HardState | None, entries: Sequence[Entry]) -> None:
        records = [_ENTRY + msgspec.msgpack.encode(entry) for entry in entries]
        for entry in entries:
            self._take(entry)
        if hard_state is not None:
            self._hard_state = hard_state
            records.append(_HARD_STATE + msgspec.msgpack.encode(hard_state))
        if records:
            self._queue(records)

    def _queue(self, records: list[bytes]) -> None:
        frame = bytearray(encode(records))
        mark = marked(self._number, self._records - self._durable_records)
        stamp(frame, self._records, mark, 0)
        self._records += len(records)
        self._position += len(frame)
        self._queued.append(frame)

    def sync(self) -> None:
        """Write and sync what is queued. After a failure nothing more is taken (P1)."""
        if self._broken:
            raise StorageFailed(
                "the metadata journal failed before, and is not trusted any more", hint=STOPS_HINT
            )
        queued, self._queued = self._queued, []
        start, end, records = self._queued_at, self._position, self._records
        self._queued_at = end
        file = self._file
        assert file is not None
        try:
            if end > self._reserve_at:
                self._reserve(end)
            if queued:
                file.write(queued, start)
            file.sync()
        except OSError as error:
            self._broken = True
            raise StorageFailed(
                f"the metadata journal cannot be written: {error}", hint=STOPS_HINT
            ) from error
        self._durable_records = records

    def _reserve(self, end: int) -> None:
        """Space ahead (P5), as much as can be had; again when half of it is used. Durable with the next sync.
        Without any the node goes on: it may be what makes room."""
        assert self._file is not None
        size = RESERVE_BYTES
        while size >= _LEAST_RESERVE_BYTES:
            try:
                self._file.allocate(end + size)
                break
            except OSError as error:
                full, size = error, size // 2
        if size < RESERVE_BYTES:
            log.warning(
                "%d bytes are reserved for the metadata journal, not %d: %s", size, RESERVE_BYTES, full
            )
        self._reserve_at = end + size // 2

    # Snapshots.

    def write_chunk(self, metadata: SnapshotMetadata, position: int, data: bytes) -> None:
        if position == 0:
            if self._incoming is not None:
                self._incoming[1].close()
            self._disk.remove(INCOMING)
            file = self._disk.open(INCOMING, create=True)
            self._incoming = (metadata, file, StoredSnapshot.data_start(metadata))
        assert self._incoming is not None
        _, file, start = self._incoming
        file.write([data], start + position)

    def install_snapshot(self, metadata: SnapshotMetadata) -> SnapshotHandle:
        invariant(self._incoming is not None, "a snapshot is installed after its chunks")
        assert self._incoming is not None
        _, file, start = self._incoming
        self._incoming = None
        size = file.size() - start
        StoredSnapshot.finish(self._disk, file, INCOMING, metadata, size)
        self._snapshot = StoredSnapshot.open(self._disk, SNAPSHOT)
        self._entries.clear()
        self._start_journal(self._number + 1, self._hard_state, [])
        return self._snapshot

    def save_snapshot(self, metadata: SnapshotMetadata, data: bytes) -> SnapshotHandle:
        handle = self.adopt_snapshot(self.write_snapshot(metadata, data))
        invariant(handle is not None, f"a snapshot at {metadata.index} is older than the one that is there")
        assert handle is not None
        return handle

    def write_snapshot(self, metadata: SnapshotMetadata, data: bytes) -> WrittenSnapshot:
        """Write a snapshot aside, durably. It counts for nothing yet, and touches nothing that does."""
        self._disk.remove(ASIDE)
        file = self._disk.open(ASIDE, create=True)
        with ExitStack() as undo:
            undo.callback(self._disk.remove, ASIDE)
            undo.callback(file.close)
            file.write([*StoredSnapshot.header(metadata, data), data], 0)
            file.sync()
            undo.pop_all()
        return WrittenSnapshot(metadata, len(data), file)

    def adopt_snapshot(self, written: WrittenSnapshot) -> SnapshotHandle | None:
        """Put it in the place of the last one; None if one that is newer was installed meanwhile."""
        metadata = written.metadata
        if self._snapshot is not None and self._snapshot.metadata.index >= metadata.index:
            written.file.close()
            self._disk.remove(ASIDE)
            return None
        try:
            self._disk.rename(ASIDE, SNAPSHOT)
        except OSError:
            written.file.close()
            raise
        self._sync_names()
        start = StoredSnapshot.data_start(metadata)
        self._snapshot = StoredSnapshot(written.file, metadata, start, written.size)
        return self._snapshot

    def compact(self, index: int) -> None:
        durable = self._snapshot.metadata.index if self._snapshot is not None else 0
        invariant(index <= durable, f"entries up to {index} may not go: the snapshot is at {durable}")
        kept = [entry for entry in self._entries if entry.index > index]
        self._start_journal(self._number + 1, self._hard_state, kept, reserve=RESERVE_BYTES)

    def _start_journal(
        self, number: int, hard_state: HardState, entries: list[Entry], *, reserve: int = 0
    ) -> None:
        """A new journal that begins with all that counts; then the old one goes. It has `reserve` bytes
        ahead, or is not made: an old one with a reserve is not given up for a new one without."""
        records = [_ENTRY + msgspec.msgpack.encode(entry) for entry in entries]
        records.append(_HARD_STATE + msgspec.msgpack.encode(hard_state))
        frame = bytearray(encode(records))
        stamp(frame, 0, marked(number, 0), 0)
        file = self._make_journal(number, frame, reserve)
        old_file, old_number = self._file, self._number
        self._number, self._file = number, file
        self._position = self._queued_at = len(frame)
        self._records = self._durable_records = len(records)
        self._queued = []
        self._entries, self._hard_state = entries, hard_state
        self._reserve_at = self._position + reserve // 2
        if old_file is not None:
            old_file.close()
            self._remove_journal(old_number)

    def _make_journal(self, number: int, frame: bytearray, reserve: int) -> File:
        with ExitStack() as undo:
            # A file that is left could be taken for the newest journal by the next start.
            undo.callback(self._sync_names)
            undo.callback(self._remove_journal, number)
            made = create(self._disk, _identity(number), [], 0)
            made.side.close()
            undo.callback(made.file.close)
            if reserve:
                made.file.allocate(len(frame) + reserve)
            made.file.write([frame], 0)
            made.file.sync()
            undo.pop_all()
        return made.file

    def _sync_names(self) -> None:
        try:
            self._disk.sync_directory(DIRECTORY)
        except OSError as error:
            self._broken = True
            raise StorageFailed(
                f"nobody knows which files of the metadata are durable: {error}", hint=STOPS_HINT
            ) from error

    def _remove_journal(self, number: int) -> None:
        path = _identity(number).path
        self._disk.remove(path + ".log")
        self._disk.remove(path + ".side")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._incoming is not None:
            self._incoming[1].close()
            self._incoming = None
        if self._snapshot is not None:
            self._snapshot.close()


def _identity(number: int) -> SegmentIdentity:
    return SegmentIdentity(f"raft:{number}", number, 0, f"{DIRECTORY}/journal-{number:016d}")
