"""From a record's publishing until its consumer has it: python -m bench.subscriptions.delivery PART ...

Publisher, broker and consumer are a process each: where two share one, each waits for the other's work, too.
The publisher looks at the clock once a millisecond and publishes what is due by then, each record by itself.
The timers of event loops count in whole milliseconds: a shorter sleep is none at all, and a publisher that
never sleeps takes a processor from the broker.

Rounds take turns with a bare loop, which makes as many writes and syncs a second, of as many bytes, as the
broker did in the round before. So the disk, and whoever else uses the machine, has its part in both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import struct
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import ister
from bench.machine import busy_seconds, processor_seconds
from bench.subscriptions.asked import RATE, SIZE
from ister.bench.figures import milliseconds, rounded
from ister.bench.raw import raw_file, time_writes
from ister.bench.session import run_loop
from ister.bench.target import Target
from ister.client.gathering import Receipt
from ister.client.log import Log

ROUND_SECONDS: Final = 2.0
WARM_SECONDS: Final = 0.5
"""Of each round, that are not timed: its processes have just begun."""
TICK_SECONDS: Final = 0.001
SAMPLED: Final = 20
"""Of so many records the acknowledgement of one is timed."""
PATIENCE_SECONDS: Final = 60.0
SUBSCRIPTION: Final = "bench"
_STAMP: Final = struct.Struct("<d")


@dataclass
class Times:
    """In seconds, of all rounds together."""

    delivered: list[float] = field(default_factory=list)
    acknowledged: list[float] = field(default_factory=list)
    raw: list[float] = field(default_factory=list)
    late: float = 0.0
    """How late the publisher itself was at worst: that is the load's own doing."""
    others: float = 0.0
    """Of the processors, what neither the broker nor the bench took."""
    took: float = 0.0

    def fields(self) -> dict[str, Any]:
        return {
            **_described("", self.delivered),
            **_described("acknowledged_", self.acknowledged),
            **_described("raw_", self.raw),
            "publisher_late_ms": rounded(self.late * 1000),
            "others_cores": rounded(max(self.others, 0) / self.took),
        }


def _described(prefix: str, seconds: Sequence[float]) -> dict[str, Any]:
    found = {**milliseconds(seconds), "max_ms": rounded(max(seconds) * 1000)}
    return {prefix + name: value for name, value in found.items()}


async def measure_delivery(target: Target, seconds: float, rate: int = RATE, size: int = SIZE) -> Times:
    times = Times()
    async with ister.connect(target.bootstrap) as log:
        for number in range(max(round(seconds / ROUND_SECONDS), 1)):
            await _round(target, log, f"delivery-{number}", rate, size, times)
    return times


async def _round(target: Target, log: Log, topic: str, rate: int, size: int, times: Times) -> None:
    assert target.process_id is not None
    await log.create_topic(topic, segment_records=1_000_000)
    await log.create_subscription(topic, SUBSCRIPTION, kind="exclusive")
    before, own, busy, began = await log.stats(), _own_seconds(target), busy_seconds(), time.perf_counter()
    results = [target.directory / f"{topic}-{part}.json" for part in PARTS]
    publisher_words, consumer_words = (
        [part, target.bootstrap, topic, str(rate), str(size), str(result)]
        for part, result in zip(PARTS, results, strict=True)
    )
    consumer = await _start(consumer_words)
    assert consumer.stdout is not None
    await consumer.stdout.readline()  # it consumes
    publisher = await _start(publisher_words)
    for process in (publisher, consumer):
        await _ended(process)
    published, delivered = (json.loads(result.read_text(encoding="ascii")) for result in results)
    after, seconds = await log.stats(), time.perf_counter() - began
    times.others += busy_seconds() - busy - (_own_seconds(target) - own)
    times.took += seconds
    times.delivered += delivered["seconds"]
    times.acknowledged += published["seconds"]
    times.late = max(times.late, published["late"])
    syncs = after.metrics["fsync_duration_seconds_count"] - before.metrics["fsync_duration_seconds_count"]
    written = after.metrics["bytes_in_total"] - before.metrics["bytes_in_total"]
    times.raw += await asyncio.to_thread(
        _paced_writes, target.directory, round(syncs), round(written / syncs), ROUND_SECONDS + WARM_SECONDS
    )


def _paced_writes(directory: Path, count: int, size: int, seconds: float) -> list[float]:
    """So many writes, each with its sync, at an even pace over the time."""
    took: list[float] = []
    with raw_file(directory) as file:
        began = time.perf_counter()
        for number in range(count):
            time.sleep(max(began + number * seconds / count - time.perf_counter(), 0))
            took += time_writes(file, size, size, position=number * size)
    return took


def _own_seconds(target: Target) -> float:
    assert target.process_id is not None
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return processor_seconds(target.process_id) + sum(one.ru_utime + one.ru_stime for one in used)


async def _start(words: Sequence[str]) -> Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-m", __spec__.name, *words, stdout=PIPE)


async def _ended(process: Process) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        if await process.wait() != 0:
            raise RuntimeError("a process of the bench failed, as it said above")


# The other processes.


def _counts(rate: int) -> tuple[int, int]:
    """How many records in all, and how many of them are not timed."""
    warm = int(rate * WARM_SECONDS)
    return warm + int(rate * ROUND_SECONDS), warm


async def publish(bootstrap: str, topic: str, rate: int, size: int) -> dict[str, Any]:
    (count, warm), rest, late = _counts(rate), bytes(size - _STAMP.size), 0.0
    acknowledged: list[float] = []

    async def await_receipt(receipt: Receipt, began: float) -> None:
        await receipt
        acknowledged.append(time.perf_counter() - began)

    waiting: list[asyncio.Task[None]] = []
    async with ister.connect(bootstrap) as log, log.producer(topic, linger_ms=0) as producer:
        began, sent = time.perf_counter(), 0
        while sent < count:
            due = min(int((time.perf_counter() - began) * rate), count)
            if sent >= warm:
                late = max(late, (due - sent) / rate)
            while sent < due:
                now = time.perf_counter()
                receipt = await producer.submit(_STAMP.pack(now) + rest)
                if sent >= warm and sent % SAMPLED == 0:
                    waiting.append(asyncio.create_task(await_receipt(receipt, now)))
                sent += 1
            await asyncio.sleep(TICK_SECONDS)
        await asyncio.gather(*waiting)
        await producer.flush()
    return {"seconds": acknowledged, "late": late}


async def consume(bootstrap: str, topic: str, rate: int, size: int) -> dict[str, Any]:
    count, warm = _counts(rate)
    took: list[float] = []
    async with ister.connect(bootstrap) as log, log.subscribe(topic, SUBSCRIPTION) as subscription:
        print("ready", flush=True)
        while len(took) < count and (batch := await subscription.next()) is not None:
            values = [record.value for record in batch.records()]
            now = time.perf_counter()  # of the machine, not of the process: the publisher's has the same zero
            took.extend(now - _STAMP.unpack_from(value)[0] for value in values if value)
            await batch.ack()
    return {"seconds": took[warm:]}


PARTS: Final = {"publish": publish, "consume": consume}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("rate", type=int)
    parser.add_argument("size", type=int)
    parser.add_argument("result", type=Path)
    asked = parser.parse_args()
    found = run_loop(PARTS[asked.part](asked.bootstrap, asked.topic, asked.rate, asked.size))
    asked.result.write_text(json.dumps(found), encoding="ascii")
