"""What must work wherever Spark runs: run as a program with `--master URL` or `--remote URL`.

Prints one JSON object of what it found; the tests look at it.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from pyspark.sql import SparkSession

from ister.spark import audit, segments, session


def read(spark: SparkSession, bootstrap: str) -> dict[str, Any]:
    table = spark.read.format("ister").option("bootstrap.servers", bootstrap).option("subscribe", "source")
    row = table.load().selectExpr("count(*)", "count(distinct offset)", "max(CAST(value AS STRING))").first()
    assert row is not None
    return {"rows": row[0], "offsets": row[1], "last": row[2]}


def write(spark: SparkSession, bootstrap: str, topic: str) -> None:
    rows = spark.range(0, 1000, 1, 4).selectExpr("CAST(id AS STRING) AS value")
    sink = rows.write.format("ister").option("bootstrap.servers", bootstrap).option("topic", topic)
    sink.mode("append").save()


def stream(spark: SparkSession, bootstrap: str, topic: str, checkpoint: str) -> None:
    """Of the source into a topic, what is there now."""
    source = spark.readStream.format("ister").option("bootstrap.servers", bootstrap)
    rows = source.option("subscribe", "source").option("startingOffsets", "earliest").load()
    sink = rows.selectExpr("value").writeStream.format("ister").option("bootstrap.servers", bootstrap)
    query = sink.option("topic", topic).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query.start().awaitTermination()


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
        stream(spark, asked.bootstrap, f"{asked.target}-streamed", asked.checkpoint)
        report = audit(spark, "source", bootstrap=asked.bootstrap)
        found["audit"] = {"clean": report.is_clean, "records": report.topics[0].records}
        listed = segments(spark, asked.bootstrap).where("topic = 'default/source'").collect()
        found["segments"] = [[row.start, row.end] for row in listed]
        print(json.dumps(found))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
