"""The Raft core at work: its messages on the wire, its log on the disk, its entries applied.

One task writes: it takes every Ready that has come up since, appends them to the journal, syncs it in a
worker thread, and only then reports them durable and lets the messages go that promise it (R1). While it
syncs, the next ones gather: group commit, as everywhere in this house. Everything else happens on the event
loop: what is proposed or received in one turn of it makes one Ready, in the next.

A snapshot is the state at one index: it is encoded in one go. Its file is written while the journal goes on;
only putting it in place of the last one, and starting the shorter journal behind it, take the writer's turn.

Fault model: the core's and the storage's. A failed write or sync of the journal, a broken invariant, an entry
that cannot be applied: each stops the node through `on_fatal`; nothing here goes on after it (P1). A snapshot
that cannot be written, on a full disk perhaps, is tried again later: the journal has all that it would have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Protocol

from ister.errors import (
    InvariantBroken,
    IsterError,
    MetadataContradicts,
    NotLeader,
    Overloaded,
    ShuttingDown,
    StorageFailed,
)
from ister.io.disk import Disk
from ister.metrics import Counter
from ister.raft.config import RaftConfig
from ister.raft.core import RaftCore, RaftStatus
from ister.raft.durable import STOPS_HINT, DurableStorage
from ister.raft.membership import MembershipChange
from ister.raft.messages import AnyMessage, Entry, EntryKind, SnapshotMetadata, decode_message, encode_message
from ister.raft.ready import Accepted, Ready, Refusal, Refused, Role, SoftState
from ister.raft.snapshot_file import DIRECTORY, WrittenSnapshot
from ister.raft.storage import SnapshotHandle, StoredState
from ister.raft.waiting import Waiting

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
        self.proposals = Counter("raft_proposals_total", "Metadata commands proposed at this node as leader.")
        self._config = config
        self._disk = disk
        self._machine = machine
        self._random = random
        self._send = send
        self._on_fatal = on_fatal
        self._on_soft_state = on_soft_state
        self._snapshot_every = snapshot_every
        self._tick_seconds = tick_seconds
        self._waiting = Waiting()
        self._queue: list[Ready] = []
        self._pump_is_due = False
        self._work = asyncio.Event()
        self._snapshot_task: asyncio.Task[None] | None = None
        self._written_snapshot: WrittenSnapshot | None = None
        self._next_snapshot_try = 0
        self._ticker: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        self.failure: IsterError | None = None
        """Why nothing is served here any more; from then on no call waits for anything."""
        self._stopped = False
        self._soft = SoftState(Role.FOLLOWER, 0, 0)

    # Starting and stopping.

    async def start(
        self,
        bootstrap: StoredState | None = None,
        *,
        may_be_new: bool = True,
        check: Callable[[RaftStatus], Awaitable[None]] | None = None,
    ) -> None:
        """Load and begin to take part. `bootstrap` makes an empty disk that of a founding member (I1).

        An empty disk of a node that is not new is an error: it has forgotten its votes (I2). `check` sees
        what was loaded before anything is added to it; if it raises, nothing is."""
        try:
            await self._load(bootstrap, may_be_new)
            if check is not None:
                await check(self.core.status())
        except BaseException:
            await self._disk.run(self.storage.close)
            raise
        loop = asyncio.get_running_loop()
        self._ticker, self._writer = loop.create_task(self._tick()), loop.create_task(self._write())
        if self.core.membership.voters == (self._config.node_id,):
            self.core.campaign()  # nobody else to wait for
        self._pump()

    async def _load(self, bootstrap: StoredState | None, may_be_new: bool) -> None:
        stored = await self._disk.run(lambda: self.storage.load(may_be_new=may_be_new))
        if bootstrap is not None and self.storage.is_empty:
            await self._disk.run(lambda: self.storage.seed(bootstrap))
            stored = bootstrap
        if stored.snapshot is not None:
            self._machine.restore(stored.snapshot.read(0, stored.snapshot.size))
        self.core = RaftCore(self._config, stored, self._random)

    async def stop(self) -> None:
        """Ends what is being written; a file must not be closed under a thread that writes it."""
        if not self._stopped:
            self._halt(ShuttingDown("the node is stopping"))
        if self._ticker is not None:
            self._ticker.cancel()
        self._work.set()
        tasks = [task for task in (self._ticker, self._writer, self._snapshot_task) if task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._written_snapshot is not None:
            self._written_snapshot.file.close()
        await self._disk.run(self.storage.close)

    def _halt(self, error: IsterError) -> None:
        self._stopped, self.failure = True, error.again()
        self._waiting.end(_over(error))

    def _fail(self, error: IsterError) -> None:
        if not self._stopped:
            self._halt(error)
            self._on_fatal(error)

    # What others ask of it.

    @property
    def is_leader(self) -> bool:
        return self._soft.role is Role.LEADER and not self._stopped

    @property
    def leader(self) -> int:
        """Who leads, as far as this node knows; 0 if it does not."""
        return 0 if self._stopped else self._soft.leader

    def status(self) -> RaftStatus:
        return self.core.status()

    def receive(self, data: bytes) -> None:
        """A message from a peer; raises if it is none."""
        if not self._stopped:
            message = decode_message(data)
            with self._fatal_if_it_fails():
                self.core.step(message)
            self._pump_soon()

    async def propose(self, data: bytes, timeout: float) -> Any:
        """Commit and apply; returns the machine's result. Only on the leader; raises `NotLeader` else."""
        self._check()
        self.proposals.add()
        return await self._await_entry(self._accepted(self.core.propose(data)), timeout)

    async def change_membership(self, change: MembershipChange, timeout: float) -> None:
        self._check()
        await self._await_entry(self._accepted(self.core.propose_membership(change)), timeout)

    def transfer_leadership(self, to: int) -> None:
        refused = self.core.transfer_leadership(to)
        if refused is not None:
            raise self._refusal(refused)
        self._pump_soon()

    async def read_index(self, timeout: float) -> None:
        """Returns once this leader's state has everything that was committed when it was called."""
        self._check()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refused = self.core.read_index(future)
        if refused is not None:
            raise self._refusal(refused)
        self._pump_soon()
        await self._waiting.for_read(future, timeout)

    async def wait_applied(self, index: int, timeout: float) -> None:
        """Returns once this node has applied up to `index` (H3)."""
        if self.core.applied_index >= index:
            return
        self._check()
        await self._waiting.for_index(index, timeout)

    def _check(self) -> None:
        if self.failure is not None:
            raise _over(self.failure)

    def _accepted(self, answer: Accepted | Refused) -> Accepted:
        if isinstance(answer, Refused):
            raise self._refusal(answer)
        return answer

    def _refusal(self, refused: Refused) -> IsterError:
        overloaded = (Refusal.TOO_MUCH_UNCOMMITTED, Refusal.TOO_MANY_READS)
        kind = Overloaded if refused.reason in overloaded else NotLeader
        return kind(f"metadata: {refused.reason.value}")

    async def _await_entry(self, accepted: Accepted, timeout: float) -> Any:
        self._pump_soon()
        return await self._waiting.for_entry(accepted.index, accepted.term, timeout)

    # The loop's side.

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._tick_seconds)
            if not self._stopped:
                with self._fatal_if_it_fails():
                    self.core.tick()
                self._pump()

    def _pump_soon(self) -> None:
        """In the next turn of the loop, for all that comes in this one: one message, one write."""
        if not self._pump_is_due:
            self._pump_is_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Do all that can be done at once, and leave the writing to the writer."""
        self._pump_is_due = False
        with self._fatal_if_it_fails():
            while not self._stopped and (ready := self.core.ready()) is not None:
                self._carry_out(ready)

    @contextmanager
    def _fatal_if_it_fails(self) -> Iterator[None]:
        """The core or the state machine raises only where going on would break a promise."""
        try:
            yield
        except MetadataContradicts as error:
            where = f"the metadata in {self._disk.location}/{DIRECTORY} and that of another node contradict"
            self._fail(MetadataContradicts(f"{where} each other: {error.message}", hint=error.hint))
        except IsterError as error:
            self._fail(error)
        except OSError as error:
            self._fail(StorageFailed(f"the metadata cannot be read or written: {error}", hint=STOPS_HINT))
        except Exception as error:  # a defect; a node that goes on half must not look alive
            log.exception("the metadata node stops")
            self._fail(InvariantBroken(f"metadata: {type(error).__name__}: {error}"))

    def _carry_out(self, ready: Ready) -> None:
        if ready.soft_state is not None:
            self._note_soft_state(ready.soft_state)
        for future in ready.aborted_reads:
            assert isinstance(future, asyncio.Future)
            if not future.done():
                future.set_exception(NotLeader("metadata: leadership was lost before the read was confirmed"))
        for read in ready.reads:
            assert isinstance(read.context, asyncio.Future)
            self._waiting.read_confirmed(read.context, read.index)
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
            self._waiting.entry_applied(entry, result)
        if entries:
            self.core.applied(entries[-1].index)
        self._waiting.applied_up_to(self.core.applied_index)

    def _note_soft_state(self, soft: SoftState) -> None:
        if soft.leader != self._soft.leader and soft.leader:
            self.leader_changes += 1
        self._soft = soft
        if self._on_soft_state is not None:
            self._on_soft_state(soft)

    def _send_all(self, messages: tuple[AnyMessage, ...]) -> None:
        for message in messages:
            self._send(message.to, encode_message(message))

    # The writer's side.

    async def _write(self) -> None:
        with self._fatal_if_it_fails():
            while not self._stopped:
                await self._work.wait()
                self._work.clear()
                queue, self._queue = self._queue, []
                if queue:
                    await self._write_all(queue)
                if self._stopped:
                    return
                written, self._written_snapshot = self._written_snapshot, None
                if written is not None:
                    await self._adopt_snapshot(written)
                elif self._snapshot_task is None and self._snapshot_is_due():
                    self._take_snapshot()

    async def _write_all(self, queue: list[Ready]) -> None:
        handles: list[SnapshotHandle] = []

        def work() -> None:
            for ready in queue:
                for chunk in ready.chunks:
                    self.storage.write_chunk(chunk.metadata, chunk.position, chunk.data)
                if ready.snapshot is not None:
                    handles.append(self.storage.install_snapshot(ready.snapshot))
                self.storage.append(ready.hard_state, ready.entries)
            if must_sync:
                self.storage.sync()

        must_sync = any(ready.must_sync for ready in queue)
        if must_sync or any(ready.chunks for ready in queue):
            await self._disk.run(work)
        else:
            work()  # it only queues a commit index, if anything: no reason to change threads
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
        core = self.core
        if core.applied_index < core.log.base_index:
            return False  # a leader's snapshot is being installed: the state machine is behind the log
        newest = core.snapshot.metadata.index if core.snapshot else 0
        due = max(newest + self._snapshot_every, self._next_snapshot_try)
        return core.applied_index >= due

    def _take_snapshot(self) -> None:
        """Encode the state as it is now; the rest of the work goes on beside the writer."""
        metadata = self.core.describe_snapshot(self.core.applied_index)
        data = self._machine.to_bytes()
        self._snapshot_task = asyncio.get_running_loop().create_task(self._write_snapshot(metadata, data))

    async def _write_snapshot(self, metadata: SnapshotMetadata, data: bytes) -> None:
        with self._fatal_if_it_fails():
            try:
                self._written_snapshot = await self._disk.run(
                    lambda: self.storage.write_snapshot(metadata, data)
                )
            except OSError as error:
                self._snapshot_failed(error)
            self._work.set()

    def _snapshot_failed(self, error: OSError) -> None:
        log.warning("the metadata snapshot was not written, it is tried again later: %s", error)
        self._next_snapshot_try = self.core.applied_index + max(1, self._snapshot_every // 10)
        self._snapshot_task = None

    async def _adopt_snapshot(self, written: WrittenSnapshot) -> None:
        index = written.metadata.index
        behind = max(0, index - KEPT_BEHIND_SNAPSHOT)

        def work() -> SnapshotHandle | None:
            handle = self.storage.adopt_snapshot(written)
            if handle is not None:
                try:
                    self.storage.compact(behind)
                except OSError as error:  # no room for another one, perhaps
                    log.warning("the metadata journal was not shortened, and goes on as it is: %s", error)
            return handle

        try:
            handle = await self._disk.run(work)
        except OSError as error:
            self._snapshot_failed(error)
            return
        self._snapshot_task = None
        if handle is not None:
            self.core.snapshot_saved(handle)
            self.core.compact(behind)
            log.info("metadata snapshot", extra={"fields": {"index": index, "bytes": written.size}})


def _over(error: IsterError) -> NotLeader:
    """For those who ask from elsewhere: another node may serve them. Why it is over is in `failure`."""
    return NotLeader(f"metadata is not served here any more: {error.message}")
