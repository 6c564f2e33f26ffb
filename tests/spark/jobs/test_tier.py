"""`tier`: a table has each record once, goes on where it ended, and says what it is a table of."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from job_helpers import (
    DAY_US,
    FIRST_DAY_US,
    data_files,
    new_topic,
    numbered,
    offsets_of,
    read_delta,
    read_parquet,
    read_table,
    values_of,
)

from ister import sync
from ister.errors import ConfigError, OffsetOutOfRange, TableMismatch, UnknownTopic
from ister.spark import tier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FORMATS = ("parquet", "delta", "iceberg")


@pytest.fixture
def run(spark: SparkSession, bootstrap: str) -> Any:
    return partial(tier, spark, bootstrap=bootstrap)


@pytest.mark.parametrize("to", FORMATS)
def test_a_second_run_goes_on_where_the_first_ended(run: Any, log: sync.Log, tmp_path: Path, to: str) -> None:
    topic = new_topic("continued")
    log.append(topic, numbered(0, 500))
    first = run(topic, to=to, path=str(tmp_path))
    assert (first.start_offset, first.next_offset, first.records, first.is_complete) == (0, 500, 500, True)
    log.append(topic, numbered(500, 800))
    second = run(topic, to=to, path=str(tmp_path))
    assert (second.start_offset, second.next_offset, second.records, second.commits) == (500, 800, 300, 1)
    table = read_table(to, tmp_path, topic)
    assert offsets_of(table) == list(range(800))
    assert values_of(table) == numbered(0, 800)
    third = run(topic, to=to, path=str(tmp_path))
    assert (third.records, third.commits, third.files) == (0, 0, 0)


@pytest.mark.parametrize("to", FORMATS)
def test_the_table_of_an_empty_topic_is_empty(run: Any, log: sync.Log, tmp_path: Path, to: str) -> None:
    topic = new_topic("empty")
    log.create_topic(topic)
    assert run(topic, to=to, path=str(tmp_path)).records == 0
    assert read_table(to, tmp_path, topic).num_rows == 0
    log.append(topic, [b"first"])
    assert run(topic, to=to, path=str(tmp_path)).records == 1
    assert values_of(read_table(to, tmp_path, topic)) == [b"first"]


def test_the_columns_are_those_of_the_source(run: Any, log: sync.Log, tmp_path: Path) -> None:
    topic = new_topic("columns")
    log.append(
        topic,
        [b"a", None],
        keys=[None, b"k"],
        timestamps_us=[FIRST_DAY_US, FIRST_DAY_US + 5],
        headers=[[("x", b"1"), ("y", b"2")], []],
    )
    run(topic, to="delta", path=str(tmp_path))
    table = read_delta(tmp_path)
    assert set(table.schema.names) == {
        "offset", "timestamp", "timestampType", "key", "value", "headers", "date",
    }  # fmt: skip
    rows = table.to_pylist()
    assert [row["key"] for row in rows] == [None, b"k"]
    assert [row["value"] for row in rows] == [b"a", None]
    assert rows[0]["headers"] == [{"key": "x", "value": b"1"}, {"key": "y", "value": b"2"}]
    assert rows[1]["headers"] is None
    assert [row["timestampType"] for row in rows] == [0, 0]
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [FIRST_DAY_US, FIRST_DAY_US + 5]


@pytest.mark.parametrize("to", FORMATS)
def test_records_are_in_the_partition_of_their_time(run: Any, log: sync.Log, tmp_path: Path, to: str) -> None:
    topic = new_topic("partitioned")
    times = [FIRST_DAY_US + DAY_US * (number % 3) for number in range(30)]
    log.append(topic, numbered(0, 30), timestamps_us=times)
    run(topic, to=to, path=str(tmp_path))
    table = read_table(to, tmp_path, topic)
    assert offsets_of(table) == list(range(30))
    assert {each.parent.name for each in data_files(tmp_path)} == {
        "date=2025-11-19", "date=2025-11-20", "date=2025-11-21",
    }  # fmt: skip
    if to == "delta":
        days = [row["date"].isoformat() for row in table.to_pylist()]
        assert days == ["2025-11-19", "2025-11-20", "2025-11-21"] * 10


def test_a_time_before_1970_is_in_its_own_hour(run: Any, log: sync.Log, tmp_path: Path) -> None:
    topic = new_topic("hours")
    log.append(topic, numbered(0, 3), timestamps_us=[-1, 0, 3_600_000_000])
    run(topic, to="delta", path=str(tmp_path), partition_by="hour")
    rows = read_delta(tmp_path).to_pylist()
    assert [(row["date"].isoformat(), row["hour"]) for row in rows] == [
        ("1969-12-31", 23), ("1970-01-01", 0), ("1970-01-01", 1),
    ]  # fmt: skip


def test_a_file_is_not_much_larger_than_asked_for(run: Any, log: sync.Log, tmp_path: Path) -> None:
    topic = new_topic("sized")
    for start in range(0, 2_000, 100):
        log.append(topic, numbered(start, start + 100))
    done = run(topic, to="parquet", path=str(tmp_path), file_bytes=8_000)
    assert done.files > 2
    assert offsets_of(read_parquet(tmp_path)) == list(range(2_000))


# What is not there, or not the same.


def test_a_topic_made_again_under_its_name_is_another_topic(run: Any, log: sync.Log, tmp_path: Path) -> None:
    topic = new_topic("again")
    old = log.create_topic(topic).uid
    log.append(topic, [b"old"])
    run(topic, to="delta", path=str(tmp_path))
    log.delete_topic(topic)
    new = log.create_topic(topic).uid
    log.append(topic, [b"new", b"newer"])
    with pytest.raises(TableMismatch, match=f"uid {old}, which was deleted; .* now has uid {new}"):
        run(topic, to="delta", path=str(tmp_path))
    assert values_of(read_delta(tmp_path)) == [b"old"]


def test_another_topics_table_is_refused(run: Any, log: sync.Log, tmp_path: Path) -> None:
    one, other = new_topic("one"), new_topic("other")
    log.append(one, [b"1"]), log.append(other, [b"2"])
    run(one, to="parquet", path=str(tmp_path))
    with pytest.raises(TableMismatch, match=f"records of default/{one}, not of default/{other}"):
        run(other, to="parquet", path=str(tmp_path))


def test_a_table_stays_as_it_was_made(run: Any, log: sync.Log, tmp_path: Path) -> None:
    topic = new_topic("made")
    log.append(topic, [b"1"])
    run(topic, to="parquet", path=str(tmp_path), partition_by="hour")
    with pytest.raises(TableMismatch, match="partition_by 'hour', not 'date'"):
        run(topic, to="parquet", path=str(tmp_path))


def test_a_trimmed_start_is_an_error_with_its_offsets(run: Any, log: sync.Log, tmp_path: Path) -> None:
    topic = trimmed_topic(log)
    with pytest.raises(OffsetOutOfRange, match=r"offsets 0 to 99 .* begins at 100 now") as caught:
        run(topic, to="delta", path=str(tmp_path))
    assert caught.value.offsets == (0, 100)
    assert "--skip-missing" in caught.value.hint


@pytest.mark.parametrize("to", FORMATS)
def test_a_table_may_begin_where_the_topic_does_now(run: Any, log: sync.Log, tmp_path: Path, to: str) -> None:
    topic = trimmed_topic(log)
    done = run(topic, to=to, path=str(tmp_path), skip_missing=True)
    assert done.gaps == [(0, 100)]
    assert offsets_of(read_table(to, tmp_path, topic)) == list(range(100, 250))
    again = run(topic, to=to, path=str(tmp_path))
    assert (again.start_offset, again.records) == (250, 0)


def trimmed_topic(log: sync.Log) -> str:
    topic = new_topic("trimmed")
    log.create_topic(topic, segment_records=100)
    for start in range(0, 250, 50):
        log.append(topic, numbered(start, start + 50))
    assert log.trim_topic(topic, 150) == 100
    return topic


def test_an_unknown_topic_makes_no_table(run: Any, tmp_path: Path) -> None:
    with pytest.raises(UnknownTopic):
        run("nowhere", to="parquet", path=str(tmp_path / "table"))
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"to": "csv", "path": "/x"}, "no format 'csv'"),
        ({"to": "delta"}, "needs a path"),
        ({"to": "delta", "path": "/x", "catalog": "c"}, "has no catalog"),
        ({"to": "delta", "path": "/x", "partition_by": "week"}, "no partitioning 'week'"),
        ({"to": "delta", "path": "/x", "decode": "json"}, "needs a kind and a schema"),
    ],
)
def test_what_can_not_be_meant_is_refused_before_anything_happens(
    run: Any, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        run("any", **given)
