"""Brokers die in the middle of what Spark reads, and nobody who looks at the rows can tell."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bench.cluster.nodes import ClusterProcesses, running_cluster

from ister import sync

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOPIC = "long"
FRAME = 500
BEFORE, AFTER = 30_000, 10_000
SEGMENT_RECORDS = 4_000
GATE_SECONDS = 120


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with running_cluster(tmp_path / "cluster", {"segment_records": SEGMENT_RECORDS}) as found:
        asyncio.run(found.wait_whole())
        yield found


def append_numbers(bootstrap: str, start: int, end: int) -> None:
    """Each value begins with the offset that it must have."""
    with sync.connect(bootstrap) as log:
        for base in range(start, end, FRAME):
            appended = log.append(TOPIC, [b"%08d" % number * 60 for number in range(base, base + FRAME)])
            assert appended.base_offset == base


def gated(gate: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Rows pass as pairs of offset and number. The first ones are reported in the file `seen`; then the task
    waits, with most of its range unread, until there is a file `go`."""
    folder = str(gate)

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time
        from pathlib import Path

        import pyarrow as pa
        import pyarrow.compute as pc

        for batch in batches:
            (Path(folder) / "seen").touch()
            deadline = time.monotonic() + GATE_SECONDS
            while not (Path(folder) / "go").exists():
                assert time.monotonic() < deadline, "nobody opened the gate"
                time.sleep(0.01)
            text = pc.binary_slice(batch.column("value"), 0, 8).cast(pa.string())
            numbers = text.cast(pa.int64())
            yield pa.RecordBatch.from_arrays([batch.column("offset"), numbers], ["offset", "number"])

    return pass_on


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + GATE_SECONDS
    while not file.exists():
        assert time.monotonic() < deadline, f"{file.name} never came"
        time.sleep(0.01)


def test_a_failover_and_rollovers_in_the_middle_of_a_batch_are_in_no_row(
    spark: SparkSession, cluster: ClusterProcesses, tmp_path: Path
) -> None:
    append_numbers(cluster.bootstrap, 0, BEFORE)
    options = {
        "bootstrap.servers": cluster.bootstrap,
        "subscribe": TOPIC,
        "startingOffsets": "earliest",
        "maxRecordsPerPartition": str(BEFORE),
    }
    gates = [tmp_path / "of-table", tmp_path / "of-stream"]
    for gate in gates:
        gate.mkdir()
    pair = "offset long, number long"
    schema = "offset long, value binary"
    table = spark.read.format("ister").schema(schema).options(**options).load()
    stream = spark.readStream.format("ister").schema(schema).options(**options).load()
    query = (
        stream.mapInArrow(gated(gates[1]), pair)
        .writeStream.format("memory")
        .queryName("through_a_failover")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    rows: list[tuple[int, int]] = []
    scan = threading.Thread(
        target=lambda: rows.extend(map(tuple, table.mapInArrow(gated(gates[0]), pair).collect()))
    )
    scan.start()
    try:
        for gate in gates:
            wait_for(gate / "seen")
        with sync.connect(cluster.bootstrap) as log:
            leader = log.describe_topic(TOPIC).segments[-1].leader
        cluster.nodes[leader].kill()
        append_numbers(cluster.bootstrap, BEFORE, BEFORE + AFTER)  # in the segments of a new leader
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
