"""A producer at full speed while its topic goes round the nodes: how long it stands still at a rollover.

Every gap between two acknowledgements belongs to the rollover that is nearest to it in offsets: the line is
cut in the middle of each segment, and the longest gap of a piece is the stall of its rollover. So no gap is
left out. The same producer then writes as many records to a topic that does not roll over, cut into pieces
of the same length: the longest gap there is what this machine does to it anyway.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import ister
from bench.cluster.nodes import running_cluster
from ister.bench.figures import Fields, percentile, rounded
from ister.bench.raw import now, raw_file, time_writes
from ister.bench.session import run_loop
from ister.bench.workload import records_like
from ister.errors import IsterError

IN_FLIGHT: Final = 16
RECORD_BYTES: Final = 100
BATCH_RECORDS: Final = 100
SEGMENT_RECORDS: Final = 10_000
NEVER: Final = 1_000_000_000
_LOOK_SECONDS: Final = 0.5
_RAW_WRITES: Final = 200
_RAW_BYTES: Final = 512


class Acknowledged(NamedTuple):
    """When the records before `end_offset` were known to be durable."""

    at: float
    end_offset: int


class Stream(NamedTuple):
    acknowledged: list[Acknowledged]
    errors: list[str]
    seconds: float

    @property
    def records_per_s(self) -> float:
        return len(self.acknowledged) * BATCH_RECORDS / self.seconds


async def produce(log: ister.Log, topic: str, over: asyncio.Event) -> Stream:
    """Batches through `log.append` without a pause, until it is over."""
    batches = [records_like(number, BATCH_RECORDS, RECORD_BYTES) for number in range(4)]
    acknowledged: list[Acknowledged] = []
    errors: list[str] = []

    async def keep_one_waiting(place: int) -> None:
        while not over.is_set():
            try:
                done = await log.append(topic, batches[place % len(batches)])
            except IsterError as error:
                errors.append(f"{error.code}: {error}")
            else:
                acknowledged.append(Acknowledged(now(), done.base_offset + done.count))

    began = now()
    async with asyncio.TaskGroup() as group:
        for place in range(IN_FLIGHT):
            group.create_task(keep_one_waiting(place))
    return Stream(acknowledged, errors, now() - began)


def stalls(acknowledged: Sequence[Acknowledged], boundaries: Sequence[int]) -> list[float]:
    """The longest gap, in seconds, nearest to each boundary between two segments."""
    cuts = [(left + right) / 2 for left, right in pairwise(boundaries)]
    longest = [0.0] * len(boundaries)
    for before, after in pairwise(acknowledged):
        place = bisect_right(cuts, after.end_offset)
        longest[place] = max(longest[place], after.at - before.at)
    return longest


def describe_stalls(seconds: Sequence[float], prefix: str = "") -> Fields:
    ordered = sorted(seconds)
    return {
        f"{prefix}stall_p50_ms": rounded(percentile(ordered, 0.5) * 1000),
        f"{prefix}stall_p99_ms": rounded(percentile(ordered, 0.99) * 1000),
        f"{prefix}stall_max_ms": rounded(ordered[-1] * 1000),
    }


async def rolling(log: ister.Log, rollovers: int) -> tuple[Stream, list[int]]:
    """Until the topic has rolled over so often; returns where it did."""
    await log.create_topic("rolling", segment_records=SEGMENT_RECORDS)
    over = asyncio.Event()
    producing = asyncio.create_task(produce(log, "rolling", over))
    chain = await log.describe_topic("rolling")
    while len(chain.segments) <= rollovers and not producing.done():
        left = rollovers + 1 - len(chain.segments)
        await asyncio.sleep(_LOOK_SECONDS if left > 20 else _LOOK_SECONDS / 10)
        chain = await log.describe_topic("rolling")
    over.set()
    stream = await producing
    chain = await log.describe_topic("rolling")
    return stream, [segment.base_offset for segment in chain.segments[1:]]


async def steady(log: ister.Log, seconds: float) -> Stream:
    """For as long, without a rollover."""
    await log.create_topic("steady", segment_records=NEVER, segment_bytes=1 << 40)
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    return await produce(log, "steady", over)


def measure_rollover(directory: Path, rollovers: int) -> Fields:
    """The stalls of at least so many rollovers, and the same without any."""

    async def measure(bootstrap: str) -> Fields:
        async with ister.connect(bootstrap) as log:
            stream, boundaries = await rolling(log, rollovers)
            beside = await steady(log, stream.seconds)
        end = beside.acknowledged[-1].end_offset
        per_rollover = max(BATCH_RECORDS, round(stream.acknowledged[-1].end_offset / len(boundaries)))
        pieces = list(range(per_rollover, max(end, per_rollover + 1), per_rollover))
        return {
            "rollovers": len(boundaries),
            **describe_stalls(stalls(stream.acknowledged, boundaries)),
            "errors": len(stream.errors),
            "records_per_s": rounded(stream.records_per_s),
            "segment_records": SEGMENT_RECORDS,
            **describe_stalls(stalls(beside.acknowledged, pieces), "steady_"),
            "steady_errors": len(beside.errors),
            "steady_records_per_s": rounded(beside.records_per_s),
        }

    with running_cluster(directory, {"log_level": "warning"}) as cluster:
        asyncio.run(cluster.wait_whole())
        fields = run_loop(measure(cluster.bootstrap))
    with raw_file(directory) as file:
        raw = median(time_writes(file, _RAW_WRITES * _RAW_BYTES, _RAW_BYTES))
    return {**fields, "raw_p50_ms": rounded(raw * 1000), "size": RECORD_BYTES, "batch": BATCH_RECORDS}
