"""Topics as streams, through a real Spark session from a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from ister import sync
from ister.spark.schema import table_schema

pytestmark = pytest.mark.spark

Start = Callable[..., StreamingQuery]


@pytest.fixture
def source(spark: SparkSession, bootstrap: str) -> Callable[..., DataFrame]:
    """`source("topic", startingOffsets=...)`: a stream of it."""

    def load(topic: str | None = None, schema: str | None = None, **options: Any) -> DataFrame:
        reader = spark.readStream.format("ister").option("bootstrap.servers", bootstrap)
        if topic is not None:
            reader = reader.option("subscribe", topic)
        if schema is not None:
            reader = reader.schema(schema)
        return reader.options(**options).load()

    return load


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path) -> Iterator[Start]:
    """`start(stream, available_now=...)`: a query that gathers rows in the table of its name."""
    queries: list[StreamingQuery] = []

    def begin(stream: DataFrame, name: str = "seen", *, available_now: bool = False) -> StreamingQuery:
        writer = stream.writeStream.format("memory").queryName(name)
        if available_now:
            writer = writer.trigger(availableNow=True)
        queries.append(writer.option("checkpointLocation", str(tmp_path / name)).start())
        return queries[-1]

    yield begin
    for query in queries:
        query.stop()


def offsets_seen(spark: SparkSession, name: str = "seen") -> list[int]:
    return sorted(row.offset for row in spark.table(name).select("offset").collect())


def test_a_stream_has_kafkas_columns_and_every_record_from_the_first_on(
    spark: SparkSession, log: sync.Log, source: Callable[..., DataFrame], start: Start
) -> None:
    log.append("read-as-a-stream", [b"a", b"b"], keys=[b"k", None])
    stream = source("read-as-a-stream", startingOffsets="earliest", includeHeaders="true")
    assert stream.schema == table_schema(True)
    query = start(stream)
    query.processAllAvailable()
    log.append("read-as-a-stream", [b"c"])
    query.processAllAvailable()
    rows = spark.table("seen").orderBy("offset").collect()
    assert [(row.key, row.value, row.offset) for row in rows] == [
        (b"k", b"a", 0),
        (None, b"b", 1),
        (None, b"c", 2),
    ]
    assert {(row.topic, row.partition) for row in rows} == {("default/read-as-a-stream", 0)}


def test_a_stream_begins_at_the_end_unless_something_else_is_said(
    spark: SparkSession, log: sync.Log, source: Callable[..., DataFrame], start: Start
) -> None:
    log.append("from-now", [b"old"] * 3)
    query = start(source("from-now", "offset long"))
    query.processAllAvailable()
    log.append("from-now", [b"new"] * 2)
    query.processAllAvailable()
    assert offsets_seen(spark) == [3, 4]


def test_a_query_goes_on_where_its_checkpoint_says(
    spark: SparkSession, log: sync.Log, source: Callable[..., DataFrame], tmp_path: Path
) -> None:
    log.append("resumed", [b"x"] * 5)
    batches: list[tuple[int, list[int]]] = []

    def run() -> None:
        query = (
            source("resumed", "offset long", startingOffsets="earliest", maxOffsetsPerTrigger=4)
            .writeStream.foreachBatch(
                lambda rows, batch: batches.append((batch, sorted(row.offset for row in rows.collect())))
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    log.append("resumed", [b"y"] * 2)
    run()
    assert batches == [(0, [0, 1, 2, 3]), (1, [4]), (2, [5, 6])]


def test_available_now_reads_what_was_there_and_nothing_that_came_meanwhile(
    spark: SparkSession, log: sync.Log, source: Callable[..., DataFrame], tmp_path: Path
) -> None:
    """Each batch appends to the topic that it reads: a query that looked again would never end."""
    log.append("concurrent", [b"x"] * 50)
    seen: list[list[int]] = []

    def gather(rows: DataFrame, batch: int) -> None:
        seen.append(sorted(row.offset for row in rows.collect()))
        log.append("concurrent", [b"y"] * 30)

    query = (
        source("concurrent", "offset long", startingOffsets="earliest", maxOffsetsPerTrigger=20)
        .writeStream.foreachBatch(gather)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert seen == [list(range(20)), list(range(20, 40)), list(range(40, 50))]


def test_a_topic_that_appears_later_and_matches_the_pattern_joins_the_stream(
    spark: SparkSession, log: sync.Log, source: Callable[..., DataFrame], start: Start
) -> None:
    log.append("joins-1", [b"x"])
    query = start(source(None, "topic string, offset long", subscribePattern="joins-.*"))
    query.processAllAvailable()
    log.append("joins-2", [b"y"] * 2)
    log.append("joins-1", [b"x"])
    expected = {("default/joins-1", 1), ("default/joins-2", 0), ("default/joins-2", 1)}
    deadline = time.monotonic() + 60
    while set(map(tuple, spark.table("seen").collect())) != expected:
        assert time.monotonic() < deadline, spark.table("seen").collect()
        query.processAllAvailable()


def test_a_loss_under_a_running_query_ends_it_with_the_offsets_or_is_let_pass_if_that_is_said(
    spark: SparkSession, log: sync.Log, source: Callable[..., DataFrame], start: Start
) -> None:
    log.create_topic("losing", segment_records=10)
    log.append("losing", [b"x"] * 10)
    options = {"startingOffsets": '{"losing": {"0": 5}}'}
    for _ in range(3):
        log.append("losing", [b"x"] * 10)
    log.trim_topic("losing", 20)
    query = start(source("losing", "offset long", **options))
    with pytest.raises(Exception) as caught:
        query.processAllAvailable()
    assert "OffsetOutOfRange: offsets 5 to 19 of default/losing are not there" in str(caught.value)
    careless = start(source("losing", "offset long", **options, failOnDataLoss="false"), "careless")
    careless.processAllAvailable()
    assert offsets_seen(spark, "careless") == list(range(20, 40))


def test_an_error_of_a_stream_reaches_the_driver_with_its_hint(
    log: sync.Log, source: Callable[..., DataFrame], start: Start
) -> None:
    log.append("stream-end", [b"x"])
    query = start(source("stream-end", endingOffsets="latest"))
    with pytest.raises(Exception) as caught:
        query.processAllAvailable()
    assert "option endingOffsets is for a table (read), and this is a stream" in str(caught.value)
    assert "hint: Leave it out." in str(caught.value)
