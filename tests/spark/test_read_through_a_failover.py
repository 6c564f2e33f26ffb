"""Brokers die in the middle of what Spark reads, and nobody who looks at the rows can tell."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bench.cluster.nodes import ClusterProcesses, running_cluster
from gates import PAIR, append_numbers, gated, wait_for

from ister import sync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOPIC = "long"
BEFORE, AFTER = 30_000, 10_000
SEGMENT_RECORDS = 4_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with running_cluster(tmp_path / "cluster", {"segment_records": SEGMENT_RECORDS}) as found:
        asyncio.run(found.wait_whole())
        yield found


def test_a_failover_and_rollovers_in_the_middle_of_a_batch_are_in_no_row(
    spark: SparkSession, cluster: ClusterProcesses, tmp_path: Path
) -> None:
    append_numbers(cluster.bootstrap, TOPIC, 0, BEFORE)
    options = {
        "bootstrap.servers": cluster.bootstrap,
        "subscribe": TOPIC,
        "startingOffsets": "earliest",
        "maxRecordsPerPartition": str(BEFORE),
    }
    gates = [tmp_path / "of-table", tmp_path / "of-stream"]
    for gate in gates:
        gate.mkdir()
    schema = "offset long, value binary"
    table = spark.read.format("ister").schema(schema).options(**options).load()
    stream = spark.readStream.format("ister").schema(schema).options(**options).load()
    query = (
        stream.mapInArrow(gated(gates[1]), PAIR)
        .writeStream.format("memory")
        .queryName("through_a_failover")
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
        with sync.connect(cluster.bootstrap) as log:
            leader = log.describe_topic(TOPIC).segments[-1].leader
        cluster.nodes[leader].kill()
        append_numbers(cluster.bootstrap, TOPIC, BEFORE, BEFORE + AFTER)  # in the segments of a new leader
        for gate in gates:
            (gate / "go").touch()
        scan.join()
        query.processAllAvailable()
        streamed = sorted(map(tuple, spark.table("through_a_failover").collect()))
    finally:
        for gate in gates:
            (gate / "go").touch()
        query.stop()
        scan.join()
    assert sorted(rows) == [(number, number) for number in range(BEFORE)]
    assert streamed == [(number, number) for number in range(BEFORE + AFTER)]
