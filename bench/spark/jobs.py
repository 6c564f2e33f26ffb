"""How fast topics are tiered and audited: `python -m bench.spark.jobs --help`.

A broker of its own, a topic of records of 200 bytes that compress as orders do, a session on both cores. Each
job is run in turn with two others over the same records, which mean more on a machine that is shared: Spark's
own way from the source to zstd Parquet, and a plain client that reads every frame and does nothing with it.
Printed is one JSON object: seconds, the median rates in MB/s of the log, and the ratios to those two.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from bench.machine import machine_facts
from ister import sync
from ister.bench.figures import rounded
from ister.bench.target import own_broker, scratch_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC: Final = "orders"
RECORD_BYTES: Final = 200
BATCH: Final = 5000
KINDS_OF_BATCH: Final = 20
"""Each is made once; they follow each other further apart than a compressor looks back."""

Job = Callable[[], None]


def fill(bootstrap: str, megabytes: int) -> int:
    """Append about so many megabytes; returns what they take in the log."""
    made = [orders(number) for number in range(KINDS_OF_BATCH)]
    with sync.connect(bootstrap) as log:
        with log.producer(TOPIC) as producer:
            for number in range(megabytes * 1_000_000 // (RECORD_BYTES * BATCH)):
                producer.send_many(made[number % KINDS_OF_BATCH])
        return log.describe_topic(TOPIC).bytes


def orders(seed: int) -> list[bytes]:
    chance = random.Random(seed)
    words = [b"%016x" % chance.getrandbits(64) for _ in range(2000)]

    def order(number: int) -> bytes:
        user, note = chance.choice(words), b" ".join(chance.choices(words, k=4))
        fields = (number, user, chance.randrange(100_000), words[number % 7], note)
        return (b'{"id": %d, "user": "%s", "amount": %d, "region": "%s", "note": "%s"}' % fields).ljust(
            RECORD_BYTES, b"."
        )[:RECORD_BYTES]

    return [order(number) for number in range(BATCH)]


def jobs(spark: SparkSession, bootstrap: str, tables: Path) -> dict[str, Job]:
    """What is measured, by name; each leaves `tables` as it found it, but for its own."""
    from ister.spark import audit, tier

    def tiered(to: str) -> None:
        path = tables / to
        shutil.rmtree(path, ignore_errors=True)
        done = tier(spark, TOPIC, to=to, path=str(path), bootstrap=bootstrap)
        if not done.is_complete:
            raise SystemExit(f"the {to} table is not complete")

    def audited(**options: Any) -> None:
        if not audit(spark, TOPIC, bootstrap=bootstrap, **options).is_clean:
            raise SystemExit("the audit found something")

    def by_spark() -> None:
        source = spark.read.format("ister").option("bootstrap.servers", bootstrap).option("subscribe", TOPIC)
        columns = ["offset", "timestamp", "timestampType", "key", "value"]
        rows = source.load().select(*columns)
        rows.write.mode("overwrite").option("compression", "zstd").parquet(str(tables / "by-spark"))

    return {
        "read": partial(read_all, bootstrap),
        "spark_parquet": by_spark,
        "tier_parquet": partial(tiered, "parquet"),
        "tier_delta": partial(tiered, "delta"),
        "tier_iceberg": partial(tiered, "iceberg"),
        "audit": audited,
        "audit_replicas": partial(audited, replicas=True),
        "audit_table": partial(audited, against=str(tables / "delta")),
    }


def read_all(bootstrap: str) -> None:
    with sync.connect(bootstrap) as log:
        for _ in log.read(TOPIC, max_bytes=2 << 20).frames():
            pass


def measure(
    directory: Path, megabytes: int, repeats: int, master: str, wanted: Sequence[str]
) -> dict[str, Any]:
    from ister.spark import local_session

    with own_broker(directory) as target:
        size = fill(target.bootstrap, megabytes)
        spark = local_session("ister-bench-jobs", **{"spark.master": master, "spark.driver.memory": "1g"})
        try:
            every = jobs(spark, target.bootstrap, directory / "tables")
            chosen = {name: job for name, job in every.items() if not wanted or name in wanted}
            return summarise(taken(chosen, repeats), size)
        finally:
            spark.stop()


def taken(chosen: dict[str, Job], repeats: int) -> dict[str, list[float]]:
    """Seconds of each, in turns. The first turn warms up, and is left out."""
    seconds: dict[str, list[float]] = {name: [] for name in chosen}
    for turn in range(repeats + 1):
        for name, job in chosen.items():
            began = time.perf_counter()
            job()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def summarise(seconds: dict[str, list[float]], size: int) -> dict[str, Any]:
    rates = {name: size / median(each) / 1e6 for name, each in seconds.items()}
    found: dict[str, Any] = {
        "log_mb": rounded(size / 1e6),
        "seconds": {name: [rounded(one) for one in each] for name, each in seconds.items()},
        "mb_per_s": {name: rounded(rate) for name, rate in rates.items()},
    }
    for base in ("read", "spark_parquet"):
        if base in rates:
            found[f"to_{base}"] = {
                name: rounded(rate / rates[base]) for name, rate in rates.items() if name != base
            }
    return found


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark.jobs", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000, help="of records  [1000]")
    parser.add_argument("--repeats", type=int, default=3, help="of which the median counts  [3]")
    parser.add_argument("--master", default="local[2]", help="[local[2]]")
    parser.add_argument("--only", nargs="*", default=[], help="of the jobs")
    given = parser.parse_args(arguments)
    with scratch_directory() as directory:
        found = measure(directory, given.megabytes, given.repeats, given.master, given.only)
        print(json.dumps({"machine": machine_facts(directory), **found}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
