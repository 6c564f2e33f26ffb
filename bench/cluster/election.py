"""kill -9 of the node that leads the metadata, while others append and metadata is written all the time.

Each run kills the leader and watches for a few seconds. A topic is made every 20 ms through the nodes that
are left: metadata is writable again when the first one that was begun after the kill is done. Meanwhile lone
records are appended to a topic of each of the two other nodes: they need no metadata (promise 6), and their
latencies beside those before the kill show whether anything interrupted them. The topics have one replica,
so that nothing but the metadata is lost with the node: `bench.replication.failover` is about the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

import ister
from bench.cluster.calls import BIN_SECONDS, Call, binned
from bench.cluster.nodes import ClusterProcesses, NodeProcess, running_cluster
from bench.cluster.topics import topics_by_leader
from ister.bench.figures import percentile, rounded
from ister.bench.raw import now
from ister.bench.session import run_loop
from ister.errors import IsterError

BEFORE_SECONDS: Final = 1.0
AFTER_SECONDS: Final = 3.0
WRITE_EVERY_SECONDS: Final = 0.02
APPEND_EVERY_SECONDS: Final = 0.005
RECORD: Final = b"." * 100

Fields = dict[str, Any]


@dataclass
class Run:
    """What clients saw around one kill."""

    killed: int
    killed_at: float = 0.0
    writes: list[Call] = field(default_factory=list)
    appends: dict[int, list[Call]] = field(default_factory=dict)
    """By the node that leads the topic."""
    errors: list[str] = field(default_factory=list)

    @property
    def writable_s(self) -> float:
        """From the kill to the end of the first write that was begun after it."""
        return min(call.ended for call in self.writes if call.began >= self.killed_at) - self.killed_at

    def appends_before(self) -> list[float]:
        """Seconds of those that were answered before the kill."""
        return [call.seconds for call in self._appends() if call.ended < self.killed_at]

    def appends_meanwhile(self) -> list[float]:
        """Seconds of those that were under way while nobody led the metadata, in part or in whole."""
        again = self.killed_at + self.writable_s
        return [
            call.seconds for call in self._appends() if call.ended >= self.killed_at and call.began <= again
        ]

    def _appends(self) -> Iterator[Call]:
        return (call for calls in self.appends.values() for call in calls)

    def longest_silence(self, start: float, end: float) -> float:
        """The longest time without an acknowledgement, on either topic, between two times."""
        longest = 0.0
        for calls in self.appends.values():
            ends = [call.ended - self.killed_at for call in calls]
            marks = [start, *(at for at in ends if start < at < end), end]
            longest = max(longest, *(after - before for before, after in pairwise(marks)))
        return longest


async def watch_one_kill(cluster: ClusterProcesses, topics: dict[int, str], number: int) -> Run:
    leader = (await cluster.wait_whole()).leader
    survivors = {node_id: node for node_id, node in cluster.nodes.items() if node_id != leader}
    run = Run(leader)
    over = asyncio.Event()
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        for node_id, node in survivors.items():
            log = await stack.enter_async_context(ister.connect(node.address))
            run.appends[node_id] = []
            group.create_task(_append(log, topics[node_id], run, run.appends[node_id], over))
        group.create_task(_write(list(survivors.values()), number, run, over))
        await asyncio.sleep(BEFORE_SECONDS)
        run.killed_at = now()
        await asyncio.to_thread(cluster.nodes[leader].kill)
        await asyncio.sleep(AFTER_SECONDS)
        over.set()
    await asyncio.to_thread(cluster.nodes[leader].start)
    return run


async def _append(log: ister.Log, topic: str, run: Run, calls: list[Call], over: asyncio.Event) -> None:
    while not over.is_set():
        await _timed(lambda: log.append(topic, [RECORD]), calls, run)
        await asyncio.sleep(APPEND_EVERY_SECONDS)


async def _write(nodes: Sequence[NodeProcess], number: int, run: Run, over: asyncio.Event) -> None:
    """Begin one every so often, whether or not those before it are done."""
    bootstrap = ",".join(node.address for node in nodes)
    async with ister.connect(bootstrap) as log, asyncio.TaskGroup() as group:
        written = 0
        while not over.is_set():
            written += 1
            name = f"writes-{number}-{written}"
            group.create_task(_timed(lambda name=name: log.create_topic(name, replicas=1), run.writes, run))  # type: ignore[misc]
            await asyncio.sleep(WRITE_EVERY_SECONDS)


async def _timed(call: Callable[[], Awaitable[object]], calls: list[Call], run: Run) -> None:
    began = now()
    try:
        await call()
    except IsterError as error:
        run.errors.append(f"{error.code}: {error}")
    else:
        calls.append(Call(began, now()))


def measure_election(directory: Path, runs: int) -> Fields:
    async def measure(cluster: ClusterProcesses) -> list[Run]:
        await cluster.wait_whole()
        topics = await topics_by_leader(cluster, "appends", replicas=1)
        return [await watch_one_kill(cluster, topics, number) for number in range(runs)]

    with running_cluster(directory, {"log_level": "warning"}) as cluster:
        return summarise_runs(run_loop(measure(cluster)))


def summarise_runs(runs: Sequence[Run]) -> Fields:
    writable = sorted(run.writable_s for run in runs)
    meanwhile = sorted(s for run in runs for s in run.appends_meanwhile())
    before = sorted(s for run in runs for s in run.appends_before())
    silences = [run.longest_silence(0.0, run.writable_s) for run in runs]
    shown = min(runs, key=lambda run: abs(run.writable_s - median(writable)))
    return {
        "runs": len(runs),
        "p50_s": rounded(median(writable)),
        "max_s": rounded(writable[-1]),
        "over_2_s": sum(seconds > 2 for seconds in writable),
        "append_p50_ms": rounded(median(meanwhile) * 1000),
        "append_p99_ms": rounded(percentile(meanwhile, 0.99) * 1000),
        "append_max_ms": rounded(meanwhile[-1] * 1000),
        "append_silence_max_ms": rounded(max(silences) * 1000),
        "append_before_p50_ms": rounded(median(before) * 1000),
        "append_before_p99_ms": rounded(percentile(before, 0.99) * 1000),
        "append_before_max_ms": rounded(before[-1] * 1000),
        "errors": sum(len(run.errors) for run in runs),
        "timeline": timeline_of(shown),
    }


def timeline_of(run: Run) -> Fields:
    """One run for a picture."""
    start, seconds = run.killed_at - BEFORE_SECONDS, BEFORE_SECONDS + AFTER_SECONDS
    return {
        "killed_node": run.killed,
        "writable_s": rounded(run.writable_s),
        "start_s": -BEFORE_SECONDS,
        "bin_s": BIN_SECONDS,
        "appends_ms": {
            f"node {node}": binned(calls, start, seconds) for node, calls in sorted(run.appends.items())
        },
        "writes_ms": binned(run.writes, start, seconds),
    }
