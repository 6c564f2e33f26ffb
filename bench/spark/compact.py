"""How fast a history is compacted: `python -m bench.spark.compact --help`.

A broker keeps topics in a directory, in many small objects. Each topic is compacted once, by a job on Spark
that copies its objects into few, reads them back and has them replaced. Beside it stands a plain copy of the
same files in the same directory, synced, which says what the disk can do. Printed is one JSON object: the
median rates in MB/s of the history, the ratio to the copy, and how fast the history is scanned before and
after.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from bench.machine import machine_facts
from bench.spark.jobs import BATCH, KINDS_OF_BATCH, RECORD_BYTES, orders
from bench.spark.keeping import keeping_broker, wait_until_kept
from bench.spark.scan import scan_seconds
from ister import sync
from ister.bench.figures import rounded
from ister.bench.target import scratch_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PIECE: Final = 4 << 20


def fill(bootstrap: str, topic: str, megabytes: int, segment_bytes: int) -> None:
    made = [orders(number) for number in range(KINDS_OF_BATCH)]
    with sync.connect(bootstrap) as log:
        log.create_topic(topic, segment_bytes=segment_bytes)
        with log.producer(topic) as producer:
            for number in range(megabytes * 1_000_000 // (RECORD_BYTES * BATCH)):
                producer.send_many(made[number % KINDS_OF_BATCH])
    wait_until_kept(bootstrap, topic)


def copy_seconds(history: Path, topic: str, to: Path) -> float:
    """All objects of a topic, end to end in one file, which is synced."""
    objects = sorted(path for path in history.rglob("*.ister") if path.parent.name.startswith(f"{topic}-"))
    began = time.perf_counter()
    with to.open("wb") as target:
        for path in objects:
            with path.open("rb") as source:
                shutil.copyfileobj(source, target, _PIECE)
        target.flush()
        os.fsync(target.fileno())
    seconds = time.perf_counter() - began
    to.unlink()
    return seconds


def scan(spark: SparkSession, bootstrap: str, topic: str) -> float:
    options = {"bootstrap.servers": bootstrap, "subscribe": topic}
    return scan_seconds(spark.read.format("ister").options(**options).load())


def measure(
    directory: Path, megabytes: int, segment_mb: int, repeats: int, master: str, object_mb: int
) -> dict[str, Any]:
    from ister.spark import compact, local_session

    rates: dict[str, list[float]] = {name: [] for name in ("compact", "copy", "scan_before", "scan_after")}
    objects: list[tuple[int, int]] = []
    spark = local_session("ister-bench-compact", **{"spark.master": master, "spark.driver.memory": "1g"})
    try:
        with keeping_broker(directory) as node:
            for turn in range(repeats + 1):
                topic = f"orders-{turn}"
                fill(node.address, topic, megabytes, segment_mb * 1_000_000)
                before = scan(spark, node.address, topic)
                copied = copy_seconds(directory / "history", topic, directory / "copied")
                done = compact(spark, topic, bootstrap=node.address, object_bytes=object_mb * 1_000_000)
                if done.left or not done.merged:
                    raise SystemExit(f"not all of it was compacted: {done.left}")
                after = scan(spark, node.address, topic)
                if not turn:
                    continue  # it warms up
                taken = (done.seconds, copied, before, after)
                for name, seconds in zip(rates, taken, strict=True):
                    rates[name].append(done.bytes / seconds / 1e6)
                objects.append((done.replaced, len(done.merged)))
    finally:
        spark.stop()
    found = {name: median(each) for name, each in rates.items()}
    return {
        "history_mb": megabytes,
        "objects_before_and_after": objects[0],
        "mb_per_s": {name: rounded(rate) for name, rate in found.items()},
        "each": {name: [rounded(rate) for rate in each] for name, each in rates.items()},
        "to_copy": rounded(found["compact"] / found["copy"]),
    }


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark.compact", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=2000, help="of records in each topic  [2000]")
    parser.add_argument("--segment-mb", type=int, default=4, help="in a segment  [4]")
    parser.add_argument("--object-mb", type=int, default=512, help="in a merged object, at most  [512]")
    parser.add_argument("--repeats", type=int, default=3, help="of which the median counts  [3]")
    parser.add_argument("--master", default="local[2]", help="[local[2]]")
    given = parser.parse_args(arguments)
    with scratch_directory() as directory:
        found = measure(
            directory, given.megabytes, given.segment_mb, given.repeats, given.master, given.object_mb
        )
        print(json.dumps({"machine": machine_facts(directory), **found}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
