"""Segments are exported, the topic moves, and local copies go, all in the middle of what Spark reads: nobody
who looks at the rows can tell, and what a running query still needs is kept."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bench.cluster.nodes import ClusterProcesses, running_cluster
from gates import PAIR, append_numbers, gated, wait_for
from history_helpers import until_released
from hurried import SERVE_HURRIED

import ister
from ister import sync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOPIC = "long"
VALUE_BYTES = 480
SEGMENT_RECORDS = 4_000
BEFORE, AFTER = 30_000, 10_000
IN_ONE_BATCH = 22_000
MEGABYTES = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    kept = tmp_path_factory.mktemp("history")
    settings = {
        "segment_records": SEGMENT_RECORDS,
        "storage_mode": "shared_fs",
        "storage_url": kept.as_uri(),
        "export_after_ms": 0,
    }
    with running_cluster(tmp_path_factory.mktemp("cluster"), settings, SERVE_HURRIED) as found:
        asyncio.run(found.wait_whole())
        yield found


async def move(bootstrap: str) -> int:
    """To a node that does not lead it; which it is."""
    async with ister.connect(bootstrap) as log:
        leader = (await log.describe_topic(TOPIC)).segments[-1].leader
        target = leader % 3 + 1
        await log.move_topic(TOPIC, target)
        deadline = time.monotonic() + 60
        while (await log.describe_topic(TOPIC)).segments[-1].leader != target:
            assert time.monotonic() < deadline, "the move did not come to its end"
            await asyncio.sleep(0.1)
    return target


def test_an_export_a_move_and_a_release_in_the_middle_of_a_batch_and_of_a_stream_are_in_no_row(
    spark: SparkSession, cluster: ClusterProcesses, tmp_path: Path
) -> None:
    with sync.connect(cluster.bootstrap) as log:
        # Copies stay until they are let go below.
        log.create_topic(TOPIC, segment_records=SEGMENT_RECORDS, local_retention_ms=3_600_000)
    append_numbers(cluster.bootstrap, TOPIC, 0, BEFORE)
    options = {
        "bootstrap.servers": cluster.bootstrap,
        "subscribe": TOPIC,
        "startingOffsets": "earliest",
        "maxRecordsPerPartition": str(BEFORE),
    }
    gates = [tmp_path / name for name in ("of-table", "of-stream")]
    for gate in gates:
        gate.mkdir()
    schema = "offset long, value binary"
    table = spark.read.format("ister").schema(schema).options(**options).load()
    stream = spark.readStream.format("ister").schema(schema).options(**options)
    query = (
        stream.option("maxOffsetsPerTrigger", str(IN_ONE_BATCH))
        .load()
        .mapInArrow(gated(gates[1]), PAIR)
        .writeStream.format("memory")
        .queryName("through_history")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    rows: list[tuple[int, int]] = []
    scan = threading.Thread(
        target=lambda: rows.extend(map(tuple, table.mapInArrow(gated(gates[0]), PAIR).collect()))
    )
    scan.start()
    try:
        for gate in gates:
            wait_for(gate / "seen")
        asyncio.run(move(cluster.bootstrap))
        append_numbers(cluster.bootstrap, TOPIC, BEFORE, BEFORE + AFTER)
        with sync.connect(cluster.bootstrap) as log:
            sealed = (BEFORE + AFTER) // SEGMENT_RECORDS - 1
            size = log.describe_topic(TOPIC).bytes
            # Of all that the query has not read, retention would drop a third.
            log.alter_topic(TOPIC, local_retention_ms=1, retention_bytes=size * 2 // 3)
            until_released(log, TOPIC, sealed)
            assert log.describe_topic(TOPIC).start_offset == 0
        for gate in gates:
            (gate / "go").touch()
        scan.join()
        query.processAllAvailable()
        streamed = sorted(map(tuple, spark.table("through_history").collect()))
    finally:
        for gate in gates:
            (gate / "go").touch()
        query.stop()
        scan.join()
    assert sorted(rows) == [(number, number) for number in range(BEFORE)]
    assert streamed == [(number, number) for number in range(BEFORE + AFTER)]


def sent(cluster: ClusterProcesses) -> float:
    total = 0.0
    for node in cluster.nodes.values():
        with sync.connect(node.address) as log:
            total += log.stats().metrics["bytes_out_total"]
    return total


def test_a_stream_from_the_first_record_goes_through_the_history_into_the_hot_log_in_batches_of_its_bytes(
    spark: SparkSession, cluster: ClusterProcesses, tmp_path: Path
) -> None:
    topic, end = "year", 5 * SEGMENT_RECORDS + 1_000
    with sync.connect(cluster.bootstrap) as log:
        log.create_topic(topic, segment_records=SEGMENT_RECORDS, local_retention_ms=1)
        append_numbers(cluster.bootstrap, topic, 0, end)
        until_released(log, topic, 5)
    before = sent(cluster)
    progress = run_to_end(spark, cluster, topic, tmp_path)
    # What nodes have is the open segment; the rest is answers about where things are.
    assert sent(cluster) - before < 3 * 1_000 * VALUE_BYTES
    sizes = [one["numInputRows"] * VALUE_BYTES for one in progress if one["numInputRows"]]
    assert len(sizes) == -(-end * VALUE_BYTES // (MEGABYTES * 10**6))
    assert max(sizes) <= 1.02 * MEGABYTES * 10**6
    append_numbers(cluster.bootstrap, topic, end, end + 2_000)
    run_to_end(spark, cluster, topic, tmp_path)
    rows = sorted(map(tuple, spark.read.parquet(str(tmp_path / "rows")).collect()))
    assert rows == [(number, number) for number in range(end + 2_000)]


def run_to_end(
    spark: SparkSession, cluster: ClusterProcesses, topic: str, directory: Path
) -> list[dict[str, Any]]:
    """With AvailableNow, and one checkpoint for all runs."""
    (directory / "open").mkdir(exist_ok=True)
    (directory / "open" / "go").touch()
    reader = spark.readStream.format("ister").schema("offset long, value binary")
    reader = reader.option("bootstrap.servers", cluster.bootstrap).option("subscribe", topic)
    reader = reader.option("startingOffsets", "earliest").option("maxBytesPerTrigger", f"{MEGABYTES}000000")
    writer = reader.load().mapInArrow(gated(directory / "open"), PAIR).writeStream.format("parquet")
    writer = writer.option("path", str(directory / "rows")).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).start()
    query.awaitTermination()
    return [json.loads(one.json) for one in query.recentProgress]
