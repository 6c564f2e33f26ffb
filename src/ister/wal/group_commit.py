"""Group commit: one write and one sync per dirty file and cycle (P4), while the next cycle collects.

A cycle takes what every dirty segment has queued and flushes it in worker threads; what is appended
meanwhile waits for the next cycle. Under load the cycles grow by themselves, and the cost of a sync is
shared by all that arrived during the previous one.

When a single small write is all there is and recent syncs were short, the cycle runs on the event loop:
the hop to a thread and back costs as much as the disk does. A slow disk or a large write never does.

A failed write or sync is told to the segment with the error; nothing is retried here (P1).
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ister.io.clock import monotonic
from ister.io.disk import Disk
from ister.wal.metrics import WalMetrics
from ister.wal.tail import Bytes

if TYPE_CHECKING:
    from ister.wal.segment import Segment

log = logging.getLogger("ister.wal.commit")

INLINE_BYTES = 32 * 1024
INLINE_SYNC_SECONDS = 0.0005
FILES_PER_WORKER = 8
WORKERS = 4


@dataclass(slots=True)
class FlushJob:
    """What one cycle does for one segment. Made and finished on the loop; `run` may be in a thread."""

    segment: Segment
    buffers: Sequence[Bytes]
    position: int
    end_offset: int
    end_position: int
    sync: bool
    allocate: int = 0
    side_block: bytes | None = None
    error: OSError | None = None
    during_sync: bool = False
    sync_seconds: float = 0.0

    def run(self) -> None:
        file = self.segment.file
        try:
            if self.allocate:
                self._reserve()
            if self.buffers:
                file.write(self.buffers, self.position)
            if self.sync:
                self.during_sync = True
                started = monotonic()
                file.sync()
                self.sync_seconds = monotonic() - started
        except OSError as error:
            self.error = error
            return
        except Exception as error:  # a defect, but one that must not leave producers waiting for ever
            log.exception("flush of %s failed", self.segment.identity.key)
            self.error = OSError(errno.EIO, f"{type(error).__name__}: {error}")
            return
        if self.side_block is not None:
            self._write_side_block(self.side_block)

    def _reserve(self) -> None:
        try:
            self.segment.file.allocate(self.allocate)
        except OSError as error:
            # Space ahead is a convenience; the write itself will say whether there is room.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EOPNOTSUPP, errno.EINVAL, errno.EFBIG):
                raise

    def _write_side_block(self, block: bytes) -> None:
        try:
            self.segment.write_side_block(block)
        except OSError as error:
            # Costs the next recovery a longer scan, and no record: the log itself is durable.
            log.warning("checkpoint of %s was not written: %s", self.segment.identity.key, error)


class GroupCommit:
    def __init__(
        self,
        disk: Disk,
        *,
        interval_ms: int = 200,
        after_cycle: Callable[[], None] | None = None,
    ) -> None:
        self.metrics = WalMetrics()
        self._disk = disk
        self._interval = interval_ms / 1000
        self.after_cycle = after_cycle
        self._dirty: list[Segment] = []
        self._unsynced: dict[str, Segment] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._scheduled = False
        self._running: asyncio.Task[None] | None = None
        self._recent_sync = 0.0
        self._loop = asyncio.get_running_loop()

    @property
    def is_idle(self) -> bool:
        return not self._dirty and self._running is None

    def submit(self, segment: Segment) -> None:
        """This segment has something queued. Many calls before the next turn of the loop are one cycle."""
        self._dirty.append(segment)
        if not self._scheduled and self._running is None:
            self._scheduled = True
            self._loop.call_soon(self._start_cycle)

    def _start_cycle(self) -> None:
        self._scheduled = False
        if self._running is not None:
            return  # the `interval` timer came first; one cycle at a time, or a later one may commit first
        dirty, self._dirty = self._dirty, []
        jobs = [job for segment in dirty if (job := segment.take()) is not None]
        if not jobs:
            self._call_after_cycle()
            return
        if not self._may_run_inline(jobs):
            self._running = self._loop.create_task(self._run_cycle(jobs))
        elif jobs[0].segment.replication is not None:
            # In the next turn of the loop: what was sent to the other replicas leaves in this one.
            self._running = self._loop.create_task(self._run_inline(jobs))
        else:
            self.metrics.inline.add()
            jobs[0].run()
            self._finish(jobs)

    async def _run_inline(self, jobs: list[FlushJob]) -> None:
        self._running = None
        self.metrics.inline.add()
        jobs[0].run()
        self._finish(jobs)

    def _may_run_inline(self, jobs: list[FlushJob]) -> bool:
        return (
            len(jobs) == 1
            and self._recent_sync < INLINE_SYNC_SECONDS
            and jobs[0].side_block is None
            and jobs[0].end_position - jobs[0].position <= INLINE_BYTES
        )

    async def _run_cycle(self, jobs: list[FlushJob]) -> None:
        try:
            workers = min(WORKERS, -(-len(jobs) // FILES_PER_WORKER))
            shares = [jobs[worker::workers] for worker in range(workers)]
            if workers == 1:
                await self._disk.run(lambda: self._run_share(jobs))
            else:
                await asyncio.gather(
                    *(self._disk.run(lambda share=share: self._run_share(share)) for share in shares)  # type: ignore[misc]
                )
        finally:
            self._running = None
        self._finish(jobs)

    def _run_share(self, jobs: list[FlushJob]) -> None:
        for job in jobs:
            job.run()

    def _finish(self, jobs: list[FlushJob]) -> None:
        frames = 0
        for job in jobs:
            if job.error is not None:
                self.metrics.failures.add()
            if job.sync:
                self._recent_sync += (job.sync_seconds - self._recent_sync) / 8
                self.metrics.sync_seconds.observe(job.sync_seconds)
            frames += len(job.buffers)
            try:
                job.segment.flushed(job)
            except Exception:
                # A defect in one who was told; the other segments of this cycle must hear all the same.
                log.exception("telling of the flush of %s failed", job.segment.identity.key)
            if job.segment.unsynced:
                self._sync_later(job.segment)
        self.metrics.group_size.observe(frames)
        self._call_after_cycle()
        if self._dirty and not self._scheduled and self._running is None:
            self._scheduled = True
            self._loop.call_soon(self._start_cycle)

    def _call_after_cycle(self) -> None:
        if self.after_cycle is not None:
            self.after_cycle()

    # The `interval` policy.

    def _sync_later(self, segment: Segment) -> None:
        self._unsynced[segment.identity.key] = segment
        if self._timer is None:
            self._timer = self._loop.call_later(self._interval, self._sync_unsynced)

    def _sync_unsynced(self) -> None:
        self._timer = None
        if self._running is not None:
            self._timer = self._loop.call_later(self._interval / 10, self._sync_unsynced)
            return
        segments, self._unsynced = list(self._unsynced.values()), {}
        jobs = [job for segment in segments if (job := segment.take(sync=True)) is not None]
        if jobs:
            self._running = self._loop.create_task(self._run_cycle(jobs))

    async def stop(self) -> None:
        """Flush what is queued, sync what is not, and stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._dirty or self._unsynced or self._running is not None:
            if self._running is not None:
                await asyncio.wait([self._running])
            elif self._dirty:
                self._start_cycle()
            else:
                self._sync_unsynced()
