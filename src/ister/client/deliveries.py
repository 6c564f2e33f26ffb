"""What a consumer gets: messages and batches, until they are acknowledged.

A batch is a range of offsets, and the frames that it lies in, which may hold records of others: a small frame
is shared out among consumers, and of a key-shared subscription everybody gets the frames of its keys. Of a
frame whose records come in many ranges the records are made once (`Decoded`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from ister.client.reader import Chunk, batches_in
from ister.columns import RecordHeaders
from ister.errors import BadRequest, CorruptSegment
from ister.frame import DEFAULT_LIMIT, Frame, Record, frames_in
from ister.protocol.codec import Bytes

if TYPE_CHECKING:
    import pyarrow as pa

    from ister.client.subscription import Subscription


class Delivery(Protocol):
    """What a batch of either face says of itself."""

    @property
    def topic(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def may_repeat(self) -> bool: ...


B = TypeVar("B", bound=Delivery)


class OfBatch(Generic[B]):
    """What a message says of itself, and of the batch that it came in; of both faces."""

    __slots__ = ("batch", "record")

    def __init__(self, record: Record, batch: B) -> None:
        self.record = record
        self.batch = batch

    @property
    def topic(self) -> str:
        return self.batch.topic

    @property
    def attempt(self) -> int:
        """How often it was delivered, as far as is known; from 1."""
        return self.batch.attempt

    @property
    def may_repeat(self) -> bool:
        """Whether it may have been delivered before."""
        return self.batch.may_repeat

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def value(self) -> bytes | None:
        return self.record.value

    @property
    def key(self) -> bytes | None:
        return self.record.key

    @property
    def headers(self) -> RecordHeaders:
        return self.record.headers


class Message(OfBatch["Batch"]):
    """A record, until it is acknowledged."""

    __slots__ = ()

    async def ack(self, *, durable: bool = False) -> None:
        """This record is done with. It is stored within seconds, by the broker's flush; with `durable` this
        returns when it is (S2), or raises `StaleDelivery` if it is to be delivered again."""
        offset = self.record.offset
        await self.batch.ack(start=offset, end=offset + 1, durable=durable)

    async def nack(self, *, delay_s: float | None = None, reason: str = "") -> None:
        """This record could not be dealt with: it is delivered again, to whoever is there, after `delay_s`,
        or as the subscription's policy says; and once that was often enough, it has failed."""
        offset = self.record.offset
        await self.batch.nack(start=offset, end=offset + 1, delay_s=delay_s, reason=reason)


class Batch(NamedTuple):
    """Records that follow each other, delivered together."""

    topic: str
    start: int
    """The first offset."""
    end: int
    """Behind the last one."""
    attempt: int
    may_repeat: bool
    epoch: int
    frames: list[Frame]
    subscription: Subscription
    decoded: Decoded

    def __len__(self) -> int:
        return self.end - self.start

    def records(self) -> list[Record]:
        return [record for frame in self.frames for record in self._of(frame)]

    def _of(self, frame: Frame) -> list[Record]:
        base, end = frame.header.base_offset, frame.header.end_offset
        if self.start <= base and end <= self.end:
            return frame.records()
        return self.decoded.records(frame)[max(self.start - base, 0) : self.end - base]

    def to_arrow(self, columns: Sequence[str] | None = None) -> list[pa.RecordBatch]:
        """Arrow record batches, made without touching single records."""
        return list(batches_in(Chunk(self.frames, self.start, self.end), columns))

    async def ack(self, *, start: int | None = None, end: int | None = None, durable: bool = False) -> None:
        """All of it is done with, or the offsets from `start` to before `end`."""
        first, behind = self._part(start, end)
        if durable:
            await self.subscription.store(first, behind, self.epoch)
        else:
            self.subscription.acknowledge(first, behind, self.epoch)

    async def nack(
        self,
        *,
        start: int | None = None,
        end: int | None = None,
        delay_s: float | None = None,
        reason: str = "",
    ) -> None:
        """As of a message, all of it or the offsets from `start` to before `end`."""
        first, behind = self._part(start, end)
        self.subscription.refuse(first, behind, self.epoch, delay_s, reason)

    def _part(self, start: int | None, end: int | None) -> tuple[int, int]:
        first = self.start if start is None else start
        behind = self.end if end is None else end
        if not self.start <= first < behind <= self.end:
            raise BadRequest(
                f"offsets {first} to {behind} are not in a batch of {self.start} to {self.end}",
                hint="Name offsets of the batch that they came in.",
            )
        return first, behind

    def messages(self) -> Iterator[Message]:
        for record in self.records():
            yield Message(record, self)


class Decoded:
    """The records of the last frame that was looked at of which a batch has a part."""

    def __init__(self) -> None:
        self._frame: Frame | None = None
        self._records: list[Record] = []

    def records(self, frame: Frame) -> list[Record]:
        if self._frame is not frame:
            self._frame, self._records = frame, frame.records()
        return self._records


class AnsweredFrames:
    """The frames of an answer."""

    def __init__(self, payload: Bytes, topic: str) -> None:
        found = frames_in(payload, limit=max(DEFAULT_LIMIT, len(payload)))
        self._frames = sorted(found, key=_base_of)
        self._topic = topic

    def of(self, start: int, end: int) -> list[Frame]:
        """Those that a range lies in, which must have all of it."""
        first = max(0, bisect_right(self._frames, start, key=_base_of) - 1)
        behind = bisect_left(self._frames, end, lo=first, key=_base_of)
        chosen, place = self._frames[first:behind], start
        for frame in chosen:
            if frame.header.base_offset > place:
                break
            place = frame.header.end_offset
        if place < end:
            raise CorruptSegment(f"offsets {start} to {end} of {self._topic} came without their records")
        return chosen


def _base_of(frame: Frame) -> int:
    return frame.header.base_offset
