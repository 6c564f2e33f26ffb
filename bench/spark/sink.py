"""`python -m bench.spark.sink`: the sinks of streams and tables side by side, on one broker that fsyncs.

Rows of 200 B come from Parquet files in the page cache. Each way is run several times in turn, after one that
is not counted; what is told of each is the median. A stream's time is that of its batches, without the start
of the query. The sink `noop` beside them is what Spark itself takes for reading and handing over.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from bench.cluster.nodes import NodeProcess, free_ports
from ister import sync

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW_BYTES: Final = 200
BATCH_ROWS: Final = 10_000
BATCHES: Final = 24
SETTLED_AFTER: Final = 4
"""The first batches of a query warm Spark up."""


class SinkBench:
    def __init__(self, spark: SparkSession, bootstrap: str, directory: Path, rows: int) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._directory = directory
        self._rows = rows
        self._runs = 0
        value = f"CAST(lpad(CAST(id AS STRING), {ROW_BYTES}, 'x') AS BINARY) value"
        many = spark.range(0, rows, 1, 2).selectExpr(value)
        many.write.option("compression", "none").parquet(str(directory / "many"))
        few = spark.range(0, BATCH_ROWS * BATCHES, 1, BATCHES).selectExpr(value)
        few.write.option("compression", "none").parquet(str(directory / "few"))

    def table(self, delivery: str) -> float:
        """Rows a second of df.write."""
        topic = self._fresh_topic()
        table = self._spark.read.parquet(str(self._directory / "many"))
        writer = table.write.format("ister").option("bootstrap.servers", self._bootstrap)
        writer = writer.option("topic", topic).option("delivery", delivery).mode("append")
        began = time.perf_counter()
        writer.save()
        seconds = time.perf_counter() - began
        self._check(topic, self._rows)
        return self._rows / seconds

    def stream(self, delivery: str | None) -> float:
        """Rows a second of one large batch of a stream; of `noop` without a delivery."""
        progress = self._query("many", delivery, self._rows, 1000)
        (batch,) = [one for one in progress if one["numInputRows"]]
        return float(self._rows / (batch["durationMs"]["triggerExecution"] / 1000))

    def batches_ms(self, delivery: str | None) -> list[float]:
        """How long each micro-batch of 10,000 rows takes over all."""
        progress = self._query("few", delivery, BATCH_ROWS * BATCHES, 1)
        full = [one for one in progress if one["numInputRows"] == BATCH_ROWS]
        assert len(full) == BATCHES, [one["numInputRows"] for one in progress]
        return [float(one["durationMs"]["triggerExecution"]) for one in full[SETTLED_AFTER:]]

    def _query(self, name: str, delivery: str | None, rows: int, files: int) -> list[dict[str, Any]]:
        stream = self._spark.readStream.schema("value binary").option("maxFilesPerTrigger", files)
        return self._run(stream.parquet(str(self._directory / name)), delivery, rows)

    def _run(self, stream: DataFrame, delivery: str | None, rows: int) -> list[dict[str, Any]]:
        topic = self._fresh_topic()
        checkpoint = self._directory / f"checkpoint-{topic}"
        writer = stream.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        if delivery is None:
            query = writer.format("noop").start()
        else:
            writer = writer.format("ister").option("bootstrap.servers", self._bootstrap)
            query = writer.option("topic", topic).option("delivery", delivery).start()
        query.awaitTermination()
        shutil.rmtree(checkpoint)
        if delivery is not None:
            self._check(topic, rows)
        return [json.loads(one.json) for one in query.recentProgress]

    def _fresh_topic(self) -> str:
        self._runs += 1
        return f"bench-{self._runs}"

    def _check(self, topic: str, rows: int) -> None:
        """Each row is there; then the topic goes, so that the disk does not fill up."""
        with sync.connect(self._bootstrap) as log:
            there = log.describe_topic(topic).end_offset
            assert there == rows, f"{there} of {rows} rows are in {topic}"
            log.delete_topic(topic)


def measure(directory: Path, rows: int, repeats: int) -> dict[str, float]:
    from ister.spark import local_session

    broker = NodeProcess(directory / "broker", free_ports(1)[0], [])
    broker.start()
    spark = local_session("bench", **{"spark.master": "local[2]", "spark.driver.memory": "2g"})
    try:
        bench = SinkBench(spark, broker.address, directory, rows)
        rates: dict[str, list[float]] = {}
        for turn in range(repeats + 1):
            found = {
                "table, atomic": bench.table("atomic"),
                "table, at-least-once": bench.table("at-least-once"),
                "stream, exactly-once": bench.stream("exactly-once"),
                "stream, at-least-once": bench.stream("at-least-once"),
                "stream, noop": bench.stream(None),
            }
            for name, rate in found.items() if turn else ():
                rates.setdefault(f"{name}: rows/s", []).append(rate)
        for name, delivery in (("exactly-once", "exactly-once"), ("noop", None)):
            rates[f"micro-batch of {BATCH_ROWS} rows, {name}: p50 ms"] = bench.batches_ms(delivery)
        return {name: median(found) for name, found in rates.items()}
    finally:
        spark.stop()
        broker.kill()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark.sink", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", choices=("text", "json"), default="text")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ister-bench-spark-") as directory:
        found = measure(Path(directory), asked.rows, asked.repeats)
    if asked.output == "json":
        json.dump(found, sys.stdout, indent=1)
        print()
    else:
        for name, figure in found.items():
            print(f"{name:50} {figure:12,.0f}")


if __name__ == "__main__":
    main()
