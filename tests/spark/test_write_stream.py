"""Streams into topics, each record once, through a real Spark session to a real broker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from tests.chaos.spark_driver import Driver, start_query

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
        self.start(table, bootstrap, **options).awaitTermination()

    def start(self, table: DataFrame, bootstrap: str, **options: Any) -> StreamingQuery:
        writer = table.writeStream.format("ister").option("bootstrap.servers", bootstrap)
        writer = writer.option("checkpointLocation", str(self.checkpoint)).options(**options)
        return writer.trigger(availableNow=True).start()


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


def test_a_batch_whose_entry_in_sparks_commit_log_is_lost_is_there_once(
    lines: Lines, bootstrap: str, log: sync.Log
) -> None:
    for _ in range(2):
        lines.add(100)
    lines.run(lines.stream(), bootstrap, topic="lost-commit")
    for file in (lines.checkpoint / "commits").iterdir():
        if file.name.lstrip(".").startswith("1"):
            file.unlink()
    lines.add(100)
    # In another order, too.
    lines.run(lines.stream().repartition(3), bootstrap, topic="lost-commit")
    found = numbers(log, "lost-commit")
    assert found[:200] == list(range(200)) and sorted(found[200:]) == list(range(200, 300))


def test_rows_of_a_stream_go_to_the_topics_that_they_name(
    lines: Lines, bootstrap: str, log: sync.Log
) -> None:
    lines.add(20)
    lines.run(lines.stream().selectExpr("concat('stream-', value % 2) topic", "value"), bootstrap)
    for rest in range(2):
        assert numbers(log, f"stream-{rest}") == list(range(rest, 20, 2))


def test_headers_of_a_stream_are_written(lines: Lines, bootstrap: str, log: sync.Log) -> None:
    lines.add(3)
    headers = "array(struct('n' as key, cast(value as binary) as value)) as headers"
    lines.run(
        lines.stream().selectExpr("value", headers), bootstrap, topic="with-headers", includeHeaders=True
    )
    found = [list(record.headers) for record in log.read("with-headers")]
    assert found == [[("n", b"%d" % number)] for number in range(3)]


def test_a_stream_goes_straight_to_its_topic_where_at_least_once_is_enough(
    lines: Lines, bootstrap: str, log: sync.Log
) -> None:
    lines.add(20)
    lines.run(lines.stream(), bootstrap, topic="stream-direct", delivery="at-least-once")
    assert numbers(log, "stream-direct") == list(range(20))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "t", "delivery": "atomic"}, "Give exactly-once or at-least-once"),
        ({"topic": "t", "txnAppId": "a", "txnVersion": "1"}, "there is no option 'txnappid'"),
        ({"topic": "_ister/t"}, "is one of Ister's own"),
        ({}, "neither option topic nor a column `topic`"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_read(
    lines: Lines, bootstrap: str, options: dict[str, str], said: str
) -> None:
    lines.add(1)
    with pytest.raises(Exception, match=said):
        lines.run(lines.stream(), bootstrap, **options)


@pytest.mark.slow
def test_drivers_killed_in_a_commit_leave_its_batch_to_the_next_ones(
    spark: SparkSession, bootstrap: str, log: sync.Log, tmp_path: Path
) -> None:
    """The first in the middle of the append, the second between the sink and Spark's commit log; each next
    one plans another number of partitions."""
    source, target = "killed-in", "killed-out"
    for first in range(0, 1500, 50):
        log.append(source, [b"%d" % number for number in range(first, first + 50)])
    for partitions, step in ((2, "half-appended"), (3, "committed")):
        reached = tmp_path / step
        point = {"ISTER_SPARK_FAILPOINT": f"{step}={reached}"}
        driver = Driver(bootstrap, source, target, tmp_path, partitions=partitions, environment=point)
        try:
            driver.wait_for(reached)
        finally:
            driver.kill()
        assert not list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")), "no batch is done for Spark"
    checkpoint = str(tmp_path / "checkpoint")
    start_query(spark, bootstrap, source, target, checkpoint, 4, available_now=True).awaitTermination()
    assert numbers(log, target) == list(range(1500))
