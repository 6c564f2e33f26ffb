"""One run of a bench against one broker: its topics, its repetitions, the memory that was seen.

Topics are named by a token, so that a bench on a broker that serves others meets none of theirs, and are
deleted at the end of the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import ister
from ister.bench.figures import Fields, Repetition, summarise
from ister.bench.load import Phase
from ister.bench.raw import raw_file, time_writes
from ister.bench.target import Target
from ister.bench.workload import Workload
from ister.client.log import Log
from ister.io.clock import SystemClock

T = TypeVar("T")
Settings = dict[str, Any]
"""Of the topics that are made for a bench."""


class Session:
    def __init__(self, target: Target, log: Log, work: Workload, settings: Settings) -> None:
        self.target = target
        self.log = log
        self.work = work
        self._settings = settings
        self._name = f"bench-{SystemClock().token():016x}"
        self._made = 0
        self._topics: list[str] = []
        self._sampled_rss = 0

    async def new_topic(self, **needed: int | str) -> str:
        """With the settings that were asked for, and those that the mode cannot do without."""
        name = f"{self._name}-{self._made}"
        self._made += 1
        self._topics.append(name)
        settings: Settings = {"segment_records": 1_000_000, **self._settings, **needed}
        await self.log.create_topic(name, **settings)
        return name

    async def drop_topics(self) -> None:
        topics, self._topics = self._topics, []
        for topic in topics:
            await self.log.delete_topic(topic)

    async def measure(self, phase: Callable[[], Awaitable[Phase]]) -> Repetition:
        """A phase, and right after it the bare loop for the same bytes, in cycles of the size that the
        broker's had on average."""
        before = await self._syncs()
        done = await phase()
        cycle = round(done.frame_bytes / max(await self._syncs() - before, 1))
        with raw_file(self.target.directory) as file:
            raw_seconds = sum(time_writes(file, done.frame_bytes, cycle))
        return Repetition(done.records, done.record_bytes, done.seconds, done.latencies, raw_seconds, cycle)

    async def _syncs(self) -> float:
        """How often the broker has synced a segment; its memory is looked at on the way."""
        stats = await self.log.stats()
        self._sampled_rss = max(self._sampled_rss, stats.rss_bytes)
        return stats.metrics["fsync_duration_seconds_count"]

    @property
    def rss_bytes(self) -> int:
        return self.target.peak_rss_bytes(self._sampled_rss)

    async def report(self, repetitions: Sequence[Repetition], **more: float | int | str) -> Fields:
        await self._syncs()
        work = self.work
        asked: Fields = {"records": work.total_records, "size": work.size, "batch": work.batch_records}
        if self._settings:
            asked["settings"] = " ".join(f"{name}={value}" for name, value in self._settings.items())
        return {**summarise(repetitions, self.rss_bytes), **more, **asked}


@asynccontextmanager
async def open_session(target: Target, work: Workload, settings: Settings) -> AsyncIterator[Session]:
    async with ister.connect(target.bootstrap) as log:
        session = Session(target, log, work, settings)
        try:
            yield session
        finally:
            if target.process_id is None:
                await session.drop_topics()  # a broker of the bench's own goes with its directory


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """On uvloop where it is installed, as a program that cares would."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
