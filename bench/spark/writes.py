"""How fast Spark writes a table into a topic, beside Kafka's own connector: `python -m bench.spark.writes`.

The rows lie in Parquet, with keys; each sink writes them to a new topic, in turns; the first one warms up.
Ister's and the flushed Kafka have them on the disk when the job ends; the other two of Kafka in memory.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from bench.cluster.nodes import NodeProcess, free_ports
from bench.peers.kafka import SYNCED
from bench.peers.peer import Missing
from bench.spark import kafka as of_kafka
from bench.spark.command import run_command
from bench.spark.formats import IsterFormat, ParquetFormat, Rows
from ister.bench.figures import rounded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OWN: Final[Mapping[str, Mapping[str, str]]] = {
    "ister": {},
    "ister_at_least_once": {"delivery": "at-least-once"},
}
"""By name in the results: the options of the write. The first is visible whole or not at all; what the second
promises is what Kafka's connector does."""
Write = Callable[["DataFrame", str], None]
"""Writes a table to a topic of this name, which is new."""

KAFKA_SINKS: Final[Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]]] = {
    "kafka_default": ((), {}),
    "kafka_tuned": ((), of_kafka.TUNED_WRITES),
    "kafka_tuned_flushed": (SYNCED, of_kafka.TUNED_WRITES),
}
"""By name in the results: the topic's settings, and the options of the write."""


@contextmanager
def sinks(directory: Path, bootstrap: str) -> Iterator[dict[str, Write]]:
    def to_ister(options: Mapping[str, str]) -> Write:
        def write(table: DataFrame, topic: str) -> None:
            writer = table.write.format("ister").option("bootstrap.servers", bootstrap)
            writer.option("topic", topic).options(**options).mode("append").save()

        return write

    own = {name: to_ister(options) for name, options in OWN.items()}
    if isinstance(of_kafka.find(), Missing):
        yield own
        return
    with of_kafka.kafka_broker(directory) as broker:

        def to_kafka(settings: Sequence[str], options: Mapping[str, str]) -> Write:
            def write(table: DataFrame, topic: str) -> None:
                broker.make(topic, *settings)
                of_kafka.write(table, broker.bootstrap, topic, options)

            return write

        yield {**own, **{name: to_kafka(*how) for name, how in KAFKA_SINKS.items()}}


def measure_writes(directory: Path, rows: Rows, repeats: int, master: str) -> dict[str, Any]:
    from ister.spark import local_session

    conf = {"spark.master": master, "spark.driver.memory": "1g", **of_kafka.spark_conf()}
    spark = local_session("ister-bench-writes", **conf)
    node = NodeProcess(directory / "broker", free_ports(1)[0], ["--log-level", "warning"])
    node.start()
    try:
        origin = IsterFormat(node.address)
        origin.fill(spark, rows)
        parquet = ParquetFormat(directory, origin)
        parquet.fill(spark, rows)
        with sinks(directory, node.address) as compared:
            taken = in_turns(compared, lambda: parquet.table(spark, ("key", "value")), repeats)
    finally:
        spark.stop()
        node.kill()
    return summarise(taken, rows)


def in_turns(
    compared: dict[str, Write], table: Callable[[], DataFrame], repeats: int
) -> dict[str, list[float]]:
    """Seconds by the name of the sink. The first turn warms up, and is left out."""
    taken: dict[str, list[float]] = {name: [] for name in compared}
    numbers = count()
    for turn in range(repeats + 1):
        for name, write in compared.items():
            topic = f"written-{next(numbers)}"
            began = time.perf_counter()
            write(table(), topic)
            if turn:
                taken[name].append(time.perf_counter() - began)
    return taken


def summarise(taken: dict[str, list[float]], rows: Rows) -> dict[str, Any]:
    rates = {name: rows.count / median(seconds) for name, seconds in taken.items()}
    return {
        "rows": rows.count,
        "value_bytes": rows.value_bytes,
        "rows_per_s": {name: rounded(rate) for name, rate in rates.items()},
        "times_kafka": {
            own: {name: rounded(rates[own] / rates[name]) for name in KAFKA_SINKS if name in rates}
            for own in OWN
        },
        "seconds": {name: [rounded(one) for one in seconds] for name, seconds in taken.items()},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command("writes", __doc__, measure_writes, arguments, rows=2_000_000)


if __name__ == "__main__":
    sys.exit(main())
