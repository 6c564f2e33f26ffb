"""The direct way, `delivery=at-least-once`: one task's rows straight into their topics.

Frames are sent with an identity of this task's own, a few in flight at once. A request that is repeated after
a broken connection is recognised by the log (A5). A task that Spark runs again is another producer: its rows
are appended again. That is why this way is at-least-once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pyarrow as pa

import ister
from ister.arrow import encode_record_batch
from ister.client.batch import Batch
from ister.client.sequencer import Sequencer
from ister.errors import ConnectionFailed
from ister.spark.sink.rows import frames_of
from ister.spark.sink.sending import Sending

TASK_ENDED = ConnectionFailed("the task ended before its rows were acknowledged", hint="See its first error.")


def append_rows(bootstrap: str, topic: str | None, batches: Iterator[pa.RecordBatch]) -> Counter[str]:
    """Append all rows, to `topic` or each to the one that it names; returns how many went where.

    Returns when everything is acknowledged. After an error some of the rows may have been appended.
    """
    return asyncio.run(_append_rows(bootstrap, topic, batches))


async def _append_rows(bootstrap: str, topic: str | None, batches: Iterator[pa.RecordBatch]) -> Counter[str]:
    frames = frames_of(batches, topic)
    first = await anext(frames, None)
    counts: Counter[str] = Counter()
    if first is None:
        return counts  # no rows need no broker

    def appended(sequencer: Sequencer, batch: Batch, offset: int) -> None:
        counts[sequencer.topic] += batch.count

    async with ister.connect(bootstrap) as log:
        sequencers: dict[str, Sequencer] = {}
        sending = Sending(appended)

        async def put(name: str, rows: pa.RecordBatch) -> None:
            if name not in sequencers:
                sequencers[name] = log.sequencer(name)
            await sending.put(sequencers[name], put_rows(sequencers[name], rows))

        try:
            await put(*first)
            async for name, rows in frames:
                await put(name, rows)
            await sending.finish()
        finally:
            for sequencer in sequencers.values():
                sequencer.close(TASK_ENDED)
    return counts


def put_rows(sequencer: Sequencer, rows: pa.RecordBatch) -> Batch:
    """As `Sequencer.put`, of Arrow columns, with no row in between."""
    make = partial(_encode, rows)
    return sequencer.put_made(make, rows.num_rows)


def _encode(rows: pa.RecordBatch, producer_id: int, sequence: int) -> bytes:
    return encode_record_batch(rows, producer_id=producer_id, sequence=sequence)
