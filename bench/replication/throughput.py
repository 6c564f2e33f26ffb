"""Batches at full speed into replicated topics: one topic of each node, and one topic alone.

The two take turns, a repetition each, with new topics. One client process shares the machine with three
brokers, so where the processors are the limit, `broker_cores` and `client_cores` say who has them: seconds of
processor for each second of the measured phase. `raw` is the same bytes written and synced three times, in
cycles of the size that the nodes' had on average.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import Final

import ister
from bench.cluster.nodes import ClusterProcesses
from bench.cluster.topics import topics_by_leader
from bench.machine import processor_seconds
from bench.replication.raw import COPIES, time_copies
from ister.bench.figures import Fields, Repetition, rounded, summarise
from ister.bench.load import append_batches
from ister.bench.target import peak_rss_bytes
from ister.bench.workload import Workload

IN_FLIGHT_EACH: Final = 16
"""As in `ister bench append`: 8 on the wire, as many as one producer may have, and 8 ready to follow."""


@dataclass(frozen=True)
class Spent:
    """What the nodes and this process have done up to now."""

    syncs: float
    broker_s: float
    client_s: float


@dataclass(frozen=True)
class Measured:
    """A repetition, and the processors that it took."""

    repetition: Repetition
    broker_cores: float
    client_cores: float


class Throughput:
    def __init__(
        self, cluster: ClusterProcesses, log: ister.Log, nodes: Sequence[ister.Log], directory: Path
    ):
        self._cluster = cluster
        self._log = log
        self._nodes = nodes
        self._directory = directory
        self._numbers = count()

    async def measure(self, work: Workload) -> Fields:
        """In turn: a topic of each node, and one topic. The first time is to warm up."""
        several: list[Measured] = []
        alone: list[Measured] = []
        batches = work.batches()
        for _ in range(1 + work.repeats):
            several.append(await self._on_new_topics(batches, work, len(self._nodes)))
            alone.append(await self._on_new_topics(batches, work, 1))
        alone_fields = self._summary(alone[1:])
        return {
            **self._summary(several[1:]),
            **{f"one_topic_{name}": value for name, value in alone_fields.items() if name in _OF_ONE},
            "topics": len(self._nodes),
            "replicas": COPIES,
            "in_flight": IN_FLIGHT_EACH * len(self._nodes),
            "records": work.total_records,
            "size": work.size,
            "batch": work.batch_records,
        }

    async def _on_new_topics(
        self, batches: Sequence[Sequence[bytes]], work: Workload, count: int
    ) -> Measured:
        found = await topics_by_leader(self._cluster, f"batches-{next(self._numbers)}", COPIES)
        topics = list(found.values())[:count]
        try:
            return await self._repetition(topics, batches, work)
        finally:
            for topic in found.values():  # what is on the disks is bounded, however often it is repeated
                await self._log.delete_topic(topic)

    async def _repetition(
        self, topics: Sequence[str], batches: Sequence[Sequence[bytes]], work: Workload
    ) -> Measured:
        for topic in topics:
            await self._log.append(topic, batches[0])
        before = await self._spent()
        phase = await append_batches(
            self._log, topics, batches, replace(work, in_flight=IN_FLIGHT_EACH * len(topics))
        )
        after = await self._spent()
        cycle = round(COPIES * phase.frame_bytes / max(after.syncs - before.syncs, 1))
        raw_seconds = time_copies(self._directory, phase.frame_bytes, cycle)
        return Measured(
            Repetition(phase.records, phase.record_bytes, phase.seconds, phase.latencies, raw_seconds, cycle),
            (after.broker_s - before.broker_s) / phase.seconds,
            (after.client_s - before.client_s) / phase.seconds,
        )

    async def _spent(self) -> Spent:
        stats = [await node.stats() for node in self._nodes]
        return Spent(
            sum(found.metrics["fsync_duration_seconds_count"] for found in stats),
            sum(processor_seconds(node.process_id) for node in self._cluster.nodes.values()),
            time.process_time(),
        )

    def _summary(self, measured: Sequence[Measured]) -> Fields:
        largest = max(peak_rss_bytes(node.process_id) for node in self._cluster.nodes.values())
        return {
            **summarise([one.repetition for one in measured], largest),
            "broker_cores": rounded(median(one.broker_cores for one in measured)),
            "client_cores": rounded(median(one.client_cores for one in measured)),
        }


_OF_ONE: Final = (
    *("records_per_s", "mb_per_s", "p50_ms", "p99_ms", "p999_ms", "ratio_to_raw", "cycle_bytes"),
    *("raw_mb_per_s", "raw_least_mb_per_s", "raw_most_mb_per_s"),
    *("broker_cores", "client_cores"),
)


async def measure_throughput(
    cluster: ClusterProcesses, directory: Path, works: dict[str, Workload]
) -> dict[str, Fields]:
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(ister.connect(cluster.bootstrap))
        nodes = [
            await stack.enter_async_context(ister.connect(node.address)) for node in cluster.nodes.values()
        ]
        throughput = Throughput(cluster, log, nodes, directory)
        return {name: await throughput.measure(work) for name, work in works.items()}
