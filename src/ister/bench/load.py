"""Records into topics through `log.append`, the API that a user has, with so many appends in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ister.bench.raw import now
from ister.bench.workload import Workload
from ister.client.log import Log
from ister.frame import encode


@dataclass(frozen=True)
class Phase:
    """What was written, and how long it took; `frame_bytes` is what the broker had to put on its disk."""

    records: int
    record_bytes: int
    frame_bytes: int
    seconds: float
    latencies: list[float]


async def append_batches(
    log: Log, topics: Sequence[str], batches: Sequence[Sequence[bytes]], work: Workload
) -> Phase:
    """Whole batches, to each of the topics in turn."""
    latencies: list[float] = []
    numbers = iter(range(work.batch_count))

    async def keep_one_waiting() -> None:
        for number in numbers:
            values, topic = batches[number % len(batches)], topics[number % len(topics)]
            began = now()
            await log.append(topic, values)
            latencies.append(now() - began)

    began = now()
    async with asyncio.TaskGroup() as group:
        for _ in range(min(work.in_flight, work.batch_count)):
            group.create_task(keep_one_waiting())
    seconds = now() - began
    return describe(work, batches[0], seconds, latencies)


def describe(work: Workload, batch: Sequence[bytes], seconds: float, latencies: list[float]) -> Phase:
    return Phase(
        work.total_records,
        work.total_records * work.size,
        work.batch_count * len(encode(batch)),
        seconds,
        latencies,
    )
