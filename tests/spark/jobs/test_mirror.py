"""A topic copied into another: each record once, in order, with a map of the offsets, whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from job_helpers import new_topic, numbered
from pyspark.sql import SparkSession

from ister import sync
from ister.errors import ConfigError, OffsetOutOfRange
from ister.spark import mirror
from ister.spark.jobs import mirror as mirroring
from ister.spark.jobs.mirror import MappedRange, Mirrored, offset_map

if TYPE_CHECKING:
    from conftest import BrokerProcess

pytestmark = pytest.mark.spark


@pytest.fixture
def elsewhere(own_broker: BrokerProcess) -> Iterator[sync.Log]:
    """Another cluster."""
    with sync.connect(own_broker.address) as found:
        yield found


def values(log: sync.Log, topic: str) -> list[bytes | None]:
    return [record.value for record in log.read(topic)]


def test_a_second_run_goes_on_where_the_first_ended(
    spark: SparkSession, bootstrap: str, log: sync.Log
) -> None:
    source, target = new_topic("mirrored"), new_topic("mirror")
    log.append(source, numbered(0, 100))
    first = mirror(spark, source, to=target, bootstrap=bootstrap)
    assert (first.records, first.next_offset, first.is_complete) == (100, 100, True)
    again = mirror(spark, source, to=target, bootstrap=bootstrap)
    assert (again.records, again.batches) == (0, 0)
    log.append(source, numbered(100, 150))
    assert mirror(spark, source, to=target, bootstrap=bootstrap).records == 50
    assert values(log, target) == numbered(0, 150)


def test_records_reach_another_cluster_with_their_keys_headers_and_times(
    spark: SparkSession, bootstrap: str, log: sync.Log, own_broker: BrokerProcess, elsewhere: sync.Log
) -> None:
    source = new_topic("mirrored-full")
    headers: list[Any] = [[("a", b"1"), ("b", b"")], [], [("a", b"2")]]
    log.append(source, [b"one", None, b""], keys=[b"k", None, b""], timestamps_us=[7, 8, 9], headers=headers)
    log.append(source, [b"x" * 100_000] * 3, compression="zstd")
    log.append(source, [b"bare"])
    mirror(spark, source, to="copied", bootstrap=bootstrap, to_bootstrap=own_broker.address)

    def whole(found: sync.Log, topic: str) -> list[Any]:
        # A record without a time of its own has that of its append, which is another one there.
        shown = [(one.key, one.value, one.headers, one.timestamp_us) for one in found.read(topic)]
        return shown[:3] + [each[:3] for each in shown[3:]]

    assert whole(elsewhere, "copied") == whole(log, source)


def test_the_map_says_where_each_record_is_though_others_write_to_the_target_too(
    spark: SparkSession, bootstrap: str, log: sync.Log
) -> None:
    source, target = new_topic("mapped"), new_topic("map-target")
    log.append(target, numbered(0, 5))
    log.append(source, numbered(0, 10))
    mirror(spark, source, to=target, bootstrap=bootstrap)
    log.append(target, numbered(0, 2))
    log.append(source, numbered(10, 20))
    mirror(spark, source, to=target, bootstrap=bootstrap)
    found = offset_map(source, to=target, bootstrap=bootstrap)
    assert found == [MappedRange(0, 5, 10), MappedRange(10, 17, 10)]


def test_a_mirror_that_died_after_its_batch_was_decided_repeats_nothing_and_keeps_the_map(
    spark: SparkSession, bootstrap: str, log: sync.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each step of the commit: what the driver did not get to, the next run does."""

    class Died(BaseException):
        pass

    for step in ("before-manifest", "manifest", "half-appended", "appended", "done", "committed"):
        source, target = new_topic("dying"), new_topic("dying-target")
        log.append(source, numbered(0, 30))

        async def die_there(reached: str, step: str = step) -> None:
            if reached == step:
                raise Died

        monkeypatch.setattr(mirroring, "reach_of_environment", lambda die=die_there: die)
        with pytest.raises(Died):
            mirror(spark, source, to=target, bootstrap=bootstrap)
        monkeypatch.undo()
        log.append(source, numbered(30, 40))
        mirror(spark, source, to=target, bootstrap=bootstrap)
        assert values(log, target) == numbered(0, 40), step
        ranges = offset_map(source, to=target, bootstrap=bootstrap)
        assert [(part.source, part.target, part.count) for part in ranges] == [(0, 0, 40)], step


def test_many_batches_and_small_frames_make_the_same_records(
    spark: SparkSession, bootstrap: str, log: sync.Log
) -> None:
    source, target = new_topic("small-frames"), new_topic("small-frames-target")
    log.create_topic(source, segment_records=50)
    for number in range(20):
        log.append(source, numbered(number * 10, number * 10 + 10))
    done = mirror(spark, source, to=target, bootstrap=bootstrap, batch_bytes=2_000)
    assert done.batches > 2
    assert values(log, target) == numbered(0, 200)
    assert offset_map(source, to=target, bootstrap=bootstrap) == [MappedRange(0, 0, 200)]


def test_two_mirrors_at_once_make_one_copy_and_one_map(
    spark: SparkSession, bootstrap: str, log: sync.Log
) -> None:
    source, target = new_topic("twice"), new_topic("twice-target")
    log.create_topic(source, segment_records=40)
    for start in range(0, 200, 20):
        log.append(source, numbered(start, start + 20))
    log.create_topic(target)
    together = threading.Barrier(2)
    done: list[Mirrored] = []

    def job() -> None:
        together.wait()
        done.append(mirror(spark, source, to=target, bootstrap=bootstrap, batch_bytes=1_000))

    threads = [threading.Thread(target=job) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.next_offset for each in done] == [200, 200]
    assert sum(each.records for each in done) == 200
    assert values(log, target) == numbered(0, 200)
    assert offset_map(source, to=target, bootstrap=bootstrap) == [MappedRange(0, 0, 200)]


def test_the_map_is_kept_though_topics_are_not_by_default_and_says_if_it_was_deleted(
    spark: SparkSession, bootstrap: str, log: sync.Log
) -> None:
    source, target = new_topic("kept"), new_topic("kept-target")
    where: dict[str, Any] = {"to": target, "bootstrap": bootstrap}
    log.append(source, numbered(0, 10))
    done = mirror(spark, source, **where)
    settings = log.describe_topic(done.map_topic).settings
    assert (settings.retention_ms, settings.retention_bytes, settings.fsync) == (0, 0, "fsync")
    log.append(source, numbered(10, 15))
    mirror(spark, source, **where)
    log.delete_topic(done.map_topic)
    for start in (15, 18):
        log.append(source, numbered(start, start + 3))
        mirror(spark, source, **where)
    # What was asked for last is written again; what lies before is not known any more.
    assert offset_map(source, to=target, bootstrap=bootstrap) == [MappedRange(10, 10, 11)]
    assert values(log, target) == numbered(0, 21)


def test_a_source_that_was_made_again_is_another_one_and_copied_behind_the_first(  # I3
    spark: SparkSession, bootstrap: str, log: sync.Log
) -> None:
    source, target = new_topic("source-remade"), new_topic("source-remade-target")
    log.append(source, numbered(0, 10))
    mirror(spark, source, to=target, bootstrap=bootstrap)
    log.delete_topic(source)
    log.append(source, numbered(50, 54))
    done = mirror(spark, source, to=target, bootstrap=bootstrap)
    assert (done.start_offset, done.records) == (0, 4)
    assert values(log, target) == [*numbered(0, 10), *numbered(50, 54)]
    assert offset_map(source, to=target, bootstrap=bootstrap) == [MappedRange(0, 10, 4)]


def test_a_source_that_was_trimmed_past_the_mirror_is_an_error_with_the_offsets(
    spark: SparkSession, bootstrap: str, log: sync.Log
) -> None:
    source, target = new_topic("trimmed"), new_topic("trimmed-target")
    log.create_topic(source, segment_records=10)
    log.append(source, numbered(0, 10))
    mirror(spark, source, to=target, bootstrap=bootstrap)
    for _ in range(3):
        log.append(source, numbered(0, 10))
    log.trim_topic(source, 30)
    with pytest.raises(OffsetOutOfRange, match="offsets 10 to 29") as caught:
        mirror(spark, source, to=target, bootstrap=bootstrap)
    assert caught.value.offsets == (10, 30)
    assert values(log, target) == numbered(0, 10)


def test_a_target_that_was_made_again_is_filled_from_the_start(  # I3
    spark: SparkSession, bootstrap: str, log: sync.Log
) -> None:
    source, target = new_topic("remade"), new_topic("remade-target")
    log.append(source, numbered(0, 10))
    mirror(spark, source, to=target, bootstrap=bootstrap)
    log.delete_topic(target)
    mirror(spark, source, to=target, bootstrap=bootstrap)
    assert values(log, target) == numbered(0, 10)


def test_a_topic_is_not_mirrored_into_itself(spark: SparkSession, bootstrap: str, log: sync.Log) -> None:
    source = new_topic("itself")
    log.append(source, [b"x"])
    with pytest.raises(ConfigError, match="into itself"):
        mirror(spark, source, to=source, bootstrap=bootstrap)
