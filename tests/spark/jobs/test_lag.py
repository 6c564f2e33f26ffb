"""How far queries and tables are behind: by checkpoint, by pin, by the table's own commit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from job_helpers import new_topic, numbered
from pyspark.sql import SparkSession

from ister import sync
from ister.cli.render_lag import LagView, lag_page
from ister.cli.terminal import Paint
from ister.errors import BadRequest, ConfigError
from ister.spark import lag, tier
from ister.spark.jobs.checkpoints import read_checkpoint
from ister.spark.jobs.lag import Follower, LagReport
from ister.spark.source.offsets import StreamOffset, TopicPlace

if TYPE_CHECKING:
    from conftest import BrokerProcess


def of(report: LagReport, topic: str) -> Follower:
    (found,) = [one for one in report.followers if one.topic == f"default/{topic}"]
    return found


def write_checkpoint(path: Path, *batches: dict[str, TopicPlace], done: int, reader: str = "r-1") -> str:
    for kind in ("offsets", "commits"):
        (path / kind).mkdir(parents=True)
    for number, places in enumerate(batches):
        lines: list[Any] = [{"batchTimestampMs": 1000 + number}, StreamOffset("", reader, places).to_json()]
        text = "\n".join(["v1", *map(json.dumps, lines)])
        (path / "offsets" / str(number)).write_text(text)
        (path / "offsets" / f".{number}.crc").write_text("x")
        if number < done:
            (path / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return str(path)


def test_a_query_that_does_not_run_is_where_its_last_finished_batch_ended(
    bootstrap: str, log: sync.Log, tmp_path: Path
) -> None:
    topic = new_topic("left")
    log.append(topic, numbered(0, 100))
    uid = log.describe_topic(topic).uid
    steps = [{f"default/{topic}": TopicPlace(uid, 0, end)} for end in (20, 50, 90)]
    path = write_checkpoint(tmp_path / "c", *steps, done=2)
    found = of(report := lag(bootstrap=bootstrap, checkpoints=[path]), topic)
    assert (found.kind, found.name, found.offset, found.is_running) == ("query", path, 50, False)
    assert found.lag is not None and found.lag.records == 50
    assert found.steps == [(1000, 20), (1001, 50), (1002, 90)]
    assert "Batches of" in lag_page(report)


def test_a_query_whose_first_batch_is_not_done_is_where_it_began(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "c", {"default/t": TopicPlace(1, 7, 20)}, done=0)
    found = read_checkpoint(path)
    assert (found.batch, found.topics["default/t"].offset) == (None, 7)


def test_batches_that_spark_drops_meanwhile_are_not_missed(tmp_path: Path) -> None:
    places = [{"default/t": TopicPlace(1, 0, end)} for end in (5, 9)]
    path = write_checkpoint(tmp_path / "c", *places, done=2)
    for kind in ("offsets", "commits"):
        listed_and_dropped = tmp_path / "c" / kind / "0"
        listed_and_dropped.unlink()
        listed_and_dropped.symlink_to("dropped")
    found = read_checkpoint(path)
    assert (found.batch, found.topics["default/t"].offset) == (1, 9)


def test_a_query_with_a_live_pin_runs(bootstrap: str, log: sync.Log, tmp_path: Path) -> None:
    topic = new_topic("runs")
    log.append(topic, numbered(0, 10))
    uid = log.describe_topic(topic).uid
    path = write_checkpoint(tmp_path / "c", {f"default/{topic}": TopicPlace(uid, 0, 4)}, done=1, reader="r-2")
    log.pin(topic, "r-2", 4, uid=uid)
    found = of(lag(bootstrap=bootstrap, checkpoints=[path]), topic)
    assert (found.kind, found.is_running) == ("query", True)
    log.unpin(topic, "r-2")


def test_a_reader_with_a_pin_needs_no_checkpoint(bootstrap: str, log: sync.Log) -> None:
    topic = new_topic("reader")
    log.append(topic, numbered(0, 10))
    log.pin(topic, "somebody", 3)
    found = of(report := lag(bootstrap=bootstrap), topic)
    assert (found.kind, found.name, found.lag and found.lag.records) == ("reader", "somebody", 7)
    view = LagView(report, None)
    assert "somebody" in view.to_text(Paint(on=False))
    (entry,) = [one for one in view.to_objects() if one["name"] == "somebody"]
    assert (entry["records_behind"], entry["is_running"], entry["end_offset"]) == (7, True, 10)


def test_i3_a_follower_of_a_topic_that_was_made_again_or_deleted_is_said_so(
    own_broker: BrokerProcess, tmp_path: Path
) -> None:
    topic = new_topic("remade")
    bootstrap = own_broker.address
    with sync.connect(bootstrap) as log:
        log.append(topic, numbered(0, 10))
    places = {f"default/{topic}": TopicPlace(1, 0, 4), "default/never-was": TopicPlace(1, 0, 4)}
    path = write_checkpoint(tmp_path / "c", places, done=1)
    report = lag(bootstrap=bootstrap, checkpoints=[path])
    remade, deleted = of(report, topic), of(report, "never-was")
    assert (remade.lag, "made again" in remade.note) == (None, True)
    assert (deleted.lag, "deleted" in deleted.note) == (None, True)
    assert "2 can" in lag_page(report)


def test_what_is_no_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="has no offsets"):
        read_checkpoint(str(tmp_path))
    with pytest.raises(ConfigError, match="not on this machine"):
        read_checkpoint("s3://bucket/checkpoint")


def test_a_page_says_so_if_nobody_is_behind(bootstrap: str, log: sync.Log, tmp_path: Path) -> None:
    topic = new_topic("behind")
    log.append(topic, numbered(0, 10))
    uid = log.describe_topic(topic).uid
    path = write_checkpoint(tmp_path / "c", {f"default/{topic}": TopicPlace(uid, 0, 10)}, done=1)
    report = lag(bootstrap=bootstrap, checkpoints=[path])
    report.followers = [of(report, topic)]
    assert "everybody has all there is" in lag_page(report)
    log.append(topic, numbered(10, 11))
    report = lag(bootstrap=bootstrap, checkpoints=[path])
    report.followers = [of(report, topic)]
    assert "everybody has all there is" not in lag_page(report)


@pytest.mark.spark
@pytest.mark.parametrize("to", ["delta", "parquet", "iceberg"])
def test_a_table_is_as_far_behind_as_its_last_commit(
    spark: SparkSession, bootstrap: str, log: sync.Log, tmp_path: Path, to: str
) -> None:
    topic = new_topic("lagging")
    log.append(topic, numbered(0, 10))
    tier(spark, topic, to=to, path=str(tmp_path / "t"), bootstrap=bootstrap)
    log.append(topic, numbered(10, 15))
    found = of(lag(spark, bootstrap=bootstrap, tables=[str(tmp_path / "t")]), topic)
    assert (found.kind, found.offset, found.lag and found.lag.records) == ("table", 10, 5)


@pytest.mark.spark
def test_the_checkpoint_that_spark_writes_is_read_from_here_and_by_spark(
    spark: SparkSession, bootstrap: str, log: sync.Log, tmp_path: Path
) -> None:
    topic = new_topic("written")
    log.append(topic, numbered(0, 10))
    source = spark.readStream.format("ister").option("bootstrap.servers", bootstrap)
    stream = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
    place = str(tmp_path / "checkpoint")
    query = stream.writeStream.format("noop").option("checkpointLocation", place)
    query.trigger(availableNow=True).start().awaitTermination()
    log.append(topic, numbered(10, 13))
    found = read_checkpoint(place)
    assert [(one.topic, one.offset) for one in found.topics.values()] == [(f"default/{topic}", 10)]
    by_spark = of(lag(spark, bootstrap=bootstrap, checkpoints=[place]), topic)
    assert (by_spark.offset, by_spark.lag and by_spark.lag.records) == (10, 3)
