"""Topics as tables, through a real Spark session from a real broker."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from ister import sync
from ister.spark import register
from ister.spark.schema import HEADERS_TYPE, arrow_schema, table_schema

pytestmark = pytest.mark.spark

Load = Callable[..., DataFrame]


def test_the_table_has_kafkas_columns_and_every_record(log: sync.Log, load: Load) -> None:
    """No `register` was called in this session: the package `pyspark_ister` was found."""
    appended = log.append("columns", [b"a", None], keys=[b"k", None])
    log.append("columns", [b"c"], timestamps_us=[1_700_000_000_123_456])
    table = load("columns")
    assert table.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    first, second, third = table.orderBy("offset").collect()
    assert (first.key, first.value, first.topic) == (b"k", b"a", "default/columns")
    assert (second.key, second.value, second.offset) == (None, None, 1)
    assert [row.partition for row in (first, second, third)] == [0, 0, 0]
    assert [row.timestampType for row in (first, second, third)] == [1, 1, 0]
    assert micros(first.timestamp) == appended.append_time_us
    assert micros(third.timestamp) == 1_700_000_000_123_456


def micros(moment: datetime) -> int:
    return round(moment.astimezone(UTC).timestamp() * 1_000_000)


def test_batches_have_exactly_the_schema_that_spark_compares_them_with(bootstrap: str, log: sync.Log) -> None:
    from ister.spark.options import parse_table_options
    from ister.spark.ranges import Loss
    from ister.spark.source.planning import plan
    from ister.spark.source.reading import read_range

    log.append("exact", [b"a"], headers=[[("h", b"1")]])
    log.append("exact", [b"b"], timestamps_us=[1])
    (part,) = plan(parse_table_options({"bootstrap.servers": bootstrap, "subscribe": "exact"}), 1)
    schema = arrow_schema(table_schema(include_headers=True))
    (batch,) = read_range(bootstrap, part, schema, Loss(True))
    assert batch.schema.equals(schema)
    assert str(schema.field("value").type) == "binary"
    assert str(schema.field("timestamp").type) == "timestamp[us, tz=UTC]"
    batch.validate(full=True)


def test_headers_are_a_column_when_asked_for(log: sync.Log, load: Load) -> None:
    log.append("headed", [b"a", b"b"], headers=[[("h", b"1"), ("h", b"")], []])
    assert "headers" not in load("headed").columns
    table = load("headed", includeHeaders="true").orderBy("offset")
    assert table.schema["headers"].dataType == HEADERS_TYPE
    first, second = table.collect()
    assert [(header.key, header.value) for header in first.headers] == [("h", b"1"), ("h", b"")]
    assert second.headers is None


def test_a_filtered_and_then_an_unfiltered_query_on_one_table_both_see_their_rows(
    log: sync.Log, load: Load
) -> None:
    """A source that takes filters is asked once for both: the second would get the first one's rows."""
    log.append("twice", [b"x"] * 1000)
    table = load("twice")
    assert table.filter("offset < 10").count() == 10
    assert table.count() == 1000
    assert table.filter("offset >= 990").count() == 10


def test_a_table_is_a_snapshot_and_a_fresh_load_sees_what_came_since(log: sync.Log, load: Load) -> None:
    log.append("snapshot", [b"x"] * 5)
    table = load("snapshot")
    assert table.count() == 5
    log.append("snapshot", [b"y"] * 5)
    assert table.count() == 5
    assert load("snapshot").count() == 10


def test_a_projected_schema_reads_just_those_columns_in_that_order(log: sync.Log, load: Load) -> None:
    log.append("projected", [b"x"] * 3)
    table = load("projected", "partition int, timestamp timestamp, offset long")
    assert table.columns == ["partition", "timestamp", "offset"]
    assert [row.offset for row in table.orderBy("offset").collect()] == [0, 1, 2]
    assert load("projected", "topic string").distinct().collect() == [("default/projected",)]
    assert load("projected", "timestampType int").count() == 3


def test_starting_and_ending_offsets_bound_the_table_however_it_is_divided(log: sync.Log, load: Load) -> None:
    for _ in range(5):
        log.append("bounded", [b"x"] * 20)
    bounds = {"startingOffsets": '{"bounded":{"0":15}}', "endingOffsets": '{"bounded":{"0":85}}'}
    table = load("bounded", **bounds, minPartitions=7)
    assert table.rdd.getNumPartitions() == 7
    assert sorted(row.offset for row in table.collect()) == list(range(15, 85))


def test_several_topics_and_empty_ones_are_one_table(log: sync.Log, load: Load) -> None:
    log.append("several-a", [b"a"] * 2)
    log.append("several-b", [b"b"] * 3)
    log.create_topic("several-empty")
    counts = load("several-a,several-b,several-empty").groupBy("topic").count()
    assert sorted(map(tuple, counts.collect())) == [("default/several-a", 2), ("default/several-b", 3)]
    assert load("several-empty").count() == 0


def read_error(table: DataFrame) -> str:
    with pytest.raises(Exception) as caught:
        table.collect()
    return str(caught.value)


def test_an_unknown_option_is_an_error_with_the_nearest_known_one_and_a_hint(load: Load) -> None:
    with pytest.raises(AnalysisException) as caught:
        load("t", startingOfsets="earliest")
    assert "'startingofsets'; did you mean startingOffsets?" in str(caught.value)
    assert "hint: The options here are:" in str(caught.value)


def test_an_error_of_a_task_reaches_the_driver_with_its_hint(log: sync.Log, load: Load) -> None:
    log.append("vanishing", [b"x"] * 10)
    table = load("vanishing")
    assert table.count() == 10
    log.delete_topic("vanishing")
    said = read_error(table)
    assert "ister.errors.UnknownTopic: offsets 0 to 9 of default/vanishing are not there" in said
    assert "hint: " in said and "failOnDataLoss" in said


def test_a_column_that_does_not_exist_is_refused_by_name(log: sync.Log, load: Load) -> None:
    log.append("misread", [b"x"])
    assert "there is no column 'ofset'; did you mean offset?" in read_error(load("misread", "ofset long"))
    assert "column offset is bigint, not int" in read_error(load("misread", "offset int"))


def test_a_session_can_be_given_the_source_by_hand(
    spark: SparkSession, bootstrap: str, log: sync.Log
) -> None:
    log.append("by-hand", [b"x"])
    session = spark.newSession()  # what is registered there stays there
    register(session)
    reader = session.read.format("ister").option("bootstrap.servers", bootstrap)
    assert reader.option("subscribe", "by-hand").load().count() == 1


def test_a_query_that_needs_few_rows_stops_early_in_peace(log: sync.Log, load: Load) -> None:
    for _ in range(30):
        log.append("limited", [b"x" * 100] * 5_000)
    assert len(load("limited").limit(3).collect()) == 3
    assert load("limited").count() == 150_000


def test_the_example_runs(bootstrap: str, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[2] / "examples" / "spark_first_look.py"
    runpy.run_path(str(example))["main"](bootstrap, spark)
    told = capsys.readouterr().out
    assert "1,000 orders" in told and "north" in told
