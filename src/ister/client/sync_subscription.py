"""Consuming a subscription without an event loop: the same names, one crossing for each batch.

Acknowledging does not wait, unless it is to be durable: it is handed to the loop, which sends it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from functools import update_wrapper
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from ister.client import deliveries
from ister.client import subscription as asynchronous
from ister.client.portal import Portal, Turns

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")


class Face(Generic[A]):
    """Of something that lives on the loop."""

    def __init__(self, portal: Portal | Turns, inner: A) -> None:
        self._portal = portal
        self._inner = inner

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._portal.run(work)

    @property
    def inner(self) -> A:
        return self._inner


def crossing(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Face[A], P], T]:
    """The same method, which waits here until the loop has done it."""

    def call(face: Face[A], /, *args: P.args, **options: P.kwargs) -> T:
        return face.run(method(face.inner, *args, **options))

    return update_wrapper(call, method)


class Message(deliveries.OfBatch["Batch"]):
    """A record, until it is acknowledged."""

    __slots__ = ()

    def ack(self, *, durable: bool = False) -> None:
        self.batch.run(deliveries.Message(self.record, self.batch.inner).ack(durable=durable))

    def nack(self, *, delay_s: float | None = None, reason: str = "") -> None:
        message = deliveries.Message(self.record, self.batch.inner)
        self.batch.run(message.nack(delay_s=delay_s, reason=reason))


class Batch(Face[deliveries.Batch]):
    """Records that follow each other, delivered together."""

    def __init__(self, portal: Portal | Turns, batch: deliveries.Batch) -> None:
        super().__init__(portal, batch)
        self.topic = batch.topic
        self.start, self.end = batch.start, batch.end
        self.attempt, self.may_repeat = batch.attempt, batch.may_repeat
        self.records, self.to_arrow = batch.records, batch.to_arrow

    def __len__(self) -> int:
        return self.end - self.start

    def messages(self) -> Iterator[Message]:
        for record in self.records():
            yield Message(record, self)

    ack = crossing(deliveries.Batch.ack)
    nack = crossing(deliveries.Batch.nack)


class Subscription(Face[asynchronous.Subscription]):
    """Iterate it for messages, or take `batches()`; use it in a `with`, or to its end."""

    def __init__(self, portal: Portal | Turns, subscription: asynchronous.Subscription) -> None:
        super().__init__(portal, subscription)
        self.topic, self.name = subscription.topic, subscription.name

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Message]:
        for batch in self.batches():
            yield from batch.messages()

    def batches(self) -> Iterator[Batch]:
        self.open()
        try:
            while (batch := self.next()) is not None:
                yield batch
        finally:
            self.close()

    def next(self, wait_s: float | None = None) -> Batch | None:
        """The next range; None if there is none within the time, or this was closed."""
        found = self.run(self.inner.next(wait_s))
        return Batch(self._portal, found) if found is not None else None

    open = crossing(asynchronous.Subscription.open)
    seek = crossing(asynchronous.Subscription.seek)
    pause = crossing(asynchronous.Subscription.pause)
    resume = crossing(asynchronous.Subscription.resume)

    def close(self) -> None:
        if self._portal.is_open:
            self.run(self.inner.close())
