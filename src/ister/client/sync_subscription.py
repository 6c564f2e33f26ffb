"""Consuming a subscription without an event loop: the same names, one crossing for each batch.

Acknowledging does not wait, unless it is to be durable: it is handed to the loop, which sends it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from ister.client import subscription as asynchronous
from ister.client.portal import Portal, Turns
from ister.client.reader import Place
from ister.columns import RecordHeaders
from ister.frame import Record

if TYPE_CHECKING:
    import pyarrow as pa


class Message(NamedTuple):
    """A record, until it is acknowledged."""

    record: Record
    attempt: int
    may_repeat: bool
    batch: Batch

    @property
    def topic(self) -> str:
        return self.batch.topic

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

    def ack(self, *, durable: bool = False) -> None:
        offset = self.record.offset
        self.batch.ack(start=offset, end=offset + 1, durable=durable)

    def nack(self, *, delay_s: float | None = None, reason: str = "") -> None:
        offset = self.record.offset
        self.batch.nack(start=offset, end=offset + 1, delay_s=delay_s, reason=reason)


class Batch:
    """Records that follow each other, delivered together."""

    def __init__(self, portal: Portal | Turns, batch: asynchronous.Batch) -> None:
        self._portal = portal
        self._batch = batch
        self.topic = batch.topic
        self.start, self.end = batch.start, batch.end
        self.attempt, self.may_repeat = batch.attempt, batch.may_repeat

    def __len__(self) -> int:
        return self.end - self.start

    def records(self) -> list[Record]:
        return self._batch.records()

    def to_arrow(self, columns: Sequence[str] | None = None) -> list[pa.RecordBatch]:
        return self._batch.to_arrow(columns)

    def messages(self) -> Iterator[Message]:
        for record in self.records():
            yield Message(record, self.attempt, self.may_repeat, self)

    def ack(self, *, start: int | None = None, end: int | None = None, durable: bool = False) -> None:
        """All of it is done with, or the offsets from `start` to before `end`."""
        self._portal.run(self._batch.ack(start=start, end=end, durable=durable))

    def nack(
        self,
        *,
        start: int | None = None,
        end: int | None = None,
        delay_s: float | None = None,
        reason: str = "",
    ) -> None:
        self._portal.run(self._batch.nack(start=start, end=end, delay_s=delay_s, reason=reason))


class Subscription:
    """Iterate it for messages, or take `batches()`; use it in a `with`, or to its end."""

    def __init__(self, portal: Portal | Turns, subscription: asynchronous.Subscription) -> None:
        self._portal = portal
        self._subscription = subscription
        self.topic, self.name = subscription.topic, subscription.name

    def __enter__(self) -> Self:
        self._portal.run(self._subscription.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Message]:
        for batch in self.batches():
            yield from batch.messages()

    def batches(self) -> Iterator[Batch]:
        self._portal.run(self._subscription.open())
        try:
            while (batch := self.next()) is not None:
                yield batch
        finally:
            self.close()

    def next(self, wait_s: float | None = None) -> Batch | None:
        """The next range; None if there is none within the time, or this was closed."""
        found = self._portal.run(self._subscription.next(wait_s))
        return Batch(self._portal, found) if found is not None else None

    def seek(self, place: Place) -> None:
        self._portal.run(self._subscription.seek(place))

    def pause(self) -> None:
        self._portal.run(self._subscription.pause())

    def resume(self) -> None:
        self._portal.run(self._subscription.resume())

    def close(self) -> None:
        if self._portal.is_open:
            self._portal.run(self._subscription.close())
