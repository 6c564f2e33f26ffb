"""Rows on their way into frames: by topic, in parts of bounded size, small ones gathered.

Memory is bounded by `GATHERED_BYTES` that wait to become frames.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ister.errors import BadRequest

FRAME_RECORDS: Final = 10_000
FRAME_BYTES: Final = 1024 * 1024
GATHERED_BYTES: Final = 16 * 1024 * 1024

_WRITTEN: Final = ("key", "value", "headers")
_compute: Any = pc  # its functions are made at run time, beyond a type checker's sight


async def frames_of(
    batches: Iterator[pa.RecordBatch], topic: str | None
) -> AsyncIterator[tuple[str, pa.RecordBatch]]:
    """The rows in parts that are each worth a frame, with the topic that they go to: `topic`, or the one that
    each row names. Rows for one topic keep their order."""
    gathered = _Gathered()
    # In a thread: while Spark prepares the next rows, answers to the last ones must not wait.
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        for name, rows in by_topic(batch, topic):
            for ready in gathered.add(name, rows):
                yield name, ready
        if gathered.bytes > GATHERED_BYTES:
            for part in gathered.take_all():
                yield part
    for part in gathered.take_all():
        yield part


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, in their order, with the columns that become a record."""
    rows = batch.select([name for name in batch.schema.names if name in _WRITTEN])
    if topic is not None:
        yield topic, rows
        return
    names = batch.column("topic")
    if names.null_count:
        raise BadRequest(
            f"{names.null_count} of {len(names)} rows have no topic",
            hint="Fill the column `topic`, or give option topic, which goes before it.",
        )
    encoded = names.dictionary_encode()
    if len(encoded.dictionary) == 1:
        yield encoded.dictionary[0].as_py(), rows
        return
    # Arrow's sort is stable: within a topic the rows stay in their order.
    order = _compute.sort_indices(encoded.indices)
    rows, start = rows.take(order), 0
    for run in _compute.value_counts(encoded.indices.take(order)).to_pylist():
        yield encoded.dictionary[run["values"]].as_py(), rows.slice(start, run["counts"])
        start += run["counts"]


def bounded(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in parts of at most a frame's size; a row that is larger goes alone."""
    count = rows.num_rows
    if count > 1 and (count > FRAME_RECORDS or rows.nbytes > FRAME_BYTES):
        yield from bounded(rows.slice(0, count // 2))
        yield from bounded(rows.slice(count // 2))
    elif count:
        yield rows


class _Gathered:
    """Rows that wait for more of their topic, since a frame costs much the same whatever is in it."""

    def __init__(self) -> None:
        self.bytes = 0
        self._parts: dict[str, list[pa.RecordBatch]] = {}
        self._counts: Counter[str] = Counter()
        self._sizes: Counter[str] = Counter()

    def add(self, topic: str, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take the rows; yields what is enough for a frame by now."""
        for part in bounded(rows):
            size = part.nbytes
            if self._counts[topic] + part.num_rows > FRAME_RECORDS or self._sizes[topic] + size > FRAME_BYTES:
                yield from self._take(topic)
            self._parts.setdefault(topic, []).append(part)
            self._counts[topic] += part.num_rows
            self._sizes[topic] += size
            self.bytes += size

    def take_all(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        for topic in list(self._parts):
            for rows in self._take(topic):
                yield topic, rows

    def _take(self, topic: str) -> Iterator[pa.RecordBatch]:
        parts = self._parts.pop(topic, [])
        self.bytes -= self._sizes.pop(topic, 0)
        self._counts.pop(topic, None)
        if parts:
            yield parts[0] if len(parts) == 1 else pa.concat_batches(parts)
