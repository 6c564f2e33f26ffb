"""How much of a range is in memory at once: a few fetches and one batch, however large the range is."""

from __future__ import annotations

import tracemalloc

import pyarrow as pa

from ister import sync
from ister.spark.frames import FETCH_BYTES
from ister.spark.ranges import Loss, OffsetRange
from ister.spark.source.reading import BATCH_BYTES, read_range

VALUES = pa.schema([("value", pa.binary())])


def whole(log: sync.Log, topic: str) -> OffsetRange:
    there = log.describe_topic(topic)
    return OffsetRange(topic, there.uid, 0, there.end_offset)


def test_a_batch_of_what_compresses_well_is_bounded_by_what_it_unpacks_to(
    bootstrap: str, log: sync.Log
) -> None:
    """A few kilobytes each as they are stored: all of them would be one batch of 128 MB."""
    frame = [b"x" * (1024 * 1024)] * 4
    for _ in range(32):
        log.append("compresses-well", frame, compression="zstd")
    stored = sum(part.bytes for part in log.describe_topic("compresses-well").segments)
    assert stored < BATCH_BYTES
    batches = list(read_range(bootstrap, whole(log, "compresses-well"), VALUES, Loss(True)))
    assert sum(batch.num_rows for batch in batches) == 128
    assert max(batch.nbytes for batch in batches) <= BATCH_BYTES + 5 * 1024 * 1024


def test_a_reader_that_is_slow_has_a_few_fetches_in_memory_and_no_more(bootstrap: str, log: sync.Log) -> None:
    for _ in range(96):
        log.append("much-of-it", [b"y" * 1024] * 1024)
    wanted = whole(log, "much-of-it")
    tracemalloc.start()
    try:
        rows = 0
        for batch in read_range(bootstrap, wanted, VALUES, Loss(True)):
            rows += batch.num_rows
            del batch
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows == 96 * 1024
    # Frames hold on to the fetch that they came in, those of the batch at hand as well as those ahead.
    assert peak < 2 * (BATCH_BYTES + FETCH_BYTES) + 4 * FETCH_BYTES
