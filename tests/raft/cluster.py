"""A cluster of cores in memory: a driver that keeps the contract of `ister.raft`, disks that lose what was
not synced, and a network that is a bag of encoded messages.

Nothing happens by itself: a schedule (random or directed) ticks, delivers, syncs and crashes.
"""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import dataclass, field
from random import Random

import msgspec

from ister.raft import (
    AnyMessage,
    Entry,
    Membership,
    RaftConfig,
    RaftCore,
    Ready,
    Role,
    SnapshotHandle,
    StoredState,
    bootstrap_state,
    decode_message,
    empty_state,
    encode_message,
)
from tests.raft.memory_storage import MemoryStorage
from tests.raft.properties import Properties, require

SNAPSHOT_PADDING_BYTES = 100
DRAIN_ROUNDS_MAX = 1_000


@dataclass
class PendingWrite:
    ready: Ready
    through: int
    handle: SnapshotHandle | None


@dataclass
class Faults:
    """Planted bugs of a driver."""

    answers_before_sync: bool = False
    snapshot_without_membership: bool = False
    forgets_vote: bool = False


class Node:
    """One node: a core while it runs, and a disk for ever."""

    def __init__(self, cluster: Cluster, node_id: int, stored: StoredState) -> None:
        self.cluster = cluster
        self.id = node_id
        self.storage = MemoryStorage(stored)
        self.core: RaftCore
        self.running = False
        self.start()

    def start(self) -> None:
        stored = self.storage.load()
        config = RaftConfig(node_id=self.id, **self.cluster.settings)
        self.core = self.cluster.core_class(config, stored, self.cluster.random)
        self.running = True
        self.pending: deque[PendingWrite] = deque()
        self.digest = 0
        if stored.snapshot is not None:
            self._restore(stored.snapshot)

    def crash(self, keep_count: int = 0, torn_count: int = 0) -> None:
        self.running = False
        self.storage.crash(keep_count, torn_count)
        self.cluster.properties.forget(self.id)

    def work(self) -> None:
        """Take and do all the work that the core has; writes are queued, not synced."""
        while (ready := self.core.ready()) is not None:
            self._do(ready)
        self.cluster.properties.check_node(self.core, self.cluster.disks)

    def _do(self, ready: Ready) -> None:
        properties = self.cluster.properties
        for read in ready.reads:
            properties.check_read(self.id, read.index, read.context)  # type: ignore[arg-type]
            self.cluster.reads_count += 1
            self.cluster.note(f"{self.id} may answer the read once {read.index} is applied")
        if ready.aborted_reads:
            self.cluster.note(f"{self.id} gives up {len(ready.aborted_reads)} read(s)")
        self.cluster.send(ready.messages)
        for chunk in ready.chunks:
            self.storage.write_chunk(chunk.metadata, chunk.position, chunk.data)
        handle = None
        if ready.snapshot is not None:
            handle = self.storage.install_snapshot(ready.snapshot)
            self._restore(handle)
            self.core.applied(handle.metadata.index)
            self.cluster.installs_count += 1
            self.cluster.note(f"{self.id} installs the snapshot at {handle.metadata.index}")
        properties.check_written(self.core, ready.entries)
        hard_state = ready.hard_state
        if hard_state is not None and self.cluster.faults.forgets_vote:
            hard_state = msgspec.structs.replace(hard_state, vote=0)
        self.storage.append(hard_state, ready.entries)
        self.pending.append(PendingWrite(ready, self.storage.queued_count, handle))
        if self.cluster.faults.answers_before_sync:
            self.cluster.send(ready.messages_after)
        for entry in ready.committed:
            self._apply(entry)
        if ready.committed:
            self.core.applied(ready.committed[-1].index)

    def _apply(self, entry: Entry) -> None:
        self.digest = zlib.crc32(entry.data, zlib.crc32(b"%d %d" % (entry.index, entry.term), self.digest))
        self.cluster.properties.check_applied(self.id, entry, self.digest)

    def _restore(self, handle: SnapshotHandle) -> None:
        self.digest, _ = msgspec.msgpack.decode(handle.read(0, handle.size), type=tuple[int, bytes])
        self.cluster.properties.check_restored(self.id, handle.metadata.index, self.digest)

    def sync(self, count: int | None = None) -> None:
        """The first `count` writes, or all, become durable."""
        done = [self.pending.popleft() for _ in range(len(self.pending) if count is None else count)]
        if not done:
            return
        self.storage.sync(done[-1].through)
        for write in done:
            if write.handle is not None:
                self.core.snapshot_saved(write.handle)
        self.core.persisted(done[-1].ready.number)
        if not self.cluster.faults.answers_before_sync:
            for write in done:
                self.cluster.send(write.ready.messages_after)

    def take_snapshot(self, keep_entries: int) -> None:
        """Save the state machine as it is, and forget all but a few entries before it."""
        metadata = self.core.describe_snapshot(self.core.applied_index)
        newest = self.core.snapshot.metadata.index if self.core.snapshot else 0
        if metadata.index <= newest:
            return
        if self.cluster.faults.snapshot_without_membership:
            metadata = msgspec.structs.replace(metadata, membership=Membership())
        data = msgspec.msgpack.encode((self.digest, bytes(SNAPSHOT_PADDING_BYTES)))
        self.core.snapshot_saved(self.storage.save_snapshot(metadata, data))
        up_to = max(0, metadata.index - keep_entries)
        self.core.compact(up_to)
        self.storage.compact(up_to)


@dataclass
class Cluster:
    """Nodes, the bag of messages between them, and the checker."""

    voters: tuple[int, ...]
    random: Random
    core_class: type[RaftCore] = RaftCore
    settings: dict[str, int] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        self.properties = Properties()
        self.bag: list[tuple[int, int, bytes]] = []
        self.blocked: set[tuple[int, int]] = set()
        self.reads_count = 0
        self.installs_count = 0
        self.disks: dict[int, MemoryStorage] = {}
        self.nodes: dict[int, Node] = {}
        for node_id in self.voters:
            self.add(node_id, bootstrap_state(self.voters))

    def add(self, node_id: int, stored: StoredState | None = None) -> Node:
        """A new node; without a state, one that waits to be added."""
        node = self.nodes[node_id] = Node(self, node_id, stored or empty_state())
        self.disks[node_id] = node.storage
        return node

    @property
    def running(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.running]

    @property
    def leader(self) -> Node | None:
        """The leader of the highest term, if there is one."""
        leaders = [node for node in self.running if node.core.role is Role.LEADER]
        return max(leaders, key=lambda node: node.core.term, default=None)

    def note(self, event: str) -> None:
        """Something that a reader of a transcript wants to see."""

    def send(self, messages: tuple[AnyMessage, ...]) -> None:
        for message in messages:
            if (message.sender, message.to) not in self.blocked:
                self.bag.append((message.sender, message.to, encode_message(message)))

    def deliver(self, place: int, *, keep: bool = False) -> None:
        """Hand over one message of the bag; `keep` leaves it there, to come again."""
        sender, to, encoded = self.bag[place]
        if not keep:
            self.bag[place] = self.bag[-1]
            self.bag.pop()
        self._hand_over(sender, to, encoded)

    def _hand_over(self, sender: int, to: int, encoded: bytes) -> None:
        node = self.nodes.get(to)
        if node is not None and node.running and (sender, to) not in self.blocked:
            node.core.step(decode_message(encoded))
            node.work()

    def part(self, *groups: set[int]) -> None:
        """Cut every connection between nodes of different groups."""
        where = {node: number for number, group in enumerate(groups) for node in group}
        self.blocked = {
            (a, b) for a in self.nodes for b in self.nodes if a != b and where.get(a, -1) != where.get(b, -1)
        }

    def heal(self) -> None:
        self.blocked = set()

    def settle(self, rounds: int = 1, *, tick: bool = True) -> None:
        """Calm weather: everybody ticks, syncs, and gets every message, in order."""
        for _ in range(rounds):
            for node in self.running:
                if tick:
                    node.core.tick()
                node.work()
            self.drain()

    def drain(self) -> None:
        """Deliver and sync until nothing is left to do."""
        for _ in range(DRAIN_ROUNDS_MAX):
            for node in self.running:
                while node.pending:
                    node.sync()
                    node.work()
            if not self.bag:
                return
            batch, self.bag = self.bag, []
            for item in batch:
                self._hand_over(*item)
        require(False, f"liveness: {len(self.bag)} messages after {DRAIN_ROUNDS_MAX} rounds without a tick")
