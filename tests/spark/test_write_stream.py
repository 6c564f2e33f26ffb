"""Streams into topics, each record once, through a real Spark session to a real broker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from ister import sync

pytestmark = pytest.mark.spark


class Lines:
    """A stream of numbered lines, from files that are added one by one."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.source = directory / "source"
        self.source.mkdir()
        self.checkpoint = directory / "checkpoint"
        self._spark = spark
        self._count = 0

    def add(self, count: int) -> None:
        numbers = range(self._count, self._count + count)
        file = self.source / f"{self._count:09}.txt"
        file.write_text("".join(f"{number}\n" for number in numbers))
        os.utime(file, (self._count, self._count))  # the order in which Spark takes them
        self._count += count

    def stream(self) -> DataFrame:
        return self._spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.source))

    def run(self, table: DataFrame, bootstrap: str, **options: Any) -> None:
        """Until all that is there is written."""
        writer = table.writeStream.format("ister").option("bootstrap.servers", bootstrap)
        query = (
            writer.option("checkpointLocation", str(self.checkpoint))
            .options(**options)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


@pytest.fixture
def lines(spark: SparkSession, tmp_path: Path) -> Lines:
    return Lines(spark, tmp_path)


def numbers(log: sync.Log, topic: str) -> list[int]:
    return [int(record.value or b"") for record in log.read(topic)]


def test_a_stream_is_written_once_batch_for_batch(lines: Lines, bootstrap: str, log: sync.Log) -> None:
    for _ in range(3):
        lines.add(100)
    lines.run(lines.stream(), bootstrap, topic="streamed")
    lines.add(50)
    lines.run(lines.stream(), bootstrap, topic="streamed")
    assert numbers(log, "streamed") == list(range(350))
    assert [found.topic for found in log.list_topics() if "_spark" in found.topic] == []
