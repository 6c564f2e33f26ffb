"""A durable log in memory that keeps the contract of `ister.raft.storage`, and loses what was not synced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ister.errors import invariant
from ister.raft import Entry, HardState, SnapshotMetadata, StoredState, entries_after


@dataclass(frozen=True)
class MemorySnapshot:
    metadata: SnapshotMetadata
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, position: int, count: int) -> bytes:
        return self.data[position : position + count]


class MemoryStorage:
    """What is on the disk, and the writes that are queued for it."""

    def __init__(self, stored: StoredState) -> None:
        self.hard_state = stored.hard_state
        self.entries = list(stored.entries)
        self.snapshot = stored.snapshot
        self.queued: list[Callable[[], None]] = []
        self._queued_entries: dict[int, Sequence[Entry]] = {}
        self._queued_installs: dict[int, MemorySnapshot] = {}
        self.done_count = 0
        self._aside: tuple[SnapshotMetadata, bytearray] | None = None

    @property
    def queued_count(self) -> int:
        """How many writes were ever queued."""
        return self.done_count + len(self.queued)

    def load(self) -> StoredState:
        if self.snapshot is not None:
            self.entries = list(entries_after(self.snapshot.metadata, self.entries))
        return StoredState(self.hard_state, tuple(self.entries), self.snapshot)

    def append(self, hard_state: HardState | None, entries: Sequence[Entry]) -> None:
        if hard_state is not None or entries:
            self._queued_entries[self.queued_count] = entries
            self.queued.append(lambda: self._append(hard_state, entries))

    def _append(self, hard_state: HardState | None, entries: Sequence[Entry]) -> None:
        if entries:
            base = self.entries[0].index if self.entries else entries[0].index
            invariant(
                entries[0].index <= base + len(self.entries),
                f"a gap on the disk: {entries[0].index} after {base + len(self.entries) - 1}",
            )
            del self.entries[max(0, entries[0].index - base) :]
            self.entries.extend(entries)
        if hard_state is not None:
            self.hard_state = hard_state

    def write_chunk(self, metadata: SnapshotMetadata, position: int, data: bytes) -> None:
        if position == 0:
            self._aside = (metadata, bytearray())
        invariant(
            self._aside is not None and self._aside[0] == metadata and len(self._aside[1]) == position,
            f"a chunk at {position} of the snapshot {metadata.index} does not go on from the last",
        )
        assert self._aside is not None
        self._aside[1].extend(data)

    def install_snapshot(self, metadata: SnapshotMetadata) -> MemorySnapshot:
        invariant(self._aside is not None and self._aside[0] == metadata, "installing what did not arrive")
        assert self._aside is not None
        handle = MemorySnapshot(metadata, bytes(self._aside[1]))
        self._aside = None
        self._queued_installs[self.queued_count] = handle
        self.queued.append(lambda: self._install(handle))
        return handle

    def _install(self, handle: MemorySnapshot) -> None:
        self.snapshot = handle
        self.entries.clear()

    def save_snapshot(self, metadata: SnapshotMetadata, data: bytes) -> MemorySnapshot:
        self.snapshot = MemorySnapshot(metadata, data)
        return self.snapshot

    def compact(self, index: int) -> None:
        def cut() -> None:
            if self.entries:
                del self.entries[: max(0, index + 1 - self.entries[0].index)]

        self.queued.append(cut)

    def sync(self, through: int | None = None) -> None:
        """Do the queued writes; those up to the count `through` if given."""
        count = len(self.queued) if through is None else max(0, through - self.done_count)
        for write in self.queued[:count]:
            write()
            self._queued_entries.pop(self.done_count, None)
            self._queued_installs.pop(self.done_count, None)
            self.done_count += 1
        del self.queued[:count]

    def crash(self, keep_count: int, torn_count: int) -> None:
        """The process is gone. Of what was queued, the first writes had reached the disk, and of the next
        one a part."""
        self.sync(self.done_count + min(keep_count, len(self.queued)))
        torn = self._queued_entries.get(self.done_count, ())
        self._append(None, torn[:torn_count])
        if torn_count:
            # Renamed into place, and no time left to cut the log that it replaces.
            self.snapshot = self._queued_installs.get(self.done_count, self.snapshot)
        self.queued.clear()
        self._queued_entries.clear()
        self._queued_installs.clear()
        self._aside = None

    def holds(self, index: int, term: int) -> bool:
        """Is this entry safe on the disk, as itself or inside the snapshot?"""
        if self.snapshot is not None and self.snapshot.metadata.index >= index:
            return True
        place = index - self.entries[0].index if self.entries else -1
        return 0 <= place < len(self.entries) and self.entries[place].term == term
