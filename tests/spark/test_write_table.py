"""Tables into topics, through a real Spark session to a real broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from ister import sync
from ister.errors import UnknownTopic

pytestmark = pytest.mark.spark

Load = Callable[..., DataFrame]


def save(table: DataFrame, bootstrap: str, **options: Any) -> None:
    table.write.format("ister").option("kafka.bootstrap.servers", bootstrap).options(**options).mode(
        "append"
    ).save()


def write_error(table: DataFrame, bootstrap: str, **options: Any) -> str:
    with pytest.raises(Exception) as caught:
        save(table, bootstrap, **options)
    return str(caught.value)


def test_what_is_written_is_read_back_with_keys_nulls_and_headers(
    spark: SparkSession, bootstrap: str, load: Load
) -> None:
    rows = [
        (b"k1", b"one", [("a", b"1"), ("b", b"")]),
        (None, b"two", None),
        (b"", None, None),
        (b"k4", b"", [("c", b"\xff")]),
    ]
    kinds = "key binary, value binary, headers array<struct<key string, value binary>>"
    save(spark.createDataFrame(rows, kinds).coalesce(1), bootstrap, topic="round-trip")
    found = load("round-trip", includeHeaders="true").orderBy("offset").collect()
    assert [(row.key, row.value) for row in found] == [row[:2] for row in rows]
    headers = [row.headers and [tuple(header) for header in row.headers] for row in found]
    assert headers == [row[2] for row in rows]


HEADERS = "array(named_struct('key', 'trace', 'value', cast(cast(id as string) as binary)))"


@pytest.mark.parametrize("include", ["true", "false"])
@pytest.mark.parametrize("delivery", ["atomic", "at-least-once"])
def test_headers_are_written_with_every_delivery_whatever_is_said_of_reading_them(
    spark: SparkSession, bootstrap: str, log: sync.Log, delivery: str, include: str
) -> None:
    """As Kafka's: the column decides, and options for both ways are taken here, too."""
    topic = f"headers-{delivery}-{include}"
    rows = spark.range(0, 4, 1, 1).selectExpr(
        "cast(id as string) value", f"if(id = 2, null, {HEADERS}) headers"
    )
    save(rows, bootstrap, topic=topic, delivery=delivery, includeHeaders=include)
    found = [list(record.headers) for record in log.read(topic)]
    numbers = [[("trace", b"%d" % number)] for number in range(4)]
    assert found == [*numbers[:2], [], numbers[3]]


def test_a_header_without_a_name_or_a_value_fails_the_write(spark: SparkSession, bootstrap: str) -> None:
    for pair in (
        "named_struct('key', 'a', 'value', cast(null as binary))",
        "named_struct('key', cast(null as string), 'value', cast('b' as binary))",
    ):
        told = write_error(spark.sql(f"select 'x' value, array({pair}) headers"), bootstrap, topic="no-pair")
        assert "a header is a pair of str and bytes" in told


def test_many_rows_arrive_each_once_whatever_the_size_of_a_frame(
    spark: SparkSession, bootstrap: str, load: Load, log: sync.Log
) -> None:
    rows = spark.range(30_000).repartition(3).selectExpr("cast(id as string) key", "repeat('v', 300) value")
    save(rows, bootstrap, topic="many")
    table = load("many")
    assert table.selectExpr("count(*)", "count(distinct key)").first() == (30_000, 30_000)
    assert table.selectExpr("min(length(value))", "max(length(value))").first() == (300, 300)
    assert log.describe_topic("many").end_offset == 30_000


def test_rows_go_to_the_topics_that_they_name_in_their_order(
    spark: SparkSession, bootstrap: str, log: sync.Log
) -> None:
    rows = spark.range(0, 3000, 1, 1).selectExpr("concat('named-', id % 3) topic", "cast(id as string) value")
    save(rows, bootstrap)
    for number in range(3):
        found = [int(record.value or b"") for record in log.read(f"named-{number}")]
        assert found == list(range(number, 3000, 3))


def test_the_option_topic_goes_before_the_column(spark: SparkSession, bootstrap: str, log: sync.Log) -> None:
    save(spark.sql("select 'by-column' topic, 'x' value"), bootstrap, topic="by-option")
    assert log.describe_topic("by-option").end_offset == 1
    with pytest.raises(UnknownTopic):
        log.describe_topic("by-column")


def test_a_table_that_was_read_can_be_written_as_it_is(bootstrap: str, log: sync.Log, load: Load) -> None:
    log.append("copied", [b"a", b"b"], keys=[b"k", None])
    save(load("copied", includeHeaders="true"), bootstrap, topic="copy")
    assert [(record.key, record.value) for record in log.read("copy")] == [(b"k", b"a"), (None, b"b")]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("select 1 value", "column value is int, not string or binary"),
        ("select 1 key, 'x' value", "column key is int, not string or binary"),
        ("select 'x' v", "there is no column `value` among ['v']"),
        ("select 'x' value, map('a', 'b') headers", "column headers is map<string,string>"),
        ("select 'x' value, 5 amount", "column 'amount' has no place in a record"),
        ("select 'x' value, 'k' ky", "column 'ky' has no place in a record; did you mean key?"),
    ],
)
def test_a_schema_that_is_no_record_is_refused_before_a_byte_is_sent(
    spark: SparkSession, bootstrap: str, log: sync.Log, query: str, said: str
) -> None:
    told = write_error(spark.sql(query), bootstrap, topic="refused")
    assert said in told and "hint: " in told
    with pytest.raises(UnknownTopic):
        log.describe_topic("refused")


def test_rows_without_a_topic_are_refused(spark: SparkSession, bootstrap: str) -> None:
    assert "neither option topic nor a column" in write_error(spark.sql("select 'x' value"), bootstrap)
    told = write_error(spark.sql("select 'x' value, cast(null as string) topic"), bootstrap)
    assert "1 of 1 rows have no topic" in told


def test_a_log_is_not_overwritten(spark: SparkSession, bootstrap: str) -> None:
    writer = spark.sql("select 'x' value").write.format("ister").option("topic", "t")
    with pytest.raises(Exception, match="a log can't be overwritten"):
        writer.option("bootstrap.servers", bootstrap).mode("overwrite").save()


def test_a_row_too_large_for_its_topic_fails_the_write_and_says_why(
    spark: SparkSession, bootstrap: str, log: sync.Log
) -> None:
    log.create_topic("narrow", max_message_bytes=4096)
    told = write_error(spark.sql("select repeat('x', 5000) value"), bootstrap, topic="narrow")
    assert "MessageTooLarge" in told and "max_message_bytes" in told
    assert log.describe_topic("narrow").end_offset == 0


def test_a_job_that_fails_leaves_nothing_visible(spark: SparkSession, bootstrap: str, log: sync.Log) -> None:
    fails = "case when id = 39999 then raise_error('broken') else cast(id as string) end value"
    assert "broken" in write_error(spark.range(0, 40_000, 1, 2).selectExpr(fails), bootstrap, topic="whole")
    with pytest.raises(UnknownTopic):
        log.describe_topic("whole")
    assert log.list_topics("_spark/job-") == []


def test_two_writes_of_one_micro_batch_to_one_topic_both_arrive(
    spark: SparkSession, bootstrap: str, log: sync.Log, tmp_path: Path
) -> None:
    """Both have the query's and the batch's id; neither is taken for the other, or for a repeat."""

    def write_twice(rows: DataFrame, batch: int) -> None:
        for prefix in ("a", "b"):
            save(rows.selectExpr(f"concat('{prefix}', value) value"), bootstrap, topic="each-batch")

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "lines.txt").write_text("1\n2\n")
    stream = spark.readStream.text(str(tmp_path / "in")).writeStream.foreachBatch(write_twice)
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    stream.start().awaitTermination()
    assert sorted(record.value or b"" for record in log.read("each-batch")) == [b"a1", b"a2", b"b1", b"b2"]


def test_a_version_of_an_application_is_written_once(
    spark: SparkSession, bootstrap: str, log: sync.Log
) -> None:
    for version, value in ((1, "one"), (1, "one again"), (2, "two"), (1, "one at last")):
        table = spark.sql(f"select '{value}' value")
        save(table, bootstrap, topic="versions", txnAppId="nightly", txnVersion=version)
    assert [record.value for record in log.read("versions")] == [b"one", b"two"]


def test_rows_go_straight_to_their_topic_where_at_least_once_is_enough(
    spark: SparkSession, bootstrap: str, log: sync.Log
) -> None:
    rows = spark.range(0, 100, 1, 2).selectExpr("cast(id as string) value")
    save(rows, bootstrap, topic="direct", delivery="at-least-once")
    assert sorted(int(record.value or b"") for record in log.read("direct")) == list(range(100))


def test_a_write_to_nobody_names_the_address(spark: SparkSession) -> None:
    table = spark.range(1).select(col("id").cast("string").alias("value"))
    assert "127.0.0.1:1" in write_error(table, "127.0.0.1:1", topic="t")
