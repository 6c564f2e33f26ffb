"""Bugs put in on purpose, one at a time, to see that the simulation finds them.

Each is a context manager that changes the product's classes while it is entered. They are the mistakes that
logs really make: the ancestors' own among them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from ister.broker.topic import handoff, log_opening
from ister.broker.topic.handing_off import HandingOff
from ister.broker.topic.topic_log import TopicLog
from ister.errors import IsterError
from ister.io.disk import Disk
from ister.testing.mount import OpenFile
from ister.wal import group_commit, opening
from ister.wal.group_commit import FlushJob
from ister.wal.leases import Leases
from ister.wal.opening import OpenedLog, SegmentIdentity
from ister.wal.producers import ProducerTable
from ister.wal.segment import Segment

Plant = Callable[[], contextlib.AbstractContextManager[Any]]


def acknowledged_before_the_sync() -> contextlib.AbstractContextManager[Any]:
    """D1: an append counts as committed once it is written."""
    take = Segment.take

    def hasty(self: Segment, *, sync: bool = False) -> FlushJob | None:
        job = take(self, sync=sync)
        if job is not None and self.identity.key.startswith("default/"):
            job.sync = False
        return job

    return mock.patch.object(Segment, "take", hasty)


def recovery_serves_what_it_did_not_sync() -> contextlib.AbstractContextManager[Any]:
    """P2: what survived kill -9 in the page cache is served, and lost to the power cut after it."""

    def only_cut(disk: Disk, identity: SegmentIdentity, state: OpenedLog, checkpointed: int) -> None:
        state.file.truncate(state.position)

    return mock.patch.object(opening, "make_durable", only_cut)


def any_damage_is_a_torn_tail() -> contextlib.AbstractContextManager[Any]:
    """P3: corruption in the middle is cut off with all that follows."""
    return mock.patch.object(opening, "_find_proof", lambda *_: None)


def recovery_stops_at_the_first_bad_frame() -> contextlib.AbstractContextManager[Any]:
    """W7: what cannot be read is the end, and nobody is told."""
    return mock.patch.object(opening, "_end_of_log", lambda *_: None)


def the_end_is_taken_before_the_drain() -> contextlib.AbstractContextManager[Any]:
    """W2: the seal's end is what was committed when the handoff began."""
    drain = HandingOff.drain

    async def early(self: HandingOff, open_segment: Segment) -> Any:
        end = open_segment.committed_end
        await drain(self, open_segment)
        self._led.handoff.end_offset = end
        return [handoff.ProposeSeal(end)]

    return mock.patch.object(HandingOff, "drain", early)


def a_lease_is_asked_for_only_once() -> contextlib.AbstractContextManager[Any]:
    """W4: checked when the append arrives, not again before the write."""
    take = Segment.take

    def trusting(self: Segment, *, sync: bool = False) -> FlushJob | None:
        with mock.patch.object(Leases, "holds", lambda *_: True):
            return take(self, sync=sync)

    return mock.patch.object(Segment, "take", trusting)


def producers_are_forgotten_at_a_restart() -> contextlib.AbstractContextManager[Any]:
    """A5: recovery brings the records back, and not who sent them."""
    recover = log_opening.recover

    def forgetful(*args: Any, **options: Any) -> OpenedLog:
        recovered = recover(*args, **options)
        recovered.producers = ProducerTable()
        return recovered

    return mock.patch.object(log_opening, "recover", forgetful)


def a_second_sync_is_believed() -> contextlib.AbstractContextManager[Any]:
    """P1: a failed sync is tried again, and the second one, which has nothing to do, succeeds."""
    sync = OpenFile.sync

    def again(self: OpenFile) -> None:
        try:
            sync(self)
        except OSError:
            sync(self)

    return mock.patch.object(OpenFile, "sync", again)


def offsets_are_assigned_after_an_await() -> contextlib.AbstractContextManager[Any]:
    """D6: the offset is taken in one turn of the loop and the frame queued in another."""
    append = Segment.append

    def later(self: Segment, frame: Any, header: Any, now_us: int, sink: Any, token: int, at: float) -> None:
        if not self.identity.key.startswith("default/"):
            append(self, frame, header, now_us, sink, token, at)
            return
        base = self.end_offset

        async def enqueue() -> None:
            await asyncio.sleep(0.001)
            self.end_offset = max(base, self.committed_end) if base >= self.committed_end else self.end_offset
            try:
                append(self, frame, header, now_us, sink, token, at)
            except IsterError as error:
                sink.refused(token, error)

        self._late = getattr(self, "_late", set())  # type: ignore[attr-defined]
        task = asyncio.get_running_loop().create_task(enqueue())
        self._late.add(task)  # type: ignore[attr-defined]
        task.add_done_callback(self._late.discard)  # type: ignore[attr-defined]

    return mock.patch.object(Segment, "append", later)


def two_cycles_at_once() -> contextlib.AbstractContextManager[Any]:
    """The `interval` timer and a cycle that was about to start do not see each other."""
    start = group_commit.GroupCommit._start_cycle

    def careless(self: group_commit.GroupCommit) -> None:
        running, self._running = self._running, None
        start(self)
        self._running = self._running or running

    return mock.patch.object(group_commit.GroupCommit, "_start_cycle", careless)


def a_closed_segment_is_synced() -> contextlib.AbstractContextManager[Any]:
    """The `interval` timer syncs a segment that was handed off, and the failure hits its successor."""
    take = Segment.take
    failed = TopicLog.failed

    def late(self: Segment, *, sync: bool = False) -> FlushJob | None:
        let_go, self._let_go = self._let_go, False
        try:
            return take(self, sync=sync)
        finally:
            self._let_go = let_go

    def confused(self: TopicLog, broken: Segment, job: FlushJob) -> None:
        led = self.led
        if broken is not led.segment and led.segment is not None and led.handoff.admits:
            self.handing_off.carry_out(led.handoff.step(handoff.StorageBroke(broken.committed_end)))
        else:
            failed(self, broken, job)

    @contextlib.contextmanager
    def both() -> Iterator[None]:
        with mock.patch.object(Segment, "take", late), mock.patch.object(TopicLog, "failed", confused):
            yield

    return both()


FOUND_BY_SEEDS: dict[Plant, int] = {
    acknowledged_before_the_sync: 1,
    the_end_is_taken_before_the_drain: 2,
    producers_are_forgotten_at_a_restart: 3,
    offsets_are_assigned_after_an_await: 2,
    a_closed_segment_is_synced: 5,
}
"""Each with the number of seeds, from 0 on, within which random faults find it."""

FOUND_BY_SCHEDULE: tuple[Plant, ...] = (
    recovery_serves_what_it_did_not_sync,
    any_damage_is_a_torn_tail,
    recovery_stops_at_the_first_bad_frame,
    a_lease_is_asked_for_only_once,
    two_cycles_at_once,
    a_second_sync_is_believed,
)
"""Those that random faults find too seldom: a directed schedule finds each at once."""
