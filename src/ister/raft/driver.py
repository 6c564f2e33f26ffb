"""The Raft core at work: its messages on the wire, its log on the disk, its entries applied.

One task writes: it takes every Ready that has come up since, appends and syncs them in a worker thread, and
only then reports them durable and lets the messages go that promise it (R1). While it syncs, the next ones
gather: group commit, as everywhere in this house. Everything else happens on the event loop, at once.

Fault model: the core's and the storage's. A failed write or sync, a broken invariant, an entry that cannot be
applied: each stops the node through `on_fatal`; nothing here goes on after it (P1).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from ister.errors import IsterError, NotLeader, Overloaded, RequestTimeout, StorageFailed
from ister.io.disk import Disk
from ister.raft.config import RaftConfig
from ister.raft.core import RaftCore, RaftStatus
from ister.raft.durable import DurableStorage
from ister.raft.membership import MembershipChange
from ister.raft.messages import AnyMessage, Entry, EntryKind, decode_message, encode_message
from ister.raft.ready import Accepted, Ready, Refusal, Refused, Role, SoftState
from ister.raft.storage import SnapshotHandle, StoredState

log = logging.getLogger("ister.raft")

TICK_SECONDS = 0.05
SNAPSHOT_EVERY = 10_000
KEPT_BEHIND_SNAPSHOT = 1_000
"""Entries left in the log for followers that are a little behind: cheaper than a snapshot."""


class StateMachine(Protocol):
    """What is replicated. Deterministic: it sees the same entries in the same order on every node (R3)."""

    def apply(self, index: int, data: bytes) -> Any:
        """The result is for whoever proposed this entry here."""
        ...

    def skip(self, index: int) -> None:
        """An entry that is Raft's own: its index passes, and nothing else changes."""
        ...

    def to_bytes(self) -> bytes: ...

    def restore(self, data: bytes) -> None: ...


@dataclass(slots=True)
class _Waiting:
    term: int
    future: asyncio.Future[Any]


class RaftNode:
    """One member of a Raft group, with its disk. `send` may drop what it cannot deliver."""

    def __init__(
        self,
        config: RaftConfig,
        disk: Disk,
        machine: StateMachine,
        *,
        random: Random,
        send: Callable[[int, bytes], None],
        on_fatal: Callable[[IsterError], None],
        on_soft_state: Callable[[SoftState], None] | None = None,
        snapshot_every: int = SNAPSHOT_EVERY,
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        self.storage = DurableStorage(disk)
        self.core: RaftCore
        self.leader_changes = 0
        self._config = config
        self._disk = disk
        self._machine = machine
        self._random = random
        self._send = send
        self._on_fatal = on_fatal
        self._on_soft_state = on_soft_state
        self._snapshot_every = snapshot_every
        self._tick_seconds = tick_seconds
        self._proposals: dict[int, _Waiting] = {}
        self._reads: list[tuple[int, asyncio.Future[None]]] = []
        self._applied_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._queue: list[Ready] = []
        self._work = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped = False
        self._soft = SoftState(Role.FOLLOWER, 0, 0)

    # Starting and stopping.

    async def start(self, bootstrap: StoredState | None = None) -> None:
        """Load and begin to take part. `bootstrap` makes an empty disk that of a founding member (I1)."""
        stored = await self._disk.run(self.storage.load)
        if bootstrap is not None:
            await self._disk.run(lambda: self.storage.seed(bootstrap))
            stored = bootstrap
        if stored.snapshot is not None:
            self._machine.restore(stored.snapshot.read(0, stored.snapshot.size))
        self.core = RaftCore(self._config, stored, self._random)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._tick()), loop.create_task(self._write())]
        self._pump()

    async def stop(self) -> None:
        self._halt(IsterError("the node is stopping"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._disk.run(self.storage.close)

    def _halt(self, error: IsterError) -> None:
        self._stopped = True
        waiting = [entry.future for entry in self._proposals.values()]
        waiting += [future for _, future in (*self._reads, *self._applied_waiters)]
        self._proposals.clear()
        self._reads.clear()
        self._applied_waiters.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(NotLeader(f"metadata is not served here any more: {error.message}"))

    def _fail(self, error: IsterError) -> None:
        if not self._stopped:
            self._halt(error)
            self._on_fatal(error)

    # What others ask of it.

    @property
    def is_leader(self) -> bool:
        return self._soft.role is Role.LEADER

    @property
    def leader(self) -> int:
        """Who leads, as far as this node knows; 0 if it does not."""
        return self._soft.leader

    def status(self) -> RaftStatus:
        return self.core.status()

    def receive(self, data: bytes) -> None:
        """A message from a peer."""
        if not self._stopped:
            self.core.step(decode_message(data))
            self._pump()

    async def propose(self, data: bytes, timeout: float) -> Any:
        """Commit and apply; returns the machine's result. Only on the leader; raises `NotLeader` else."""
        return await self._await_entry(self._accepted(self.core.propose(data)), timeout)

    async def change_membership(self, change: MembershipChange, timeout: float) -> None:
        await self._await_entry(self._accepted(self.core.propose_membership(change)), timeout)

    def transfer_leadership(self, to: int) -> None:
        refused = self.core.transfer_leadership(to)
        if refused is not None:
            raise self._refusal(refused)
        self._pump()

    async def read_index(self, timeout: float) -> None:
        """Returns once this leader's state has everything that was committed when it was called."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refused = self.core.read_index(future)
        if refused is not None:
            raise self._refusal(refused)
        self._pump()
        await self._with_timeout(future, timeout, "confirming leadership")

    async def wait_applied(self, index: int, timeout: float) -> None:
        """Returns once this node has applied up to `index` (H3)."""
        if self.core.applied_index >= index:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._applied_waiters.append((index, future))
        await self._with_timeout(future, timeout, f"applying metadata up to index {index}")

    def _accepted(self, answer: Accepted | Refused) -> Accepted:
        if isinstance(answer, Refused):
            raise self._refusal(answer)
        return answer

    def _refusal(self, refused: Refused) -> IsterError:
        overloaded = (Refusal.TOO_MUCH_UNCOMMITTED, Refusal.TOO_MANY_READS)
        kind = Overloaded if refused.reason in overloaded else NotLeader
        return kind(f"metadata: {refused.reason.value}")

    async def _await_entry(self, accepted: Accepted, timeout: float) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._proposals[accepted.index] = _Waiting(accepted.term, future)
        self._pump()
        try:
            return await self._with_timeout(future, timeout, f"committing index {accepted.index}")
        finally:
            waiting = self._proposals.get(accepted.index)
            if waiting is not None and waiting.future is future:
                del self._proposals[accepted.index]

    async def _with_timeout(self, future: asyncio.Future[Any], timeout: float, what: str) -> Any:
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError as error:
            raise RequestTimeout(
                f"{what} took longer than {timeout:.1f} s",
                hint="The cluster may have no majority. `ister cluster status` on several nodes tells.",
            ) from error

    # The loop's side.

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._tick_seconds)
            if not self._stopped:
                self.core.tick()
                self._pump()

    def _pump(self) -> None:
        """Do all that can be done at once, and leave the writing to the writer."""
        try:
            while not self._stopped and (ready := self.core.ready()) is not None:
                self._carry_out(ready)
        except IsterError as error:
            self._fail(error)

    def _carry_out(self, ready: Ready) -> None:
        if ready.soft_state is not None:
            self._note_soft_state(ready.soft_state)
        for future in ready.aborted_reads:
            assert isinstance(future, asyncio.Future)
            if not future.done():
                future.set_exception(NotLeader("metadata: leadership was lost before the read was confirmed"))
        for read in ready.reads:
            assert isinstance(read.context, asyncio.Future)
            self._reads.append((read.index, read.context))
        self._send_all(ready.messages)
        self._queue.append(ready)
        self._work.set()
        if ready.snapshot is None:
            self._apply(ready.committed)

    def _apply(self, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            result = None
            if entry.kind is EntryKind.COMMAND:
                result = self._machine.apply(entry.index, entry.data)
            else:
                self._machine.skip(entry.index)
            waiting = self._proposals.pop(entry.index, None)
            if waiting is not None and not waiting.future.done():
                if waiting.term == entry.term:
                    waiting.future.set_result(result)
                else:
                    waiting.future.set_exception(NotLeader("metadata: another leader's entry came instead"))
        if entries:
            self.core.applied(entries[-1].index)
        self._wake_applied()

    def _wake_applied(self) -> None:
        applied = self.core.applied_index
        for waiting in (self._reads, self._applied_waiters):
            due = [future for index, future in waiting if index <= applied]
            if due:
                waiting[:] = [item for item in waiting if item[0] > applied]
                for future in due:
                    if not future.done():
                        future.set_result(None)

    def _note_soft_state(self, soft: SoftState) -> None:
        if soft.leader != self._soft.leader and soft.leader:
            self.leader_changes += 1
            log.info("metadata leader", extra={"fields": {"leader": soft.leader, "term": soft.term}})
        self._soft = soft
        if self._on_soft_state is not None:
            self._on_soft_state(soft)

    def _send_all(self, messages: tuple[AnyMessage, ...]) -> None:
        for message in messages:
            self._send(message.to, encode_message(message))

    # The writer's side.

    async def _write(self) -> None:
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                queue, self._queue = self._queue, []
                if queue:
                    await self._write_all(queue)
                if self._snapshot_is_due():
                    await self._take_snapshot()
        except IsterError as error:
            self._fail(error)
        except OSError as error:
            self._fail(StorageFailed(f"metadata cannot be written: {error}"))

    async def _write_all(self, queue: list[Ready]) -> None:
        handles: list[SnapshotHandle] = []

        def work() -> None:
            for ready in queue:
                for chunk in ready.chunks:
                    self.storage.write_chunk(chunk.metadata, chunk.position, chunk.data)
                if ready.snapshot is not None:
                    handles.append(self.storage.install_snapshot(ready.snapshot))
                self.storage.append(ready.hard_state, ready.entries)
            if any(ready.must_sync for ready in queue):
                self.storage.sync()

        if any(ready.chunks or ready.entries or ready.hard_state or ready.snapshot for ready in queue):
            await self._disk.run(work)
        if self._stopped:
            return
        for handle in handles:
            self._machine.restore(handle.read(0, handle.size))
            self.core.snapshot_saved(handle)
            self.core.applied(handle.metadata.index)
        for ready in queue:
            if ready.snapshot is not None:
                self._apply(ready.committed)
        self.core.persisted(queue[-1].number)
        for ready in queue:
            self._send_all(ready.messages_after)
        self._pump()

    def _snapshot_is_due(self) -> bool:
        return self.core.applied_index - self.core.status().snapshot_index >= self._snapshot_every

    async def _take_snapshot(self) -> None:
        metadata = self.core.describe_snapshot(self.core.applied_index)
        data = self._machine.to_bytes()
        behind = max(0, metadata.index - KEPT_BEHIND_SNAPSHOT)

        def work() -> SnapshotHandle:
            handle = self.storage.save_snapshot(metadata, data)
            self.storage.compact(behind)
            return handle

        handle = await self._disk.run(work)
        self.core.snapshot_saved(handle)
        self.core.compact(behind)
        log.info("metadata snapshot", extra={"fields": {"index": metadata.index, "bytes": len(data)}})
