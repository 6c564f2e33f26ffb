"""One task's rows as frames: columns in, acknowledged appends out.

Arrow batches are cut and joined into frames of bounded size, encoded from their columns as they stand, and
sent with an identity of this task's own, a few in flight at once. A request that is repeated after a broken
connection is recognised by the log (A5). A task that Spark runs again is another producer: its rows are
appended again. That is why the sink is at-least-once.

Memory is bounded by `GATHERED_BYTES` that wait to become frames and `SENT_BYTES` that wait for their answer.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ister.arrow import encode_record_batch
from ister.client.batch import Batch
from ister.client.log import CLIENT_NAME
from ister.client.routing import Routes
from ister.client.sequencer import MAX_WINDOW, Sequencer
from ister.errors import BadRequest, ConnectionFailed
from ister.io.clock import SystemClock
from ister.io.network import TcpNetwork
from ister.protocol.messages import ANY_OFFSET

FRAME_RECORDS: Final = 10_000
FRAME_BYTES: Final = 1024 * 1024
GATHERED_BYTES: Final = 16 * 1024 * 1024
SENT_BYTES: Final = 16 * 1024 * 1024

_CONNECT_TIMEOUT_S: Final = 5.0
_REQUEST_TIMEOUT_S: Final = 30.0
_RETRY_DEADLINE_S: Final = 60.0
_WRITTEN: Final = ("key", "value", "headers")
_compute: Any = pc  # its functions are made at run time, beyond a type checker's sight


def append_rows(bootstrap: str, topic: str | None, batches: Iterator[pa.RecordBatch]) -> Counter[str]:
    """Append all rows, to `topic` or each to the one that it names; returns how many went where.

    Returns when everything is acknowledged. After an error some of the rows may have been appended.
    """
    return asyncio.run(_append_rows(bootstrap, topic, batches))


async def _append_rows(bootstrap: str, topic: str | None, batches: Iterator[pa.RecordBatch]) -> Counter[str]:
    appender = _Appender(bootstrap)
    gathered = _Gathered()
    try:
        # In a thread: while Spark prepares the next rows, answers to the last ones must not wait.
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            for name, rows in by_topic(batch, topic):
                for ready in gathered.add(name, rows):
                    await appender.append(name, ready)
            if gathered.bytes > GATHERED_BYTES:
                await appender.append_all(gathered)
        await appender.append_all(gathered)
        await appender.finish()
    finally:
        await appender.close()
    return appender.counts


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
                yield from self.take(topic)
            self._parts.setdefault(topic, []).append(part)
            self._counts[topic] += part.num_rows
            self._sizes[topic] += size
            self.bytes += size

    def take(self, topic: str) -> Iterator[pa.RecordBatch]:
        parts = self._parts.pop(topic, [])
        self.bytes -= self._sizes.pop(topic, 0)
        self._counts.pop(topic, None)
        if parts:
            yield parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    @property
    def topics(self) -> list[str]:
        return list(self._parts)


class _Appender:
    """A producer for each topic, over one connection, with a bound on what is unanswered."""

    def __init__(self, bootstrap: str) -> None:
        self.counts: Counter[str] = Counter()
        self._clock = SystemClock()
        self._routes = Routes(
            bootstrap, TcpNetwork(), client=CLIENT_NAME, connect_timeout_s=_CONNECT_TIMEOUT_S
        )
        self._sequencers: dict[str, ArrowSequencer] = {}
        self._sent: deque[tuple[Batch, str, int]] = deque()
        self._sent_bytes = 0

    async def append(self, topic: str, rows: pa.RecordBatch) -> None:
        sequencer = self._sequencers.get(topic)
        if sequencer is None:
            await self._routes.connection(
                topic
            )  # no address answers: say so now, not after a minute of retries
            sequencer = self._sequencers[topic] = self._sequencer(topic)
        batch = sequencer.put_rows(rows)
        self._sent.append((batch, sequencer.topic, batch.held_bytes))
        self._sent_bytes += batch.held_bytes
        while self._sent_bytes > SENT_BYTES or (self._sent and self._sent[0][0].is_settled):
            await self._settle_oldest()

    async def append_all(self, gathered: _Gathered) -> None:
        for topic in gathered.topics:
            for rows in gathered.take(topic):
                await self.append(topic, rows)

    async def finish(self) -> None:
        while self._sent:
            await self._settle_oldest()

    async def close(self) -> None:
        why = ConnectionFailed(
            "the task ended before its rows were acknowledged", hint="See its first error."
        )
        for sequencer in self._sequencers.values():
            sequencer.close(why)
        await self._routes.close()

    async def _settle_oldest(self) -> None:
        batch, topic, size = self._sent.popleft()
        await batch.wait(0)
        self._sent_bytes -= size
        self.counts[topic] += batch.count

    def _sequencer(self, topic: str) -> ArrowSequencer:
        return ArrowSequencer(
            topic,
            self._routes,
            self._clock,
            window=MAX_WINDOW,
            idempotent=True,
            request_timeout_s=_REQUEST_TIMEOUT_S,
            retry_deadline_s=_RETRY_DEADLINE_S,
        )


class ArrowSequencer(Sequencer):
    """A sequencer whose frames are made of Arrow columns, with no row in between."""

    def put_rows(self, rows: pa.RecordBatch) -> Batch:
        """As `put`: encode and enqueue. What cannot be encoded raises here and uses no sequence."""
        if self.finished is not None:
            raise self.finished.again()
        frame = encode_record_batch(rows, producer_id=self._producer_id, sequence=self._sequence)
        return self._enqueue(frame, rows.num_rows, ANY_OFFSET)
