"""What must work wherever Spark runs: run as a program with `--master URL` or `--remote URL`.

Prints one JSON object of what it found; the tests look at it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from ister.spark import audit, segments, session

if TYPE_CHECKING:
    import pyarrow as pa

WRITTEN = 24_000


def read(spark: SparkSession, bootstrap: str) -> dict[str, Any]:
    table = spark.read.format("ister").option("bootstrap.servers", bootstrap).option("subscribe", "source")
    row = table.load().selectExpr("count(*)", "count(distinct offset)", "max(CAST(value AS STRING))").first()
    assert row is not None
    return {"rows": row[0], "offsets": row[1], "last": row[2]}


def fails_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of each task the first attempt fails behind its last row, with most of them staged; the second one has
    them in another order."""
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    rows = pa.Table.from_batches(list(batches))
    if context.attemptNumber():
        rows = rows.take(list(reversed(range(rows.num_rows))))
    yield from rows.to_batches()
    if not context.attemptNumber():
        raise RuntimeError("the first attempt fails")


def write(spark: SparkSession, bootstrap: str, topic: str) -> None:
    rows = spark.range(0, WRITTEN, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    rows = rows.mapInArrow(fails_first, "value string")
    sink = rows.write.format("ister").option("bootstrap.servers", bootstrap).option("topic", topic)
    sink.mode("append").save()


def stream(spark: SparkSession, bootstrap: str, topic: str, checkpoint: str) -> str:
    """Of the source into a topic, what is there now; returns the query's id."""
    source = spark.readStream.format("ister").option("bootstrap.servers", bootstrap)
    source = source.option("subscribe", "source").option("startingOffsets", "earliest")
    rows = source.option("minPartitions", 2).load().selectExpr("value")
    sink = (
        rows.mapInArrow(fails_first, "value binary")
        .writeStream.format("ister")
        .option("bootstrap.servers", bootstrap)
    )
    query = sink.option("topic", topic).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    started = query.start()
    started.awaitTermination()
    return str(started.id)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--master")
    arguments.add_argument("--remote")
    arguments.add_argument("--bootstrap", required=True)
    arguments.add_argument("--target", required=True)
    arguments.add_argument("--checkpoint", required=True)
    asked = arguments.parse_args()
    memory = {} if asked.remote else {"spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "2"}
    spark = session("any session", master=asked.master, remote=asked.remote, **memory)
    try:
        found: dict[str, Any] = {"read": read(spark, asked.bootstrap)}
        write(spark, asked.bootstrap, asked.target)
        target = f"{asked.target}-streamed"
        found["query"] = stream(spark, asked.bootstrap, target, asked.checkpoint)
        report = audit(spark, "source", bootstrap=asked.bootstrap)
        found["audit"] = {"clean": report.is_clean, "records": report.topics[0].records}
        listed = segments(spark, asked.bootstrap).where("topic = 'default/source'").collect()
        found["segments"] = [[row.start, row.end] for row in listed]
        print(json.dumps(found))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
