"""A range once more, into a topic or a table, with a receipt that makes it the same or refuses."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from job_helpers import new_topic, numbered, read_delta
from pyspark.sql import SparkSession

from ister import sync
from ister.arrow import to_record_batch
from ister.cli.render_copies import ReplayView
from ister.cli.terminal import Paint
from ister.errors import ConfigError, OffsetOutOfRange, ReceiptMismatch, TableMismatch
from ister.spark import replay
from ister.spark.jobs import replay as replaying
from ister.spark.jobs.copying.contents import ContentHash
from ister.spark.jobs.copying.receipts import Receipt, read_receipt, write_receipt

pytestmark = pytest.mark.spark


def values(log: sync.Log, topic: str) -> list[bytes | None]:
    return [record.value for record in log.read(topic)]


def test_a_range_that_cuts_frames_is_replayed_exactly(
    spark: SparkSession, bootstrap: str, log: sync.Log
) -> None:
    source, target = new_topic("replayed"), new_topic("replay")
    log.create_topic(source, segment_records=100)
    for start in range(0, 300, 100):
        log.append(source, numbered(start, start + 100), timestamps_us=list(range(start, start + 100)))
    done = replay(spark, source, to=target, start=33, until=266, bootstrap=bootstrap)
    assert (done.records, done.target_start) == (233, 0)
    found = [(record.value, record.timestamp_us) for record in log.read(target)]
    assert found == list(zip(numbered(33, 266), range(33, 266), strict=True))


def test_times_choose_by_the_append(spark: SparkSession, bootstrap: str, log: sync.Log) -> None:
    source, target = new_topic("replay-times"), new_topic("replay-times-to")
    first = log.append(source, numbered(0, 5)).append_time_us
    while (middle := log.append(source, [b"middle"])).append_time_us == first:
        pass
    while log.append(source, [b"last"]).append_time_us == middle.append_time_us:
        pass
    until = datetime.fromtimestamp((middle.append_time_us + 1) / 1e6, UTC)
    done = replay(spark, source, to=target, until=until, bootstrap=bootstrap)
    assert done.end_offset == middle.base_offset + 1
    assert values(log, target) == values(log, source)[: middle.base_offset + 1]


def test_by_a_receipt_the_same_is_replayed_though_the_topic_has_grown_and_rolled(
    spark: SparkSession, bootstrap: str, log: sync.Log, tmp_path: Path
) -> None:
    source, target, other = new_topic("receipted"), new_topic("receipted-to"), new_topic("receipted-to")
    log.create_topic(source, segment_records=60)
    log.append(source, numbered(0, 50))
    first = replay(spark, source, to=target, start=10, bootstrap=bootstrap)
    assert first.receipt is not None
    write_receipt(tmp_path / "receipt", first.receipt)
    log.append(source, numbered(50, 200))
    known = read_receipt(tmp_path / "receipt")
    again = replay(spark, source, to=other, receipt=known, bootstrap=bootstrap)
    assert (again.start_offset, again.end_offset, again.receipt) == (10, 50, known)
    assert values(log, other) == values(log, target) == numbered(10, 50)


def test_records_that_differ_from_the_receipt_are_refused_by_their_offsets_and_nothing_is_visible(
    spark: SparkSession, bootstrap: str, log: sync.Log
) -> None:
    source, target = new_topic("differs"), new_topic("differs-to")
    log.append(source, numbered(0, 20))
    made = replay(spark, source, to=new_topic("differs-to"), bootstrap=bootstrap).receipt
    assert made is not None
    wrong = msgspec.structs.replace(made.ranges[0], checksum="0" * 32)
    known = msgspec.structs.replace(made, ranges=[wrong])
    with pytest.raises(ReceiptMismatch, match="offsets 0 to 19") as caught:
        replay(spark, source, to=target, receipt=known, bootstrap=bootstrap)
    assert caught.value.offsets == (0, 20)
    assert values(log, target) == []


def test_i3_a_receipt_of_a_topic_that_was_made_again_is_refused(
    spark: SparkSession, bootstrap: str, log: sync.Log
) -> None:
    source = new_topic("receipt-remade")
    log.append(source, numbered(0, 5))
    made = replay(spark, source, to=new_topic("receipt-to"), bootstrap=bootstrap).receipt
    log.delete_topic(source)
    log.append(source, numbered(0, 5))
    with pytest.raises(ReceiptMismatch, match="has uid"):
        replay(spark, source, to=new_topic("receipt-to"), receipt=made, bootstrap=bootstrap)


def test_a_replay_that_is_done_is_done_once_more_only_if_that_is_said(
    spark: SparkSession, bootstrap: str, log: sync.Log
) -> None:
    source, target = new_topic("once"), new_topic("once-to")
    log.append(source, numbered(0, 5))
    where: dict[str, Any] = {"to": target, "bootstrap": bootstrap}
    assert not replay(spark, source, **where).was_done
    repeated = replay(spark, source, **where)
    assert (repeated.was_done, repeated.records, repeated.target_start) == (True, 0, 0)
    assert "--again" in ReplayView(repeated, None, False).to_text(Paint(on=False))
    replay(spark, source, again=True, **where)
    assert values(log, target) == numbered(0, 5) * 2


@pytest.mark.parametrize("step", ["before-manifest", "manifest", "half-appended", "appended", "done"])
def test_a_replay_that_died_is_finished_by_the_same_command(
    spark: SparkSession, bootstrap: str, log: sync.Log, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    class Died(BaseException):
        pass

    async def die(reached: str) -> None:
        if reached == step:
            raise Died

    source, target = new_topic("died"), new_topic("died-to")
    log.append(source, numbered(0, 25))
    with monkeypatch.context() as patched:
        patched.setattr(replaying, "reach_of_environment", lambda: die)
        with pytest.raises(Died):
            replay(spark, source, to=target, until=25, bootstrap=bootstrap)
    replay(spark, source, to=target, until=25, bootstrap=bootstrap)
    assert values(log, target) == numbered(0, 25)


def test_a_replay_that_died_is_finished_though_the_topic_has_grown_and_the_next_one_is_another(
    spark: SparkSession, bootstrap: str, log: sync.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was decided is appended whole, and never stays half-way."""

    class Died(BaseException):
        pass

    async def die(reached: str) -> None:
        if reached == "manifest":
            raise Died

    source, target = new_topic("grown"), new_topic("grown-to")
    log.append(source, numbered(0, 25))
    with monkeypatch.context() as patched:
        patched.setattr(replaying, "reach_of_environment", lambda: die)
        with pytest.raises(Died):
            replay(spark, source, to=target, bootstrap=bootstrap)
    log.append(source, numbered(25, 30))
    done = replay(spark, source, to=target, bootstrap=bootstrap)
    assert (done.records, done.target_start) == (30, 25)
    assert values(log, target) == [*numbered(0, 25), *numbered(0, 30)]


def test_a_range_becomes_a_table_of_its_own(
    spark: SparkSession, bootstrap: str, log: sync.Log, tmp_path: Path
) -> None:
    source = new_topic("to-table")
    log.create_topic(source, segment_records=20)
    for start in range(0, 60, 20):
        log.append(source, numbered(start, start + 20))
    where: dict[str, Any] = {"to_table": "delta", "path": str(tmp_path / "t"), "bootstrap": bootstrap}
    done = replay(spark, source, start=15, until=45, **where)
    found = read_delta(tmp_path / "t")
    assert found.column("offset").to_pylist() == list(range(15, 45))
    assert found.column("value").to_pylist() == numbered(15, 45)
    assert done.receipt is not None and done.receipt.records == 30
    assert replay(spark, source, start=15, until=45, **where).was_done
    with pytest.raises(TableMismatch, match="begins with offset 15"):
        replay(spark, source, start=20, until=45, **where)
    with pytest.raises(TableMismatch, match=r"has offsets up to 44 of .*, not up to 29"):
        replay(spark, source, start=15, until=30, **where)


@pytest.mark.parametrize(("start", "until", "error"), [(5, 3, ConfigError), (0, 11, OffsetOutOfRange)])
def test_a_range_that_is_none_is_refused(
    spark: SparkSession, bootstrap: str, log: sync.Log, start: int, until: int, error: type[Exception]
) -> None:
    source = new_topic("no-range")
    log.append(source, numbered(0, 10))
    with pytest.raises(error):
        replay(spark, source, to=new_topic("none"), start=start, until=until, bootstrap=bootstrap)


# The checksum.


def checksum(log: sync.Log, topic: str, *cuts: int) -> str:
    """Of the topic's records, in batches that end at these offsets."""
    frames = list(log.read(topic).frames())
    made = ContentHash()
    for start, end in zip((0, *cuts), (*cuts, 1 << 60), strict=True):
        columns = ["offset", "timestamp", "key", "value", "headers"]
        made.add(to_record_batch(frames, columns=columns, first_offset=start, end_offset=end))
    return made.hexdigest()


def test_a_checksum_is_of_what_records_say_however_they_are_batched(log: sync.Log) -> None:
    topic = new_topic("hashed")
    headers: list[Any] = [[("a", b"1"), ("b", b"")], [], [("c", b"33")], []]
    where: dict[str, Any] = {"keys": [b"k", None, b"", b"kk"], "timestamps_us": [1, 2, 3, 4]}
    log.append(topic, [b"one", None, b"", b"four"], headers=headers, **where)
    log.append(topic, [b"bare", b"alone"])
    whole = checksum(log, topic)
    assert {checksum(log, topic, *cuts) for cuts in [(1,), (2, 4), (1, 2, 3, 4, 5), (4,)]} == {whole}


@pytest.mark.parametrize(
    "other",
    [
        {"values": [b"ab", b"d"]},
        {"values": [b"a", b"bd"]},
        {"keys": [None, b""]},
        {"keys": [b"", None]},
        {"timestamps_us": [1, 3]},
        {"headers": [[("h", b"")], []]},
    ],
    ids=["value", "border", "empty-key", "null-key", "time", "header"],
)
def test_a_checksum_tells_records_apart(log: sync.Log, other: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"values": [b"abc", b"d"], "timestamps_us": [1, 2]}
    if "values" not in other:
        plain["values"] = [b"a", b"bd"]
    topics = [new_topic("apart"), new_topic("apart")]
    for topic, record in zip(topics, (plain | {"values": [b"abd", b""]}, {**plain, **other}), strict=True):
        log.append(topic, record.pop("values"), **record)
    first, second = (checksum(log, topic) for topic in topics)
    assert first != second


def test_a_receipt_is_json_that_a_person_can_read(tmp_path: Path) -> None:
    path = tmp_path / "receipt"
    write_receipt(path, Receipt("c", "default/t", 7, []))
    assert json.loads(path.read_text())["topic"] == "default/t"
    assert read_receipt(path).records == 0
    assert [one.name for one in tmp_path.iterdir()] == ["receipt"]
