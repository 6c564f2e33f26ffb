"""How fast history is scanned, tiered and audited past the brokers: `python -m bench.spark.history --help`.

A broker keeps a topic's segments in a directory. Spark scans them from there, beside the same records from
the broker (`read.tier=hot`) and the same rows as Parquet, in turns; counts them with one column; and scans a
topic whose frames have one record each. Then the topic is tiered and audited. Printed is one JSON object: the
median rates, the ratios to Parquet, and how much of a core the broker used while the history was scanned.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from bench.cluster.nodes import NodeProcess
from bench.machine import processor_seconds
from bench.spark.command import run_command
from bench.spark.formats import BATCH, COLUMNS, TOPIC, IsterFormat, ParquetFormat, Rows
from bench.spark.keeping import append_all, keeping_broker, wait_until_kept
from bench.spark.scan import scan_seconds
from ister import sync
from ister.bench.figures import rounded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ister.client.log import Log

SEGMENTS: Final = 10
SINGLES: Final = "singles"
SINGLES_PART: Final = 10
"""One in so many of the rows is a frame of its own, in a topic of its own."""
_IN_FLIGHT: Final = 1_000

Seconds = dict[str, list[float]]


def measure_history(directory: Path, rows: Rows, repeats: int, master: str) -> dict[str, Any]:
    """In `directory` there is room for the rows three times."""
    from ister.spark import local_session

    spark = local_session("ister-bench-history", **{"spark.master": master, "spark.driver.memory": "3g"})
    try:
        with keeping_broker(directory) as node:
            history = IsterFormat(node.address, "history")
            parquet = ParquetFormat(directory, history)
            singles = max(BATCH, rows.count // SINGLES_PART)
            with sync.connect(node.address) as log:
                log.create_topic(TOPIC, segment_records=max(BATCH, rows.count // SEGMENTS))
                log.create_topic(SINGLES, segment_records=singles)
            history.fill(spark, rows)
            append_all(node.address, _IN_FLIGHT, partial(one_by_one, rows, singles))
            kept = {topic: wait_until_kept(node.address, topic) for topic in (TOPIC, SINGLES)}
            parquet.fill(spark, rows)
            hot = IsterFormat(node.address, "brokers", **{"read.tier": "hot"})
            bench = _Bench(spark, node, directory, rows.count)
            for turn in range(repeats + 1):
                bench.turn([history, parquet, hot], is_counted=turn > 0)
            return {
                "rows": rows.count,
                "value_bytes": rows.value_bytes,
                "segments": kept,
                **bench.found(singles),
            }
    finally:
        spark.stop()


async def one_by_one(rows: Rows, count: int, log: Log) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    values = rows.values(0)
    for number in range(count):
        yield partial(log.append, SINGLES, [values[number % len(values)]])


class _Bench:
    def __init__(self, spark: SparkSession, node: NodeProcess, directory: Path, count: int) -> None:
        self._spark = spark
        self._node = node
        self._directory = directory
        self._count = count
        self._seconds: dict[str, Seconds] = {name: defaultdict(list) for name in (*COLUMNS, "other")}
        self._cpu_s = self._history_s = 0.0
        with sync.connect(node.address) as log:
            self._log_bytes = log.describe_topic(TOPIC).bytes

    def turn(self, compared: Sequence[IsterFormat | ParquetFormat], *, is_counted: bool) -> None:
        taken: list[tuple[str, str, float]] = []
        for columns, names in COLUMNS.items():
            for form in compared:
                before = processor_seconds(self._node.process_id)
                seconds = scan_seconds(form.table(self._spark, names))
                taken.append((columns, form.name, seconds))
                if is_counted and form.name == "history":
                    self._cpu_s += processor_seconds(self._node.process_id) - before
                    self._history_s += seconds
        taken += [("other", name, seconds) for name, seconds in self._others()]
        for columns, name, seconds in taken if is_counted else ():
            self._seconds[columns][name].append(seconds)

    def _others(self) -> list[tuple[str, float]]:
        from ister.spark import audit, tier

        address, path = self._node.address, self._directory / "table"
        shutil.rmtree(path, ignore_errors=True)
        reader = self._spark.read.format("ister").option("bootstrap.servers", address)
        counted = reader.schema("offset bigint").option("subscribe", TOPIC).load()
        whole = self._spark.read.format("ister").option("bootstrap.servers", address)

        def count() -> None:
            if counted.count() != self._count:
                raise SystemExit("not all rows were counted")

        def check() -> None:
            if not audit(self._spark, TOPIC, bootstrap=address).is_clean:
                raise SystemExit("the audit found something")

        return [
            ("count", timed(count)),
            (SINGLES, scan_seconds(whole.option("subscribe", SINGLES).load())),
            (
                "tier",
                timed(lambda: tier(self._spark, TOPIC, to="parquet", path=str(path), bootstrap=address)),
            ),
            ("audit", timed(check)),
        ]

    def found(self, singles: int) -> dict[str, Any]:
        rates = {
            columns: {name: self._count / median(seconds) for name, seconds in self._seconds[columns].items()}
            for columns in COLUMNS
        }
        other = {name: median(seconds) for name, seconds in self._seconds["other"].items()}
        return {
            "rows_per_s": {
                **{columns: _rounded(found) for columns, found in rates.items()},
                "count": rounded(self._count / other["count"]),
                "frames_of_one_record": rounded(singles / other[SINGLES]),
            },
            "of_parquet": {
                columns: rounded(found["history"] / found["parquet"]) for columns, found in rates.items()
            },
            "broker_core": rounded(self._cpu_s / self._history_s),
            "mb_per_s": {name: rounded(self._log_bytes / other[name] / 1e6) for name in ("tier", "audit")},
            "seconds": {
                part: {name: [rounded(one) for one in each] for name, each in seconds.items()}
                for part, seconds in self._seconds.items()
            },
        }


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _rounded(rates: dict[str, float]) -> dict[str, float]:
    return {name: rounded(rate) for name, rate in rates.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command("history", __doc__, measure_history, arguments, rows=10_000_000)


if __name__ == "__main__":
    sys.exit(main())
