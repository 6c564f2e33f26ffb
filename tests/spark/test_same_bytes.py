"""Checker 16: the same offsets through a broker, through the history and through Spark are the same bytes,
also after objects were merged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from history_helpers import planned, until_released

from ister import sync
from ister.frame import HEADER_SIZE
from ister.spark import compact
from ister.spark.frames import BrokerFrames
from ister.spark.ranges import HOT, Loss, OffsetRange
from ister.spark.union import UnionFrames

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOPIC = "same-bytes"
SEGMENTS, RECORDS = 3, 60


def fill(log: sync.Log) -> int:
    """Frames of one record and of many, with and without keys, headers, times and values, packed and not."""
    made: list[dict[str, Any]] = [
        {"values": [b"plain %d" % number for number in range(RECORDS // 3)]},
        {
            "values": [b"v" * 300 if number % 3 else None for number in range(RECORDS // 3)],
            "keys": [b"k%d" % number if number % 2 else None for number in range(RECORDS // 3)],
            "headers": [[("h", b"%d" % number), ("h", b"")] for number in range(RECORDS // 3)],
            "compression": "zstd",
        },
        {
            "values": [b"timed"] * (RECORDS // 3 - 1),
            "timestamps_us": [1_700_000_000_000_000 + number for number in range(RECORDS // 3 - 1)],
        },
        {"values": [b"alone"]},
    ]
    log.create_topic(TOPIC, segment_records=RECORDS, local_retention_ms=3_600_000)
    for _ in range(SEGMENTS):
        for each in made:
            log.append(TOPIC, **each)
    log.append(TOPIC, [b"hot"] * 7)
    return SEGMENTS * RECORDS + 7


def records(log: sync.Log) -> list[tuple[Any, ...]]:
    return [
        (one.offset, one.timestamp_us, one.key, one.value, [(name, value) for name, value in one.headers])
        for one in log.read(TOPIC)
    ]


def frames(store: Any, uid: int, end: int) -> list[bytes]:
    wanted = OffsetRange(f"default/{TOPIC}", uid, 0, end)
    return [bytes(frame.data) for frame in store.frames(wanted, Loss(True))]


def test_one_offset_is_the_same_bytes_by_every_way(
    spark: SparkSession, keeper: BrokerProcess, kept: sync.Log
) -> None:
    end = fill(kept)
    uid = kept.describe_topic(TOPIC).uid
    by_nodes = records(kept)
    assert [one[0] for one in by_nodes] == list(range(end))
    with BrokerFrames(keeper.address) as brokers:
        frames_of_nodes = frames(brokers, uid, end)
    assert all(len(frame) > HEADER_SIZE for frame in frames_of_nodes)
    kept.alter_topic(TOPIC, local_retention_ms=1)
    until_released(kept, TOPIC, SEGMENTS)
    check_ways_past_nodes(spark, keeper, kept, by_nodes, frames_of_nodes)
    done = compact(spark, TOPIC, bootstrap=keeper.address)
    assert [one.segments for one in done.merged] == [SEGMENTS]
    for name in {entry.name for entry in kept.history(TOPIC).entries if entry.name}:
        assert name == done.merged[0].name
    check_ways_past_nodes(spark, keeper, kept, by_nodes, frames_of_nodes)


def check_ways_past_nodes(
    spark: SparkSession,
    keeper: BrokerProcess,
    kept: sync.Log,
    by_nodes: list[tuple[Any, ...]],
    frames_of_nodes: list[bytes],
) -> None:
    """Brokers have it from the history now, executors too, without them."""
    uid, end = kept.describe_topic(TOPIC).uid, len(by_nodes)
    assert records(kept) == by_nodes
    with BrokerFrames(keeper.address) as brokers:
        assert frames(brokers, uid, end) == frames_of_nodes
    with UnionFrames(keeper.address) as both:
        assert frames(both, uid, end) == frames_of_nodes
    (whole,) = planned(keeper.address, TOPIC)
    assert [piece.tier for piece in whole.lives] == ["history"] * SEGMENTS + [HOT]
    reader = spark.read.format("ister").option("bootstrap.servers", keeper.address)
    table = reader.option("subscribe", TOPIC).option("includeHeaders", "true").load()
    rows = table.selectExpr("offset", "unix_micros(timestamp)", "key", "value", "headers").collect()
    by_spark = [
        (
            row[0],
            row[1],
            None if row[2] is None else bytes(row[2]),
            None if row[3] is None else bytes(row[3]),
            [(pair.key, bytes(pair.value)) for pair in row[4] or []],
        )
        for row in sorted(rows, key=lambda row: int(row[0]))
    ]
    assert by_spark == by_nodes
