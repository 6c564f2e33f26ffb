"""A segment that this node appends to.

Appending is synchronous (A4): the lease is checked, the offset assigned and the frame queued with no await
between, so that concurrent producers get offsets in the order in which their frames lie in the file. The
queue is made durable by `GroupCommit`, which asks again for the lease before it writes.

Fault model and promise: a write or sync may fail at any time. From then on this object takes nothing more
and acknowledges nothing more. What happens next is the owner's decision: where a disk is full and no other
node can lead, the segment is cut back and opened again through recovery; anything else ends it at
`committed_end` and hands off (P1), or has another replica end it. So there is no state here to repair: it is
dropped. Only when the cut or the seal is durable are the waiting appends told that they were refused: then
they never appear.

`end_offset` is where the next record goes, `durable_end` is how far this disk has it under the topic's fsync
policy, `committed_end` is what readers may see and what was acknowledged. With one replica the two are the
same; with several, `replication` says how far enough of them have it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from ister.errors import IsterError, UnexpectedOffset, invariant
from ister.frame import FrameHeader, stamp
from ister.io.disk import File
from ister.wal.group_commit import FlushJob, GroupCommit
from ister.wal.leases import Leases
from ister.wal.marks import marked
from ister.wal.opening import OpenedLog, SegmentIdentity
from ister.wal.producers import Appended, ProducerTable
from ister.wal.reader import ReadPlan, plan_read, plan_search
from ister.wal.side_file import (
    CHECKPOINT_INTERVAL_BYTES,
    CHECKPOINT_WORTH_BYTES,
    INDEX_INTERVAL_BYTES,
    checkpoint_block,
    write_block,
)
from ister.wal.sink import OnlyIf, Sink, Waiting
from ister.wal.tail import Bytes, TailOfSegment

_ALLOCATE_FIRST = 64 * 1024
_ALLOCATE_MOST = 16 * 1024 * 1024


class FsyncPolicy(Enum):
    """When an append counts as committed. Only the first keeps the promises on power loss (P6)."""

    FSYNC = "fsync"
    INTERVAL = "interval"
    NONE = "none"


class Owner(Protocol):
    """Who is told of what becomes of a segment."""

    def committed(self, segment: Segment) -> None:
        """`committed_end` has grown."""
        ...

    def failed(self, segment: Segment, job: FlushJob) -> None:
        """A write or sync failed. The owner stops the segment, and refuses what waits when it can."""
        ...

    def stopped(self, segment: Segment) -> None:
        """The segment takes nothing more: `failure` says why."""
        ...


class Replication(Protocol):
    """Who brings a segment to its other replicas, and says what is committed."""

    def taken(self, base_offset: int, buffers: Sequence[Bytes], size: int) -> None:
        """These frames are about to be written here."""
        ...

    def own_synced(self) -> None:
        """`durable_end` has grown."""
        ...

    def synced_to(self, end_offset: int) -> list[int]:
        """The other replicas that are known to have synced so much, or more."""
        ...

    def lease_lost(self, error: IsterError) -> None:
        """What is queued may not be written any more."""
        ...


class Segment:
    replication: Replication | None = None
    """Set where the segment has other replicas, before its first append."""

    def __init__(
        self,
        identity: SegmentIdentity,
        recovered: OpenedLog,
        *,
        owner: Owner,
        leases: Leases,
        commits: GroupCommit,
        tail: TailOfSegment,
        policy: FsyncPolicy,
    ) -> None:
        self.identity = identity
        self._key = identity.key
        self._uid = identity.uid
        self.policy = policy
        self.file: File = recovered.file
        self.index = recovered.index
        self.producers: ProducerTable = recovered.producers
        self.end_offset = self.committed_end = self.durable_end = recovered.end_offset
        self.position = self.committed_position = self.durable_position = recovered.position
        self.last_append_time_us = self.committed_append_time_us = recovered.last_append_time_us
        self.tail = tail
        self.failure: IsterError | None = None
        self.queued = False
        self.unsynced = False
        self._owner = owner
        self._leases = leases
        self._commits = commits
        self._side = recovered.side
        self._side_position = recovered.side_position
        self._checkpointed = recovered.position
        self._allocated = max(recovered.position, recovered.file.size())
        self._buffers: list[Bytes] = []
        self._bases: list[int] = []
        self._ends: deque[tuple[int, int]] = deque()
        """Where cycles end that are not committed, as offset and position; only with other replicas."""
        self._waiting: deque[Waiting] = deque()
        self._repeats: list[Waiting] = []
        self._writes = 0
        self._reads = 0
        """How many are under way in other threads."""
        self._settled: asyncio.Future[None] | None = None
        self._index_at = 0
        self._checkpoint_asked = False
        self._closing = False
        self._let_go = False
        self._durable_when_written = recovered.end_offset
        """Up to here the log is durable when the frames that are queued now are written: with `fsync`, all
        that earlier cycles took, since a cycle that fails ends the segment; else the last synced end."""

    # Appending.

    def append(
        self,
        frame: bytearray | memoryview,
        header: FrameHeader,
        now_us: int,
        sink: Sink,
        token: int,
        started: float,
    ) -> None:
        """Give the frame its offsets and queue it, or raise. The sink hears of it when it is committed."""
        if self.failure is not None:
            raise self.failure.again()
        if self._key not in self._leases.held:
            raise self._leases.rejection(self.identity.key)
        count = header.count
        base = self.end_offset
        terms = sink if type(sink) is OnlyIf else None
        if header.producer_id:
            told_index = terms.told_index if terms is not None else 0
            original = self.producers.check(
                header.producer_id, header.sequence, count, self.committed_end, told_index
            )
            if original is not None:
                self._repeat(original, frame, sink, token, started)
                return
        if terms is not None and terms.offset is not None and terms.offset != base:
            raise UnexpectedOffset(
                f"offset {base} is next in {self.identity.key}, not {terms.offset}: nothing was appended"
            )
        time_us = self.last_append_time_us
        if now_us > time_us:  # A6: never back
            self.last_append_time_us = time_us = now_us
        behind = base - self._durable_when_written
        stamp(frame, base, self._uid if not behind else marked(self._uid, behind), time_us)
        if header.producer_id:
            self.producers.record(header.producer_id, header.sequence, count, base, time_us)
        end = base + count
        position = self.position
        if position >= self._index_at:
            self.index.add(base, position, time_us)
            self._index_at = position + INDEX_INTERVAL_BYTES
        self.end_offset = end
        self.position = position + len(frame)
        self._buffers.append(frame)
        self._bases.append(base)
        self._waiting.append((end, sink, token, base, time_us, started, frame))
        if not self.queued:
            self.queued = True
            self._commits.submit(self)

    def _repeat(self, original: Appended, frame: Bytes, sink: Sink, token: int, started: float) -> None:
        """A frame that the log has: answered with its original offsets, once those are committed (A5)."""
        base, time_us = original.base_offset, original.append_time_us
        end = base + original.count
        if end <= self.committed_end:
            sink.appended(token, base, time_us)
        else:
            self._repeats.append((end, sink, token, base, time_us, started, frame))

    # Reading: what lies in memory is in `tail`; the rest is planned here, and read by who holds the file.

    def plan_committed(self, offset: int, max_bytes: int) -> ReadPlan:
        """Frames that readers may see."""
        return self._plan(self.committed_position, self.committed_end, offset, max_bytes)

    def plan_durable(self, offset: int, max_bytes: int) -> ReadPlan:
        """Frames that this disk has, committed or not: for the followers."""
        return self._plan(self.durable_position, self.durable_end, offset, max_bytes)

    def _plan(self, limit: int, limit_offset: int, offset: int, max_bytes: int) -> ReadPlan:
        return plan_read(self._key, self.file, self.index, limit, limit_offset, offset, max_bytes)

    def plan_search(self, time_us: int) -> ReadPlan:
        """Committed frames from a time on."""
        return plan_search(
            self._key, self.file, self.index, self.committed_position, self.committed_end, time_us
        )

    @property
    def is_idle(self) -> bool:
        """Nothing is queued, being written, or waiting for an answer."""
        return not self._waiting and self.committed_end == self.end_offset

    # Flushing: what `GroupCommit` does with it.

    def take(self, *, sync: bool = False) -> FlushJob | None:
        """All that is queued, as a job; None, and everything refused, if the lease went meanwhile (A4)."""
        self.queued = False
        if self.failure is not None or self._let_go:
            # Let go of: what the `interval` policy still wanted synced was synced on the way out.
            return None
        if self._buffers and not self._may_write():
            return None
        buffers, self._buffers = self._buffers, []
        size = sum(map(len, buffers))
        if buffers:
            bases, self._bases = self._bases, []
            self.tail.add(bases, buffers, size)
            if self.replication is not None:
                self._ends.append((self.end_offset, self.position))
                self.replication.taken(bases[0], buffers, size)
        if self.policy is FsyncPolicy.FSYNC:
            self._durable_when_written = self.end_offset
        checkpoint = self._checkpoint_due()
        job = FlushJob(
            segment=self,
            buffers=buffers,
            position=self.position - size,
            end_offset=self.end_offset,
            end_position=self.position,
            sync=sync or self.policy is FsyncPolicy.FSYNC or checkpoint is not None,
            allocate=self._next_allocation(),
            side_block=checkpoint,
        )
        self._writes += 1
        return job

    def _may_write(self) -> bool:
        if self._leases.holds(self.identity.key):
            return True
        if self.replication is not None:
            # What waits may be on other disks: it is not refused, but lost to a recovery.
            self.replication.lease_lost(self._leases.rejection(self.identity.key))
        else:
            self.fail(self._leases.rejection(self.identity.key))
        return False

    def _next_allocation(self) -> int:
        """Reserve space ahead of the log: appends then change no file size, which makes a sync cheaper."""
        if self.position <= self._allocated:
            return 0
        ahead = min(_ALLOCATE_MOST, max(_ALLOCATE_FIRST, self.position))
        self._allocated = self.position + ahead
        return self._allocated

    def _checkpoint_due(self) -> bytes | None:
        grown = self.position - self._checkpointed
        if grown < CHECKPOINT_INTERVAL_BYTES and not (self._checkpoint_asked and grown):
            return None
        self._checkpoint_asked = False
        return self._make_checkpoint()

    def _make_checkpoint(self) -> bytes:
        self._checkpointed = self.position
        return checkpoint_block(
            self.index, self.producers, self.position, self.end_offset, self.last_append_time_us
        )

    def write_side_block(self, block: bytes) -> None:
        """In the worker, after the log it speaks of was synced."""
        self._side_position = write_block(self._side, self._side_position, block)

    def flushed(self, job: FlushJob) -> None:
        """On the loop: the job is done, well or badly."""
        self._writes -= 1
        if job.error is not None:
            self._owner.failed(self, job)
        elif self.failure is None:
            self.unsynced = not job.sync and self.policy is FsyncPolicy.INTERVAL
            if job.sync and self.policy is not FsyncPolicy.FSYNC:
                self._durable_when_written = job.end_offset
            self.durable_end, self.durable_position = job.end_offset, job.end_position
            self._is_durable(job.end_offset, job.end_position)
        self._close_if_idle()

    def _is_durable(self, end_offset: int, end_position: int) -> None:
        if self.replication is None:
            self._commit(end_offset, end_position)
        else:
            self.replication.own_synced()

    def commit_to(self, end_offset: int) -> None:
        """Enough replicas have it up to here: commit what is durable here too, in whole cycles."""
        end_offset = min(end_offset, self.durable_end)
        end: tuple[int, int] | None = None
        while self._ends and self._ends[0][0] <= end_offset:
            end = self._ends.popleft()
        if end is not None and self.failure is None:
            self._commit(*end)

    def _commit(self, end_offset: int, end_position: int) -> None:
        invariant(end_offset >= self.committed_end, "the committed end never goes back")
        if end_offset == self.committed_end:
            return
        self.committed_end, self.committed_position = end_offset, end_position
        waiting = self._waiting
        observe = self._commits.metrics.observe_appends
        observe(waiting, end_offset)
        while waiting and waiting[0][0] <= end_offset:
            _, sink, token, base, time_us, _, _ = waiting.popleft()
            self.committed_append_time_us = time_us
            sink.appended(token, base, time_us)
        if self._repeats:
            self._answer_repeats()
        self._owner.committed(self)

    def _answer_repeats(self) -> None:
        still: list[Waiting] = []
        for waiting in self._repeats:
            end, sink, token, base, time_us, _, _ = waiting
            if end <= self.committed_end:
                sink.appended(token, base, time_us)
            else:
                still.append(waiting)
        self._repeats = still

    def fail(self, error: IsterError) -> None:
        """Take nothing more and refuse all that waits, at once."""
        self.stop(error)
        self.refuse_waiting()

    def stop(self, error: IsterError) -> None:
        """Take nothing more. What waits goes on waiting: it may be on the disk, and must not be called
        refused before it is certain that it will never be read. Readers keep what was committed."""
        if self.failure is None:
            self.failure = error
            self._buffers, self._bases = [], []
            self.tail.clear()
            self._owner.stopped(self)

    def refuse_waiting(self, doubt: IsterError | None = None) -> None:
        """What waits will not be in the log: it was never written, was cut, or lies past the seal.

        Where none of that is certain, `doubt` says so instead.
        """
        error = doubt or self.failure
        assert error is not None
        waiting, repeats = self._waiting, self._repeats
        self._waiting, self._repeats = deque(), []
        for _, sink, token, _, _, _, _ in (*waiting, *repeats):
            sink.refused(token, error.again())

    def settle(self, sealed_end: int) -> list[Waiting]:
        """Somebody else has sealed this segment: what waits below its end is in the log, and is told so. The
        rest is returned in its order, for the next segment; repeats of it too, behind what they repeat
        (H2)."""
        waiting = [*self._waiting, *self._repeats]
        self._waiting, self._repeats = deque(), []
        for end, sink, token, base, time_us, _, _ in waiting:
            if end <= sealed_end:
                sink.appended(token, base, time_us)
        return [one for one in waiting if one[0] > sealed_end]

    def checkpoint_soon(self) -> None:
        """Let the next cycle write a checkpoint, if enough came since the last one to be worth it."""
        if self.failure is None and self.position - self._checkpointed >= CHECKPOINT_WORTH_BYTES:
            self._checkpoint_asked = True
            if not self.queued:
                self.queued = True
                self._commits.submit(self)

    # The way out.

    def final_checkpoint(self) -> Callable[[], None]:
        """The blocking work that makes opening this segment again a matter of one read."""
        if self.failure is not None or self._checkpointed == self.position:
            return lambda: None
        block, position, file = self._make_checkpoint(), self.position, self.file

        def work() -> None:
            file.truncate(position)
            file.sync()
            self.write_side_block(block)

        return work

    def close(self) -> None:
        """Close the files once nothing uses them; once is enough."""
        if not self._let_go:
            self._closing = self._let_go = True
            self._close_if_idle()

    async def settled(self) -> None:
        """Nothing is being written any more. There may be readers: they come and go, and change nothing."""
        while self._writes:
            if self._settled is None or self._settled.done():
                self._settled = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._settled)  # who else waits must not be cancelled with this one

    def hold(self, *, writes: bool = False) -> None:
        """Somebody is about to use the file in another thread."""
        if writes:
            self._writes += 1
        else:
            self._reads += 1

    def release(self, *, writes: bool = False) -> None:
        if writes:
            self._writes -= 1
        else:
            self._reads -= 1
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._writes == 0 and self._settled is not None and not self._settled.done():
            self._settled.set_result(None)
        if self._closing and not self._writes and not self._reads:
            self._closing = False
            self.tail.clear()
            self.file.close()
            self._side.close()
