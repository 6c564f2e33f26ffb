"""`python -m bench.spark.sink`: the sinks of streams and tables side by side, on one broker that fsyncs.

Rows of 200 B come from Parquet files in the page cache. Each way is run several times in turn, after one that
is not counted; what is told of each is the median. A stream's time is that of its batches, without the start
of the query. Beside them are Spark's own `noop`, and a sink in Python that does nothing: what Spark itself
takes, and what it takes to run any sink in Python.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from bench.cluster.nodes import NodeProcess, free_ports
from ister import sync

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW_BYTES: Final = 200
BATCH_ROWS: Final = 10_000
BATCHES: Final = 24
SETTLED_AFTER: Final = 4
"""The first batches of a query warm Spark up."""
NOOP: Final = "noop"
NOTHING: Final = "nothing"


class Nothing(DataSource):
    """A sink in Python that drops what it gets."""

    @classmethod
    def name(cls) -> str:
        return NOTHING

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
        return _Dropping()


class _Dropping(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        pass


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

    def stream(self, delivery: str) -> float:
        """Rows a second of one large batch of a stream."""
        progress = self._query("many", delivery, self._rows, 1000)
        (batch,) = [one for one in progress if one["numInputRows"]]
        return float(self._rows / (batch["durationMs"]["triggerExecution"] / 1000))

    def batches_ms(self, delivery: str) -> list[float]:
        """How long each micro-batch of 10,000 rows takes over all."""
        progress = self._query("few", delivery, BATCH_ROWS * BATCHES, 1)
        full = [one for one in progress if one["numInputRows"] == BATCH_ROWS]
        assert len(full) == BATCHES, [one["numInputRows"] for one in progress]
        return [float(one["durationMs"]["triggerExecution"]) for one in full[SETTLED_AFTER:]]

    def _query(self, name: str, delivery: str, rows: int, files: int) -> list[dict[str, Any]]:
        stream = self._spark.readStream.schema("value binary").option("maxFilesPerTrigger", files)
        return self._run(stream.parquet(str(self._directory / name)), delivery, rows)

    def _run(self, stream: DataFrame, delivery: str, rows: int) -> list[dict[str, Any]]:
        topic = self._fresh_topic()
        checkpoint = self._directory / f"checkpoint-{topic}"
        writer = stream.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        if delivery in (NOOP, NOTHING):
            query = writer.format(delivery).start()
        else:
            writer = writer.format("ister").option("bootstrap.servers", self._bootstrap)
            query = writer.option("topic", topic).option("delivery", delivery).start()
        query.awaitTermination()
        shutil.rmtree(checkpoint)
        if delivery not in (NOOP, NOTHING):
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
    spark.dataSource.register(Nothing)
    try:
        bench = SinkBench(spark, broker.address, directory, rows)
        rates: dict[str, list[float]] = {}
        for turn in range(repeats + 1):
            found = {
                "table, atomic": bench.table("atomic"),
                "table, at-least-once": bench.table("at-least-once"),
                "stream, exactly-once": bench.stream("exactly-once"),
                "stream, at-least-once": bench.stream("at-least-once"),
                "stream, a sink in Python that does nothing": bench.stream(NOTHING),
                "stream, noop": bench.stream(NOOP),
            }
            for name, rate in found.items() if turn else ():
                rates.setdefault(f"{name}: rows/s", []).append(rate)
        for delivery in ("exactly-once", "at-least-once", NOTHING, NOOP):
            rates[f"micro-batch of {BATCH_ROWS} rows, {delivery}: p50 ms"] = bench.batches_ms(delivery)
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
