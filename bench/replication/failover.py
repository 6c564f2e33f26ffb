"""kill -9 of the node that leads a topic's open segment, while the topic is written and read.

Each run makes a topic with three replicas and kills the node that leads it. One client that knows all nodes
begins an append every 10 ms, whether or not those before it are done: the topic is writable again when the
first one that was begun after the kill is acknowledged. Another client follows the topic, and a third appends
lone records to a topic of a node that stays. The victim may lead the metadata, too; then an election comes
first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

import ister
from bench.cluster.calls import BIN_SECONDS, Call, binned
from bench.cluster.copies import wait_replicated
from bench.cluster.nodes import ClusterProcesses, running_cluster
from bench.cluster.topics import topics_by_leader
from bench.replication.raw import COPIES
from ister.bench.figures import percentile, rounded
from ister.bench.raw import now
from ister.bench.session import run_loop
from ister.errors import IsterError

BEFORE_SECONDS: Final = 1.0
AFTER_SECONDS: Final = 4.0
LONGEST_SECONDS: Final = 60.0
APPEND_EVERY_SECONDS: Final = 0.01
RECORD: Final = b"." * 100

Fields = dict[str, Any]


@dataclass
class Run:
    """What clients saw around one kill."""

    killed: int
    led_metadata: bool = False
    killed_at: float = 0.0
    appends: list[Call] = field(default_factory=list)
    """To the topic that the killed node led."""
    others: list[Call] = field(default_factory=list)
    """To a topic of another node."""
    arrivals: list[float] = field(default_factory=list)
    """When a reader of the killed node's topic was given something."""
    errors: list[str] = field(default_factory=list)
    resumed: asyncio.Event = field(default_factory=asyncio.Event)

    def appended(self, began: float, ended: float) -> None:
        self.appends.append(Call(began, ended))
        if self.killed_at and began >= self.killed_at:
            self.resumed.set()

    @property
    def resumed_s(self) -> float:
        """From the kill to the end of the first append that was begun after it."""
        return min(call.ended for call in self.appends if call.began >= self.killed_at) - self.killed_at

    @property
    def reader_silence_s(self) -> float:
        """The longest that the reader was given nothing, from the kill on."""
        marks = [self.killed_at, *(at for at in self.arrivals if at > self.killed_at)]
        return max((after - before for before, after in pairwise(marks)), default=0.0)

    def others_meanwhile(self) -> list[float]:
        """Seconds of those that were under way while the topic stood still, in part or in whole."""
        again = self.killed_at + self.resumed_s
        return [call.seconds for call in self.others if call.ended >= self.killed_at and call.began <= again]

    def before(self) -> list[float]:
        return [call.seconds for call in self.appends if call.ended < self.killed_at]


async def watch_one_kill(cluster: ClusterProcesses, number: int) -> Run:
    view = await cluster.wait_whole()
    topics = await topics_by_leader(cluster, f"failover-{number}", replicas=COPIES)
    await wait_replicated(cluster.bootstrap, topics.values(), COPIES)
    # Each node in its turn: which one leads the metadata changes by itself.
    victim = sorted(topics)[number % len(topics)]
    beside = next(node_id for node_id in sorted(topics) if node_id != victim)
    run = Run(victim, led_metadata=victim == view.leader)
    over = asyncio.Event()
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:

        async def connect(bootstrap: str) -> ister.Log:
            return await stack.enter_async_context(ister.connect(bootstrap))

        group.create_task(_append_paced(await connect(cluster.bootstrap), topics[victim], run, over))
        survivor = cluster.nodes[beside].address
        group.create_task(_append_in_turn(await connect(survivor), topics[beside], run, over))
        reading = group.create_task(_read(await connect(cluster.bootstrap), topics[victim], run))
        await asyncio.sleep(BEFORE_SECONDS)
        await asyncio.to_thread(cluster.nodes[victim].kill)
        run.killed_at = (
            now()
        )  # when it is gone: what was begun a moment before may still be acknowledged by it
        await asyncio.sleep(AFTER_SECONDS)
        with suppress(TimeoutError):
            await asyncio.wait_for(run.resumed.wait(), LONGEST_SECONDS)
        over.set()
        reading.cancel()
    if not run.resumed.is_set():
        raise RuntimeError(
            f"{topics[victim]} took no append for {LONGEST_SECONDS:g} s after node {victim} was killed: "
            f"{run.errors[-1:] or 'no error was told'}"
        )
    await asyncio.to_thread(cluster.nodes[victim].start)
    await cluster.wait_whole()
    async with ister.connect(cluster.bootstrap) as log:
        for topic in topics.values():
            await log.delete_topic(topic)
    return run


async def _append_paced(log: ister.Log, topic: str, run: Run, over: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as group:
        while not over.is_set():
            group.create_task(_timed(log, topic, run, run.appended))
            await asyncio.sleep(APPEND_EVERY_SECONDS)


async def _append_in_turn(log: ister.Log, topic: str, run: Run, over: asyncio.Event) -> None:
    while not over.is_set():
        await _timed(log, topic, run, lambda began, ended: run.others.append(Call(began, ended)))
        await asyncio.sleep(APPEND_EVERY_SECONDS)


async def _timed(log: ister.Log, topic: str, run: Run, done: Callable[[float, float], None]) -> None:
    began = now()
    try:
        await log.append(topic, [RECORD])
    except IsterError as error:
        run.errors.append(f"{error.code}: {error}")
    else:
        done(began, now())


async def _read(log: ister.Log, topic: str, run: Run) -> None:
    try:
        async with aclosing(log.read(topic, follow=True).frames()) as frames:
            async for _ in frames:
                run.arrivals.append(now())
    except IsterError as error:
        run.errors.append(f"reader: {error.code}: {error}")


def measure_failover(directory: Path, runs: int) -> Fields:
    async def measure(cluster: ClusterProcesses) -> list[Run]:
        return [await watch_one_kill(cluster, number) for number in range(runs)]

    with running_cluster(directory, {"log_level": "warning"}) as cluster:
        return summarise_runs(run_loop(measure(cluster)))


def summarise_runs(runs: Sequence[Run]) -> Fields:
    resumed = sorted(run.resumed_s for run in runs)
    with_election = sorted(run.resumed_s for run in runs if run.led_metadata)
    others = sorted(s for run in runs for s in run.others_meanwhile())
    before = sorted(s for run in runs for s in run.before())
    silences = sorted(run.reader_silence_s for run in runs)
    shown = min(runs, key=lambda run: abs(run.resumed_s - median(resumed)))
    return {
        "runs": len(runs),
        "p50_s": rounded(median(resumed)),
        "max_s": rounded(resumed[-1]),
        "over_2_s": sum(seconds > 2 for seconds in resumed),
        "seconds": " ".join(f"{run.resumed_s:.2f}{'*' if run.led_metadata else ''}" for run in runs),
        "with_election": len(with_election),
        **({"with_election_p50_s": rounded(median(with_election))} if with_election else {}),
        "reader_silence_p50_s": rounded(median(silences)),
        "reader_silence_max_s": rounded(silences[-1]),
        "append_before_p50_ms": rounded(median(before) * 1000),
        "append_before_p99_ms": rounded(percentile(before, 0.99) * 1000),
        "other_append_p50_ms": rounded(median(others) * 1000),
        "other_append_p99_ms": rounded(percentile(others, 0.99) * 1000),
        "other_append_max_ms": rounded(others[-1] * 1000),
        "errors": sum(len(run.errors) for run in runs),
        "timeline": timeline_of(shown),
    }


def timeline_of(run: Run) -> Fields:
    """One run for a picture."""
    start, seconds = run.killed_at - BEFORE_SECONDS, BEFORE_SECONDS + AFTER_SECONDS
    return {
        "killed_node": run.killed,
        "led_metadata": run.led_metadata,
        "resumed_s": rounded(run.resumed_s),
        "start_s": -BEFORE_SECONDS,
        "bin_s": BIN_SECONDS,
        "appends_ms": binned(run.appends, start, seconds),
        "others_ms": binned(run.others, start, seconds),
    }
