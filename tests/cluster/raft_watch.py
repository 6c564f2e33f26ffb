"""Raft watched from outside while brokers run on it: its five properties, per node and disk (invariant 10).

`WatchedRaft` takes the place of `RaftNode` during a run. After every Ready the checker of `tests.raft` looks
at the core, and after every applied index it compares the state of this node with what any other had there:
the same command came to the same result on all of them, and the chains are equal. Whether a committed entry
is on a quorum of disks is read off the disks themselves: `RaftImage` folds the synced bytes of a journal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec

from ister.frame import HEADER_SIZE, Frame, FrameHeader, decode, decode_header
from ister.raft import Entry, RaftCore, Ready
from ister.raft.driver import RaftNode, StateMachine
from ister.raft.messages import SnapshotMetadata
from ister.raft.snapshot_file import StoredSnapshot
from ister.testing import SimDisk
from ister.testing.history import History
from ister.testing.process import process_of
from tests.raft.memory_storage import MemoryStorage
from tests.raft.properties import Properties, PropertyBroken

_SNAPSHOT_HEADER_BYTES = 20


class RaftImage:
    """What a power cut right now would leave of one member's Raft log."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self.forget()

    def forget(self) -> None:
        """A process died, or came: what lies behind the last good frame may be written anew."""
        self._path = ""
        self._position = 0
        self._terms: dict[int, int] = {}
        self._snapshot_index = 0

    def holds(self, index: int, term: int) -> bool:
        self._refresh()
        return index <= self._snapshot_index or self._terms.get(index) == term

    def _refresh(self) -> None:
        journals = [name for name in self._disk.list("raft") if name.endswith(".log")]
        for name in reversed(journals):
            path = f"raft/{name}"
            if path != self._path and self._frame(path, 0) is None:
                continue  # begun, and not durable yet: an older one counts
            if path != self._path:
                self.forget()
                self._path = path
                self._snapshot_index = self._read_snapshot_index()
            self._fold()
            return

    def _fold(self) -> None:
        while (frame := self._frame(self._path, self._position)) is not None:
            self._position += frame.header.size
            for record in frame.records():
                value = record.value or b""
                if value[:1] == b"E":
                    self._take(msgspec.msgpack.decode(value[1:], type=Entry))

    def _take(self, entry: Entry) -> None:
        last = max(self._terms, default=0)
        for index in range(entry.index, last + 1):
            self._terms.pop(index, None)
        self._terms[entry.index] = entry.term

    def _frame(self, path: str, position: int) -> Frame | None:
        try:
            head = self._disk.durable_bytes(path, position, position + HEADER_SIZE)
            header = decode_header(head) if len(head) == HEADER_SIZE else None
            if not isinstance(header, FrameHeader):
                return None
            frame = decode(self._disk.durable_bytes(path, position, position + header.size))
        except OSError:
            return None
        return frame if isinstance(frame, Frame) else None

    def _read_snapshot_index(self) -> int:
        try:
            data = self._disk.durable_bytes("raft/snapshot", 0, 4096)
        except OSError:
            return 0
        size = int.from_bytes(data[8:12], "little")
        encoded = data[_SNAPSHOT_HEADER_BYTES : _SNAPSHOT_HEADER_BYTES + size]
        metadata = msgspec.msgpack.decode(encoded, type=SnapshotMetadata)
        assert StoredSnapshot.data_start(metadata) == _SNAPSHOT_HEADER_BYTES + size
        return metadata.index


def is_dead() -> bool:
    """Whether this code runs in a process that was killed: what its last turns do reaches nobody."""
    process = process_of(None)
    return process is not None and not process.alive


class _Properties(Properties):
    def _check_completeness(self, core: RaftCore) -> None:
        """A node whose votes arrive late leads an old term for a moment: it owes nothing to newer ones."""
        if max(self.leaders) == core.term:
            super()._check_completeness(core)


class RaftWatch:
    """The memory of one cluster's Raft group, over all lives of all members."""

    def __init__(self, history: History, disk_of: Callable[[int], SimDisk]) -> None:
        self.properties = _Properties()
        self.applied_index = 0
        """The highest that any node has applied: committed for certain."""
        self._history = history
        self._disk_of = disk_of
        self._images: dict[int, RaftImage] = {}
        self._results: dict[int, object] = {}

    def joined(self, member: int) -> None:
        """A process of this member begins."""
        image = self._images.get(member)
        if image is None:
            self._images[member] = RaftImage(self._disk_of(member))
        else:
            image.forget()
        self.properties.forget(member)

    def handled(self, raft: RaftNode, ready: Ready) -> None:
        if is_dead():
            return
        try:
            self.properties.check_written(raft.core, ready.entries)
            self.properties.check_node(raft.core, cast(dict[int, MemoryStorage], self._images))
        except PropertyBroken as error:
            self._history.violated(f"invariant 10: {error}")

    def applied(self, member: int, index: int, result: object, state: bytes) -> None:
        if is_dead():
            return
        self.applied_index = max(self.applied_index, index)
        digest = hash(state)
        if self.properties.digests.setdefault(index, digest) != digest:
            self._history.violated(f"invariant 10: member {member} has another state after index {index}")
        if self._results.setdefault(index, result) != result:
            self._history.violated(
                f"checker 9: index {index} came to {result} at {member}, to {self._results[index]} elsewhere"
            )

    def restored(self, member: int, index: int, state: bytes) -> None:
        known = self.properties.digests.get(index)
        if known is not None and known != hash(state):
            self._history.violated(f"invariant 10: member {member} restored another state at {index}")


class _WatchedMachine:
    """Stands between Raft's driver and the metadata."""

    def __init__(self, machine: StateMachine, member: int, watch: RaftWatch) -> None:
        self._machine, self._member, self._watch = machine, member, watch

    def apply(self, index: int, data: bytes) -> Any:
        result = self._machine.apply(index, data)
        self._watch.applied(self._member, index, result, self._machine.to_bytes())
        return result

    def skip(self, index: int) -> None:
        self._machine.skip(index)
        self._watch.applied(self._member, index, None, self._machine.to_bytes())

    def to_bytes(self) -> bytes:
        return self._machine.to_bytes()

    def restore(self, data: bytes) -> None:
        self._machine.restore(data)
        state = self._machine.to_bytes()
        self._watch.restored(self._member, msgspec.msgpack.decode(state)[0], state)


def watched_raft(watch: RaftWatch) -> type[RaftNode]:
    """A class to put in the place of `RaftNode` while a cluster is watched."""

    class WatchedRaft(RaftNode):
        def __init__(self, config: Any, disk: Any, machine: StateMachine, **options: Any) -> None:
            super().__init__(config, disk, _WatchedMachine(machine, config.node_id, watch), **options)
            watch.joined(config.node_id)

        def _carry_out(self, ready: Ready) -> None:
            super()._carry_out(ready)
            watch.handled(self, ready)

    return WatchedRaft
