"""Measure subscriptions: python -m bench.subscriptions.measure [MODE ...]

Each on a broker of its own, with the clients in this process (except in `delivery`). `exclusive`, `shared`
and `key_shared` consume what is there already, in batches of frames that are decoded to Arrow, each
acknowledged as a whole; the clock stops when everything is consumed and its acknowledgement is stored.
`delivery` publishes so many records a second, each by itself, and takes the time from there until its
consumer has it; every record is synced before it is delivered. `idle` is what a broker uses for subscriptions
that nobody publishes to, each with a consumer that waits.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

import ister
from bench.machine import processor_seconds
from bench.subscriptions.asked import SHARERS, SIZE
from bench.subscriptions.delivery import measure_delivery
from ister.bench.figures import rounded
from ister.bench.session import run_loop
from ister.bench.target import Target, own_broker, peak_rss_bytes, scratch_directory
from ister.bench.workload import records_like
from ister.client.log import Log

IN_FLIGHT: Final = 8
"""Batches, while a topic is filled."""
KEYS: Final = 1000
IDLE: Final = 1000
IDLE_CLIENTS: Final = 20


def whole(records: int, batch: int) -> int:
    """So many as fill batches, some of them at a time."""
    at_once = batch * IN_FLIGHT
    return max(records // at_once, 1) * at_once


async def fill(log: Log, topic: str, records: int, batch: int, keys: Sequence[bytes] | None) -> None:
    values = records_like(0, batch, SIZE)
    await log.create_topic(topic, segment_records=1_000_000)
    for _ in range(0, records, batch * IN_FLIGHT):
        await asyncio.gather(*(log.append(topic, values, keys=keys) for _ in range(IN_FLIGHT)))


async def consume(target: Target, kind: str, consumers: int, records: int, batch: int) -> float:
    """Seconds from the first request to the last acknowledgement that is stored."""
    names = [b"key-%d" % (number % KEYS) for number in range(batch)] if kind == "key-shared" else None
    async with AsyncExitStack() as stack:
        logs = [await stack.enter_async_context(ister.connect(target.bootstrap)) for _ in range(consumers)]
        topic = f"{kind}-{time.monotonic_ns()}"
        await fill(logs[0], topic, records, batch, names)
        await logs[0].create_subscription(topic, "bench", kind=kind, start="earliest")
        left, done = records, asyncio.Event()

        async def take(log: Log) -> None:
            nonlocal left
            async with log.subscribe(topic, "bench", window=20_000) as subscription:
                while (found := await subscription.next()) is not None:
                    left -= sum(part.num_rows for part in found.to_arrow(["value"]))
                    await found.ack()
                    if not left:
                        done.set()

        began = time.perf_counter()
        tasks = [asyncio.create_task(take(log)) for log in logs]
        await done.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # what is acknowledged is stored on leaving
        return time.perf_counter() - began


async def measure_consuming(target: Target, mode: str, part: int, repeats: int) -> dict[str, float]:
    kind, consumers, records, batch = CONSUMING[mode]
    records = whole(records // part, batch)
    await consume(target, kind, consumers, whole(records // 4, batch), batch)
    rates = [records / await consume(target, kind, consumers, records, batch) for _ in range(repeats)]
    return {"records_per_s": round(median(rates)), "repeats": repeats}


async def measure_idle(target: Target, count: int, seconds: float) -> dict[str, float]:
    assert target.process_id is not None
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(ister.connect(target.bootstrap))
        for number in range(count // 100):
            await first.create_topic(f"idle-{number}")
        clients = [
            await stack.enter_async_context(ister.connect(target.bootstrap)) for _ in range(IDLE_CLIENTS)
        ]
        before = _rss_bytes(target.process_id)
        for number in range(count):
            log = clients[number % len(clients)]
            await stack.enter_async_context(log.subscribe(f"idle-{number % (count // 100)}", f"s-{number}"))
        await asyncio.sleep(5)
        used, began = processor_seconds(target.process_id), time.perf_counter()
        await asyncio.sleep(seconds)
        part = (processor_seconds(target.process_id) - used) / (time.perf_counter() - began)
        grown = peak_rss_bytes(target.process_id) - before
    return {"cpu_percent": rounded(part * 100), "rss_grown_mb": rounded(grown / 1e6)}


def _rss_bytes(process_id: int) -> int:
    pages = int(Path(f"/proc/{process_id}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


CONSUMING: Final = {
    "exclusive": ("exclusive", 1, 5_000_000, 1000),
    "shared": ("shared", SHARERS, 5_000_000, 1000),
    "shared-small": ("shared", SHARERS, 1_000_000, 100),
    "key-shared": ("key-shared", SHARERS, 500_000, 1000),
}
"""By mode: the kind, how many consumers, of how many records, and how many of them the producer had put into
a batch. One of up to 16 KiB is shared out among all consumers, a larger one goes to one of them."""
MODES: Final = (*CONSUMING, "delivery", "idle")


def measure_subscriptions(modes: Sequence[str], part: int, repeats: int) -> dict[str, Any]:
    """By name in the results. `part`: of how much of the work only one part is to be done."""
    results: dict[str, Any] = {}
    for mode in modes:
        with scratch_directory() as directory, own_broker(directory) as target:
            name = mode.replace("-", "_")
            match mode:
                case "delivery":
                    results[name] = run_loop(measure_delivery(target, max(20 / part, 2))).fields()
                case "idle":
                    results[name] = run_loop(measure_idle(target, IDLE, max(20 / part, 5)))
                case _:
                    results[name] = run_loop(measure_consuming(target, mode, part, repeats))
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("modes", nargs="*", choices=[*MODES, []], default=[])
    parser.add_argument("--part", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    print(json.dumps(measure_subscriptions(asked.modes or MODES, asked.part, asked.repeats), indent=2))
