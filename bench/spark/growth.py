"""What planning takes where there is much history: `python -m bench.spark.growth --help`.

Topics of a hundredth, a tenth and all of so many gigabytes, in records of 1 MiB that are only zeros and
compress to next to nothing, so that they fit on any disk: as many segments and descriptors as there would be
of other records. And a topic of very many segments, of one record each. Of each topic: how long it takes to
plan a table of all of it, and to count it. Printed is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from bench.machine import machine_facts
from bench.spark.keeping import append_all, keeping_broker, wait_until_kept
from ister import sync
from ister.bench.figures import rounded
from ister.bench.target import scratch_directory
from ister.spark.options import parse_table_options
from ister.spark.source.planning import plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ister.client.log import Log

RECORD_BYTES: Final = 1 << 20
TOGETHER: Final = 4
"""Records of one append."""
SEGMENT_BYTES: Final = 256 << 20
PARTS: Final = (100, 10, 1)
_IN_FLIGHT: Final = 8
_CORES: Final = 2


async def zeros(topic: str, count: int, log: Log) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    values = [bytes(RECORD_BYTES)] * TOGETHER
    for _ in range(count // TOGETHER):
        yield partial(log.append, topic, values, compression="zstd")


async def alone(topic: str, count: int, log: Log) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    for number in range(count):
        yield partial(log.append, topic, [b"%d" % number])


def measure_topic(spark: SparkSession, bootstrap: str, topic: str, repeats: int) -> dict[str, Any]:
    segments = wait_until_kept(bootstrap, topic)
    options = parse_table_options({"bootstrap.servers": bootstrap, "subscribe": topic})
    planned: list[float] = []
    for _ in range(repeats):
        began = time.perf_counter()
        parts = plan(options, _CORES)
        planned.append(time.perf_counter() - began)
    reader = spark.read.format("ister").schema("offset bigint").option("bootstrap.servers", bootstrap)
    began = time.perf_counter()
    rows = reader.option("subscribe", topic).load().count()
    with sync.connect(bootstrap) as log:
        there = log.describe_topic(topic)
    if rows != there.end_offset:
        raise SystemExit(f"{rows} of {there.end_offset} records of {topic} were counted")
    return {
        "segments": segments,
        "records": rows,
        "stored_mb": rounded(there.bytes / 1e6),
        "plan_s": rounded(median(planned)),
        "count_s": rounded(time.perf_counter() - began),
        "tasks": len(parts),
        "plan_bytes": len(pickle.dumps(parts)),
    }


def measure(directory: Path, gigabytes: int, segments: int, repeats: int, master: str) -> dict[str, Any]:
    from ister.spark import local_session

    spark = local_session("ister-bench-growth", **{"spark.master": master, "spark.driver.memory": "1g"})
    found: dict[str, Any] = {}
    try:
        with keeping_broker(directory) as node:
            for part in PARTS:
                count = max(TOGETHER, gigabytes * 10**9 // part // RECORD_BYTES)
                topic = f"grown-{part}"
                with sync.connect(node.address) as log:
                    log.create_topic(topic, segment_records=SEGMENT_BYTES // RECORD_BYTES)
                append_all(node.address, _IN_FLIGHT, partial(zeros, topic, count))
                name = f"{gigabytes / part:g} GB"
                found[name] = measure_topic(spark, node.address, topic, repeats)
            with sync.connect(node.address) as log:
                log.create_topic("many", segment_records=1)
            append_all(node.address, 1, partial(alone, "many", segments))
            found[f"{segments} segments"] = measure_topic(spark, node.address, "many", repeats)
        return found
    finally:
        spark.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark.growth", description=__doc__)
    parser.add_argument("--gigabytes", type=int, default=100, help="of the largest topic  [100]")
    parser.add_argument("--segments", type=int, default=10_000, help="of the topic of many  [10000]")
    parser.add_argument("--repeats", type=int, default=3, help="of the planning  [3]")
    parser.add_argument("--master", default="local[2]", help="[local[2]]")
    given = parser.parse_args(arguments)
    machine = machine_facts(Path.cwd())
    with scratch_directory() as directory:
        topics = measure(directory, given.gigabytes, given.segments, given.repeats, given.master)
    print(json.dumps({"machine": machine, "topics": topics}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
