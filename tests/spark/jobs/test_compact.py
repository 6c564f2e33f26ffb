"""Small objects of a real broker's history become few large ones, and each key's latest record is kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from history_helpers import filled, numbered, objects_of, planned, rows, until_released
from job_helpers import new_topic

from ister import sync
from ister.errors import BadRequest, ConfigError, CorruptSegment, OffsetOutOfRange
from ister.history.merging import plan_merges
from ister.spark import audit, compact, latest_by_key
from ister.spark.jobs.compact import LEFT_BEHIND_S, merge_in
from ister.spark.ranges import HISTORY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import BrokerProcess

pytestmark = pytest.mark.spark


def by_hand(log: sync.Log, topic: str, object_bytes: int = 1 << 30) -> list[str]:
    """What the job does, without Spark."""
    listed = log.history(topic)
    told = []
    for wanted in plan_merges(listed, log.cluster_id, object_bytes):
        made = merge_in(listed.location, wanted)
        assert not isinstance(made, str), made
        told.append(log.merge_objects(topic, listed.topic_uid, made.attempt, wanted.replaced()).problem)
    return told


def test_objects_are_merged_and_the_same_bytes_are_read_by_brokers_history_and_spark(
    spark: SparkSession, keeper: BrokerProcess, kept: sync.Log
) -> None:
    topic = new_topic("compacted")
    filled(kept, topic, 7, local_retention_ms=1)
    until_released(kept, topic, 7)

    def frames() -> list[bytes]:
        return [bytes(frame.data) for frame in kept.read(topic).frames()]

    before, old = frames(), objects_of(kept, topic)
    largest = max(path.stat().st_size for path in old)
    done = compact(spark, topic, bootstrap=keeper.address, object_bytes=4 * largest)
    assert len(done.merged) == 2 and not done.left and done.is_complete
    assert (done.objects, done.replaced) == (7, 7)
    assert all(one.size <= 4 * largest for one in done.merged)
    assert {path.name for path in objects_of(kept, topic)} == {Path(one.name).name for one in done.merged}
    for path in old:
        assert path.exists(), "what was replaced can be read for its time"
        path.unlink()
    assert frames() == before
    assert rows(keeper.address, planned(keeper.address, topic)) == numbered(0, 75)
    read = spark.read.format("ister").options(**{"bootstrap.servers": keeper.address, "subscribe": topic})
    found = read.schema("offset long, value binary").load().collect()
    assert sorted((row["offset"], bytes(row["value"])) for row in found) == numbered(0, 75)
    assert audit(spark, topic, bootstrap=keeper.address).is_clean
    again = compact(spark, topic, bootstrap=keeper.address, object_bytes=4 * largest)
    assert not again.merged and not again.left


def test_what_was_planned_before_is_read_after_the_objects_were_replaced_and_deleted(
    keeper: BrokerProcess, kept: sync.Log
) -> None:
    topic = new_topic("replaced-meanwhile")
    filled(kept, topic, 4)
    parts = planned(keeper.address, topic)
    old = objects_of(kept, topic)
    assert by_hand(kept, topic) == [""]
    for path in old:
        path.unlink()
    assert rows(keeper.address, parts, tier=HISTORY) == numbered(0, 45)


def test_a_driver_that_died_behind_the_upload_and_an_executor_in_it_leave_nothing_behind(
    keeper: BrokerProcess, kept: sync.Log
) -> None:
    topic = new_topic("died-behind")
    filled(kept, topic, 4)
    listed, before = kept.history(topic), objects_of(kept, topic)
    (wanted,) = plan_merges(listed, kept.cluster_id, 1 << 30)
    made = merge_in(listed.location, wanted)
    assert objects_of(kept, topic) == before, "nobody names it"
    root = Path(listed.location.removeprefix("file://"))
    left, busy = (root / ".unfinished" / "compact" / name for name in ("of-the-killed", "of-another-job"))
    for path in (left, busy):
        path.write_bytes(b"half of an upload")
    an_hour_ago = busy.stat().st_mtime - LEFT_BEHIND_S
    os.utime(left, (an_hour_ago, an_hour_ago))
    assert by_hand(kept, topic) == [""]
    assert {path.name for path in objects_of(kept, topic)} == {Path(str(made)).name}, "it was adopted"
    assert not left.exists()
    assert busy.exists(), "another job may be at it"
    busy.unlink()
    assert rows(keeper.address, planned(keeper.address, topic)) == numbered(0, 45)


def test_a_part_of_a_merged_object_that_rots_is_found_and_the_others_are_read(
    spark: SparkSession, keeper: BrokerProcess, kept: sync.Log
) -> None:
    topic = new_topic("rotten-part")
    filled(kept, topic, 3, local_retention_ms=1)
    until_released(kept, topic, 3)
    assert by_hand(kept, topic) == [""]
    second = kept.history(topic).entries[1]
    path = objects_of(kept, topic)[0]
    data = bytearray(path.read_bytes())
    data[second.position + second.frames_size - 2] ^= 1
    path.chmod(0o640)
    path.write_bytes(data)
    parts = planned(keeper.address, topic)
    with pytest.raises(CorruptSegment, match="offsets 15 to 19"):
        rows(keeper.address, parts)
    assert rows(keeper.address, parts, fails=False) == numbered(0, 15) + numbered(20, 35)
    found = audit(spark, topic, bootstrap=keeper.address).topics[0].findings[0]
    assert (found.start, found.end) == (15, 20)


def test_an_object_that_is_damaged_leaves_its_run_as_it_was_and_is_named(
    spark: SparkSession, keeper: BrokerProcess, kept: sync.Log
) -> None:
    topic = new_topic("damaged-run")
    filled(kept, topic, 3)
    names = objects_of(kept, topic)
    names[1].unlink()
    done = compact(spark, topic, bootstrap=keeper.address)
    assert not done.merged
    (left,) = done.left
    assert left.damaged and names[1].name in left.why and (left.start_offset, left.end_offset) == (0, 30)
    assert objects_of(kept, topic) == names


def test_a_topic_without_a_history_is_refused(spark: SparkSession, bootstrap: str, log: sync.Log) -> None:
    topic = new_topic("local")
    log.create_topic(topic)
    with pytest.raises(BadRequest, match="no history"):
        compact(spark, topic, bootstrap=bootstrap)


# Latest by key.


def put(log: sync.Log, topic: str, *pairs: tuple[str | None, str | None]) -> None:
    log.append(
        topic,
        [None if value is None else value.encode() for _, value in pairs],
        keys=[None if key is None else key.encode() for key, _ in pairs],
        headers=[[("said", b"yes")] for _ in pairs],
    )


def told(log: sync.Log, topic: str) -> list[tuple[Any, ...]]:
    return [(one.key, one.value, one.timestamp_us, list(one.headers or [])) for one in log.read(topic)]


def test_each_keys_latest_record_is_kept_and_a_record_without_a_value_deletes_it(
    spark: SparkSession, bootstrap: str, log: sync.Log
) -> None:
    topic = new_topic("customers")
    target = f"{topic}-now"
    log.create_topic(topic, segment_records=3)
    put(log, topic, ("a", "1"), ("b", "1"), ("gone", "1"), (None, "nobody's"))
    put(log, topic, ("a", "2"), ("gone", None), ("c", "1"))
    source = {(one.key, one.value): one.timestamp_us for one in log.read(topic)}

    def run() -> Any:
        return latest_by_key(spark, topic, to=target, bootstrap=bootstrap)

    done = run()
    assert (done.records, done.deleted, done.without_key, done.end_offset) == (3, 0, 1, 7)
    yes = [("said", b"yes")]
    first = [
        (key, value, source[key, value], yes) for key, value in ((b"b", b"1"), (b"a", b"2"), (b"c", b"1"))
    ]
    assert told(log, target) == first, "in the source's order, with its times and headers"
    done = run()
    assert done.records == 0 and told(log, target) == first
    put(log, topic, ("b", "2"), ("b", None), ("a", "3"), ("d", "1"), ("a", "4"))
    done = run()
    assert (done.start_offset, done.records, done.deleted) == (7, 3, 1)
    later = [(key, value) for key, value, _, _ in told(log, target)[3:]]
    assert later == [(b"b", None), (b"d", b"1"), (b"a", b"4")]
    folded = {one.key: one.value for one in log.read(target)}
    assert {key: value for key, value in folded.items() if value is not None} == {
        b"a": b"4",
        b"c": b"1",
        b"d": b"1",
    }
    assert log.describe_topic(target).settings.retention_ms == 0


def test_a_run_that_dies_in_its_commit_is_finished_by_the_next_and_nothing_comes_twice(
    spark: SparkSession, bootstrap: str, log: sync.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ister.spark.jobs import latest

    topic = new_topic("dying")
    target = f"{topic}-now"
    log.create_topic(topic)
    put(log, topic, *((f"key {number % 10}", f"{number}") for number in range(100)))

    class Died(Exception):
        pass

    for step in ("before-manifest", "manifest", "half-appended", "appended", "done"):

        async def die(reached: str, step: str = step) -> None:
            if reached == step:
                raise Died

        with monkeypatch.context() as patch:
            patch.setattr(latest, "reach_of_environment", lambda die=die: die)
            try:
                latest_by_key(spark, topic, to=target, bootstrap=bootstrap)
            except Died:
                pass
    latest_by_key(spark, topic, to=target, bootstrap=bootstrap)
    found = [(one.key, one.value) for one in log.read(target)]
    assert found == [(f"key {number}".encode(), f"{90 + number}".encode()) for number in range(10)]


def test_what_was_trimmed_before_it_was_compacted_is_an_error_with_its_offsets(
    spark: SparkSession, bootstrap: str, log: sync.Log
) -> None:
    topic = new_topic("trimmed")
    log.create_topic(topic, segment_records=2)
    put(log, topic, ("a", "1"), ("a", "2"))
    latest_by_key(spark, topic, to=f"{topic}-now", bootstrap=bootstrap)
    for number in range(3):
        put(log, topic, ("a", f"{number}"), ("b", f"{number}"))
    put(log, topic, ("c", "1"))
    log.trim_topic(topic, 6)
    with pytest.raises(OffsetOutOfRange, match="offsets 2 to 5"):
        latest_by_key(spark, topic, to=f"{topic}-now", bootstrap=bootstrap)
    done = latest_by_key(spark, topic, to=f"{topic}-now", bootstrap=bootstrap, skip_missing=True)
    assert (done.start_offset, done.end_offset, done.gaps, done.records) == (2, 9, [(2, 6)], 3)
    assert not latest_by_key(spark, topic, to=f"{topic}-now", bootstrap=bootstrap).gaps
    with pytest.raises(ConfigError, match="into itself"):
        latest_by_key(spark, topic, to=topic, bootstrap=bootstrap)


def test_what_is_damaged_is_an_error_with_its_offsets_or_a_gap_that_is_told(
    spark: SparkSession, keeper: BrokerProcess, kept: sync.Log
) -> None:
    topic = new_topic("rotten-source")
    filled(kept, topic, 2, local_retention_ms=1)
    until_released(kept, topic, 2)
    path = objects_of(kept, topic)[1]
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.chmod(0o640)
    path.write_bytes(data)

    def run(skip_missing: bool) -> Any:
        target = f"{topic}-now"
        return latest_by_key(spark, topic, to=target, bootstrap=keeper.address, skip_missing=skip_missing)

    with pytest.raises(CorruptSegment, match="offsets 10 to 14") as caught:
        run(skip_missing=False)
    assert "--skip-missing" in caught.value.hint
    done = run(skip_missing=True)
    assert (done.end_offset, done.gaps, done.without_key) == (25, [(10, 15)], 20)
