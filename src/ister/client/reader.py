"""Reading a topic as one unbroken line: fetched ahead, every frame verified, nothing skipped.

While one answer is being consumed the next is already fetched, and one more waits: at most two beyond the
one in hand, so memory is bounded by about three times `max_bytes` (or three frames, where those are larger).

What can fail: a connection breaks (the reader goes on from the offset it had reached); the offset is no
longer there (`OffsetOutOfRange`, as the broker said it) or was given up (`RecordsLost`, with the range; who
asks for the last records, and so has named no offset, begins behind it); a frame is damaged
(`CorruptFrame`); the line has a gap (`CorruptSegment`, naming both offsets). None of them is ever an end of
the data (promise 5).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from ister.client.connection import Answer
from ister.errors import BadRequest, CorruptSegment, OffsetOutOfRange, RecordsLost
from ister.frame import DEFAULT_LIMIT, Frame, Record, frames_in
from ister.io.clock import monotonic
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.messages import (
    EARLIEST,
    LATEST,
    Fetch,
    FetchAnswer,
    Kind,
    ListOffsets,
    ListOffsetsAnswer,
)

if TYPE_CHECKING:
    import pyarrow as pa

Place = str | int | datetime
"""`earliest`, `latest`, a time, or a number: of an offset where one is read from, else microseconds."""

READ_FROM: Final = ("leader", "any")

_AHEAD: Final = 2
_LONG_POLL_MS: Final = 10_000
_TOO_SOON_S: Final = 0.05
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Call = Callable[..., Awaitable[Answer]]
"""`Log.call`: one request with its retries."""


class Span(NamedTuple):
    """What to read: offsets from `start`, up to `end` if there is one."""

    start: int
    end: int | None
    may_end_before: bool = False
    """Whether nobody has looked if the topic reaches up to `end`."""
    may_begin_until: int = 0
    """Nobody has named `start`: where that was given up, it is read from behind the loss, if that was not
    later than this. A loss that reaches further is news, and may have taken what was still to come."""


class Chunk(NamedTuple):
    """Whole frames that follow each other, and which of their records are wanted."""

    frames: list[Frame]
    first_offset: int
    end_offset: int


def reading_key(topic: str, read_from: str = "leader") -> str:
    """The way of reads of a topic, which may lead to another node than that of appends to it; and of reads
    from any replica, which stay at one node as long as that answers."""
    return f"{topic}:read" if read_from == "leader" else f"{topic}:read-{read_from}"  # a colon is in no name


def topic_of(key: str) -> str:
    """The topic that a way leads to."""
    return key.partition(":")[0]


def microseconds(moment: datetime) -> int:
    """Since 1970; a time without a zone is local."""
    return (moment.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)


def wire_place(place: Place) -> int:
    """How a place is asked for in `ListOffsets`."""
    if isinstance(place, datetime):
        return microseconds(place)
    if place == "earliest":
        return EARLIEST
    if place == "latest":
        return LATEST
    if isinstance(place, int) and not isinstance(place, bool) and place >= 0:
        return place
    raise BadRequest(
        f"{place!r} is no place in a topic", hint="Use 'earliest', 'latest', a datetime, or a number from 0."
    )


class Reader:
    """Made by `Log.read`. Iterate it for records, or take `frames()` or `batches()`: each begins anew."""

    def __init__(
        self,
        call: Call,
        topic: str,
        *,
        start: Place,
        end: int | None,
        follow: bool,
        last: int | None,
        max_bytes: int,
        served_by: Callable[[int], None] = lambda node_id: None,
        on_behind: Callable[[], None] = lambda: None,
        min_index: Callable[[], int] = lambda: 0,
        read_from: str = "leader",
        uid: int = 0,
    ) -> None:
        """`served_by` is told which node had the records, `on_behind` that the one asked knows of less than
        was seen; `min_index` is what a node must know to answer. With `uid`, only the topic that has it."""
        if last is not None and (last < 0 or start != "earliest"):
            raise BadRequest(
                f"last={last} with start={start!r}", hint="Give either a start or last=N, N from 0."
            )
        if max_bytes < 1 or max_bytes > DEFAULT_LIMIT:
            raise BadRequest(f"max_bytes is {max_bytes}", hint=f"Choose 1 to {DEFAULT_LIMIT}.")
        if end is not None and end < 0:
            raise BadRequest(f"end is {end}", hint="Offsets count from 0.")
        if read_from not in READ_FROM:
            raise BadRequest(f"read_from is {read_from!r}", hint=f"Choose {' or '.join(READ_FROM)}.")
        wire_place(start)
        self._call = call
        self.topic = topic
        self._start = start
        self._end = end
        self._follow = follow
        self._last = last
        self._max_bytes = max_bytes
        self._served_by = served_by
        self._on_behind = on_behind
        self._min_index = min_index
        self._read_from = read_from
        self._end_seen = 0
        """The furthest end that any node has told: another one may not know of it yet."""
        self._topic_uid = uid
        """Of the topic that is meant, or was read so far: one made again under its name is not taken for it
        (I3)."""

    def __aiter__(self) -> AsyncIterator[Record]:
        return self._records()

    async def _records(self) -> AsyncGenerator[Record, None]:
        async with aclosing(self.chunks()) as chunks:
            async for chunk in chunks:
                for frame in chunk.frames:
                    for record in clipped(frame, chunk):
                        yield record

    async def frames(self) -> AsyncGenerator[Frame, None]:
        """Whole frames, verified. The first and the last may reach beyond the offsets asked for."""
        async with aclosing(self.chunks()) as chunks:
            async for chunk in chunks:
                for frame in chunk.frames:
                    yield frame

    async def batches(self, columns: Sequence[str] | None = None) -> AsyncGenerator[pa.RecordBatch, None]:
        """Arrow record batches of exactly the records asked for, made without touching single records."""
        async with aclosing(self.chunks()) as chunks:
            async for chunk in chunks:
                for batch in batches_in(chunk, columns):
                    yield batch

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Frames as they are fetched, the next ones already on their way."""
        span = await self._span()
        ready: asyncio.Queue[Chunk | Exception | None] = asyncio.Queue(_AHEAD - 1)
        fetching = asyncio.get_running_loop().create_task(self._fetch_ahead(span, ready))
        try:
            while (chunk := await ready.get()) is not None:
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk
        finally:
            fetching.cancel()

    # Where to begin, where to stop.

    async def _span(self) -> Span:
        """Where reading begins and ends. All places are asked for at once, but the broker looks for one after
        the other, and others append meanwhile: what is found after the end may lie behind it."""
        if isinstance(self._start, int) and self._last is None and (self._follow or self._end is not None):
            # Neither the end nor the node that leads need be known; what is sealed can be read without it.
            return Span(self._start, self._end, may_end_before=True)
        places = [] if isinstance(self._start, int) else [wire_place(self._start)]
        try:
            earliest, latest, *found = await self._places(EARLIEST, LATEST, *places)
        except CorruptSegment:
            if self._last is not None or self._start == "latest":
                raise
            return await self._span_to_the_damage()
        if isinstance(self._start, int):
            start = self._start
        else:
            start = found[0]
            latest = max(latest, start)
        if self._last is not None:
            start = max(earliest, latest - self._last)
        may_begin_until = 0 if self._last is None else latest
        if self._follow:
            return Span(start, self._end, may_begin_until=may_begin_until)
        if start > latest:
            raise OffsetOutOfRange(f"offset {start} is past the end of {self.topic}, which is {latest}")
        end = latest if self._end is None else min(self._end, latest)
        return Span(start, end, may_begin_until=may_begin_until)

    async def _span_to_the_damage(self) -> Span:
        """Nobody knows the end: what lies before the damaged segment is read, and then comes its error."""
        if isinstance(self._start, int):
            return Span(self._start, self._end)
        (start,) = await self._places(wire_place(self._start))
        return Span(start, self._end)

    async def _places(self, *at: int) -> list[int]:
        answer = await self._call(
            f"finding offsets of {self.topic}",
            Kind.LIST_OFFSETS,
            encode_header(ListOffsets(self.topic, list(at), self._min_index(), topic_uid=self._topic_uid)),
            self.topic,
        )
        return decode_header(ListOffsetsAnswer, answer.header).offsets

    # Fetching.

    async def _fetch_ahead(self, span: Span, ready: asyncio.Queue[Chunk | Exception | None]) -> None:
        offset, may_clip = span.start, True
        try:
            while span.end is None or offset < span.end:
                try:
                    chunk = await self._fetch(offset, span, may_clip)
                except RecordsLost as error:
                    has_begun, (_, behind) = not may_clip, error.offsets or (0, 0)
                    if has_begun or not offset < behind <= span.may_begin_until:
                        raise
                    offset = behind
                    continue
                if chunk is not None:
                    offset, may_clip = chunk.frames[-1].header.end_offset, False
                    await ready.put(chunk)
                elif not self._follow:
                    break
        except Exception as error:  # whatever it is, it belongs to whoever iterates
            await ready.put(error)
        else:
            await ready.put(None)

    async def _fetch(self, offset: int, span: Span, may_clip: bool) -> Chunk | None:
        """One answer's frames; None if there was nothing yet, or there is nothing more."""
        wait_ms = _LONG_POLL_MS if self._follow else 0
        began = monotonic()
        answer = await self._call(
            f"reading {self.topic} at offset {offset}",
            Kind.FETCH,
            encode_header(
                Fetch(
                    self.topic,
                    offset,
                    self._max_bytes,
                    wait_ms,
                    min_index=self._min_index(),
                    topic_uid=self._topic_uid,
                    read_from_any=self._read_from == "any",
                )
            ),
            reading_key(self.topic, self._read_from),
            wait_s=wait_ms / 1000,
        )
        told = decode_header(FetchAnswer, answer.header)
        self._served_by(told.served_by)
        self._topic_uid = told.topic_uid or self._topic_uid
        self._end_seen = max(self._end_seen, told.end_offset)
        frames = frames_in(answer.payload, limit=max(DEFAULT_LIMIT, len(answer.payload)))
        if not frames:
            await self._nothing(told, offset, span, began)
            return None
        stop, end = check_line(frames, self.topic, offset, may_clip), span.end
        if end is not None and stop > end:
            frames = [frame for frame in frames if frame.header.base_offset < end]
            stop = end
        return Chunk(frames, offset, stop)

    async def _nothing(self, answer: FetchAnswer, offset: int, span: Span, began: float) -> None:
        """An empty answer is right only at the end of a topic, and only if nobody saw records behind it."""
        if offset < answer.end_offset or not (self._follow or span.may_end_before):
            raise CorruptSegment(
                f"{self.topic} ends at {answer.end_offset}, but nothing was returned at offset {offset}"
            )
        if answer.end_offset < self._end_seen:
            self._on_behind()
        if self._follow and monotonic() - began < _TOO_SOON_S:
            await asyncio.sleep(_TOO_SOON_S)  # a broker that does not wait as asked must not make us spin


def batches_in(chunk: Chunk, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    """The wanted records of a chunk as Arrow batches: large frames in place, small ones joined."""
    from ister.arrow import batches_of, to_record_batch

    for frames in batches_of(chunk.frames):
        yield to_record_batch(
            frames, columns=columns, first_offset=chunk.first_offset, end_offset=chunk.end_offset
        )


def check_line(frames: list[Frame], topic: str, offset: int, may_clip: bool) -> int:
    """The frames follow each other from `offset` on; returns where they end. Else `CorruptSegment`."""
    expected = offset
    for frame in frames:
        header = frame.header
        starts_before = may_clip and header.base_offset <= expected < header.end_offset
        if header.base_offset != expected and not starts_before:
            raise CorruptSegment(
                f"{topic} has a frame at offset {header.base_offset} where offset {expected} must follow"
            )
        expected, may_clip = header.end_offset, False
    return expected


def clipped(frame: Frame, chunk: Chunk) -> list[Record]:
    """The records of a frame that are within the chunk's bounds."""
    records = frame.records()
    header = frame.header
    if header.base_offset >= chunk.first_offset and header.end_offset <= chunk.end_offset:
        return records
    return records[
        max(chunk.first_offset - header.base_offset, 0) : max(chunk.end_offset - header.base_offset, 0)
    ]
