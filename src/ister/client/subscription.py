"""Consuming a subscription: records that come until they are acknowledged.

    async with ister.connect("127.0.0.1:9091") as log:
        async for message in log.subscribe("orders", "billing", kind="shared"):
            ...
            await message.ack()

The broker hands out as many records as this consumer is willing to have unacknowledged (`window`); one
request for more is always under way. Acknowledgements are gathered for a few milliseconds and sent as ranges.

What can fail: the connection, or the node that owns the subscription; then this finds the next owner by
itself, and goes on where the subscription is, never at the latest record. What was not stored by the old
owner is delivered again, and marked (`may_repeat`); an acknowledgement of what was delivered before that
counts for nothing, since the epoch is over (S1). A subscription that was deleted is an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from ister.client.deliveries import AnsweredFrames, Batch, Decoded, Message
from ister.client.reader import Place
from ister.client.retry import Retries
from ister.errors import BadRequest, ConnectionFailed, IsterError, RecordsLost, StaleDelivery
from ister.frame import DEFAULT_LIMIT
from ister.offset_ranges import OffsetRanges
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.messages import Kind
from ister.protocol.subscriptions import (
    FailurePolicy,
    Pull,
    Pulled,
    Refused,
    Settle,
    Settled,
    SubscriptionKind,
)

if TYPE_CHECKING:
    from ister.client.log import Log

log = logging.getLogger("ister.client")

ACK_SECONDS: Final = 0.005
"""So long acknowledgements gather before they are sent."""
ACK_AT_ONCE: Final = 1_000
"""... or until there are so many."""
ALIVE_SECONDS: Final = 3.0
"""How often a consumer that asks for nothing, since it has enough, says that it is there."""
MAX_DELAY_S: Final = 7 * 24 * 3600
MAX_RANGES: Final = 2_000
"""That one request acknowledges."""
MAX_REFUSED: Final = 50
MAX_REASON: Final = 200
"""Characters: what is longer is cut."""
WAIT_MS: Final = 20_000
CLOSE_SECONDS: Final = 5.0
_BUFFERED_ANSWERS: Final = 4


@dataclass(frozen=True)
class ConsumerOptions:
    """What `log.subscribe` was asked for."""

    kind: str | None
    start: Place
    policy: FailurePolicy | None
    window: int
    max_bytes: int

    def __post_init__(self) -> None:
        if self.window < 1:
            raise BadRequest(
                f"window is {self.window}", hint="Give how many records may be unacknowledged, from 1."
            )
        if not 1 <= self.max_bytes <= DEFAULT_LIMIT:
            raise BadRequest(f"max_bytes is {self.max_bytes}", hint=f"Choose 1 to {DEFAULT_LIMIT}.")


class Subscription:
    """Made by `Log.subscribe`. Iterate it for messages, or take `batches()`; one of them, once."""

    def __init__(
        self,
        log: Log,
        topic: str,
        name: str,
        options: ConsumerOptions,
    ) -> None:
        self._log = log
        self.topic = topic
        self.name = name
        self._options = options
        self._refused: list[Refused] = []
        """Not sent yet, of this epoch."""
        self._key = f"{topic}:subscription-{name}"
        self._consumer = 0
        self._number = 0
        self._received = 0
        self._is_asking = False
        self._uid = 0
        self._epoch = 0
        self._least_epoch = 0
        self._acknowledged = OffsetRanges()
        """Not sent yet, of this epoch."""
        self._ack_due = asyncio.Event()
        self._ready: deque[Batch | Exception] = deque()
        self._buffered = 0
        self._decoded = Decoded()
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._messages()

    async def _messages(self) -> AsyncGenerator[Message, None]:
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                for message in batch.messages():
                    yield message

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """What was handed out, range by range, as it comes; waits for more at the end of the topic."""
        await self.open()
        try:
            while not self._closed:
                batch = await self.next()
                if batch is None:
                    return
                yield batch
        finally:
            await self.close()

    async def next(self, wait_s: float | None = None) -> Batch | None:
        """The next range; None if there is none within the time, or this was closed."""
        try:
            async with asyncio.timeout(wait_s):
                while not self._ready and not self._closed:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            return None
        if not self._ready:
            return None
        found = self._ready.popleft()
        if isinstance(found, Exception):
            if isinstance(found, RecordsLost):
                self._start_pulling()  # it goes on behind them, for whoever wants that
            raise found
        self._buffered -= sum(frame.header.size for frame in found.frames)
        self._taken.set()
        return found

    async def open(self) -> None:
        """Begin to ask for records. Called by whoever iterates."""
        if self._closed:
            raise ConnectionFailed(
                f"the consumer of {self.name} was closed", hint="Call log.subscribe again."
            )
        if self._tasks:
            return
        await self._make()
        self._consumer = self._log.requests.token()
        self._tasks = [asyncio.get_running_loop().create_task(self._keep_sending())]
        self._start_pulling()

    async def _make(self) -> None:
        """See to it that it is there: made now, or long ago."""
        if self._options.kind is None:
            known = await self._log.subscriptions(self.topic, self.name)
            if any(one.topic == self.topic for one in known):
                return
        kind = self._options.kind or SubscriptionKind.EXCLUSIVE
        await self._log.create_subscription(
            self.topic,
            self.name,
            kind=kind,
            start=self._options.start,
            if_absent=True,
            policy=self._options.policy,
        )

    def _start_pulling(self) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(self._keep_pulling()))

    async def close(self) -> None:
        """Have stored what is acknowledged, and let others have the rest at once."""
        if self._closed:
            return
        self._closed = True
        self._arrived.set()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._log.forget_subscription(self)
        if not tasks or not self._uid:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                ranges = self._acknowledged.take_all()
                await self._settle(ranges, self._epoch, self._refused, durable=True, leaves=True)
        except (IsterError, TimeoutError) as error:
            log.warning("what was acknowledged last of %s may be delivered again: %s", self.name, error)

    # For all consumers of it.

    async def seek(self, place: Place) -> None:
        """Go on at `earliest`, `latest`, an offset or a time, whoever consumes it. What comes next is from
        there; what was delivered before can be acknowledged no more."""
        moved = await self._log.seek_subscription(self.topic, self.name, place)
        self._least_epoch = moved.epoch
        self._begin_epoch(moved.uid, moved.epoch)

    async def pause(self) -> None:
        """Nothing more is handed out, to nobody, until somebody resumes it."""
        await self._log.pause_subscription(self.topic, self.name)

    async def resume(self) -> None:
        await self._log.resume_subscription(self.topic, self.name)

    def _begin_epoch(self, uid: int, epoch: int) -> None:
        """What is here and was not taken yet is delivered again, and its acknowledgement would be refused."""
        self._uid, self._epoch = uid, epoch
        self._acknowledged.take_all()
        self._refused.clear()
        self._ready = deque(found for found in self._ready if isinstance(found, Exception))
        self._buffered = 0
        self._taken.set()

    # Acknowledging.

    def acknowledge(self, start: int, end: int, epoch: int) -> None:
        """Note it; it is sent within milliseconds. What is of an earlier epoch is delivered again anyway."""
        if epoch != self._epoch:
            return
        self._acknowledged.add(start, end)
        self._ack_due.set()

    def refuse(self, start: int, end: int, epoch: int, delay_s: float | None, reason: str) -> None:
        if epoch != self._epoch:
            return  # it is delivered again anyway
        if delay_s is not None and not 0 <= delay_s <= MAX_DELAY_S:
            raise BadRequest(f"delay_s is {delay_s:g}", hint=f"Choose 0 to {MAX_DELAY_S} seconds.")
        delay_ms = -1 if delay_s is None else round(delay_s * 1000)
        self._refused.append(Refused(start, end, delay_ms, reason[:MAX_REASON]))
        self._ack_due.set()

    async def store(self, start: int, end: int, epoch: int) -> None:
        if epoch != self._epoch:
            raise StaleDelivery(
                f"offset {start} of {self.topic} was delivered before {self.name} changed hands"
            )
        self._acknowledged.add(start, end)
        await self._settle(self._acknowledged.take_all(), epoch, durable=True)

    async def _keep_sending(self) -> None:
        while True:
            try:
                async with asyncio.timeout(ALIVE_SECONDS):
                    await self._ack_due.wait()
            except TimeoutError:
                pass
            if self._ack_due.is_set() and self._acknowledged.count < ACK_AT_ONCE:
                await asyncio.sleep(ACK_SECONDS)
            self._ack_due.clear()
            has_news = bool(self._acknowledged) or bool(self._refused)
            if not self._uid or (self._is_asking and not has_news):
                continue  # whoever asks for records is there
            ranges, epoch = self._acknowledged.take_all(), self._epoch
            refused, self._refused = self._refused, []
            try:
                await self._settle(ranges, epoch, refused)
            except StaleDelivery:
                continue  # they come again
            except asyncio.CancelledError:
                self._put_back(ranges, refused, epoch)
                raise
            except IsterError as error:
                self._put_back(ranges, refused, epoch)
                if not error.retriable:
                    self._fail(error)
                    return
                log.warning("acknowledgements of %s are not taken yet: %s", self.name, error.message)

    def _put_back(self, ranges: list[tuple[int, int]], refused: list[Refused], epoch: int) -> None:
        if epoch == self._epoch:
            self._refused = refused + self._refused
            for start, end in ranges:
                self._acknowledged.add(start, end)

    async def _settle(
        self,
        ranges: list[tuple[int, int]],
        epoch: int,
        refused: Sequence[Refused] = (),
        *,
        durable: bool = False,
        leaves: bool = False,
    ) -> None:
        """In as many requests as it takes: a header has its bound. The last one says the rest."""
        while len(ranges) > MAX_RANGES or len(refused) > MAX_REFUSED:
            await self._send(ranges[:MAX_RANGES], epoch, refused[:MAX_REFUSED])
            ranges, refused = ranges[MAX_RANGES:], refused[MAX_REFUSED:]
        await self._send(ranges, epoch, refused, durable=durable, leaves=leaves)

    async def _send(
        self,
        ranges: list[tuple[int, int]],
        epoch: int,
        refused: Sequence[Refused],
        *,
        durable: bool = False,
        leaves: bool = False,
    ) -> None:
        request = Settle(
            self.topic,
            self.name,
            self._consumer,
            epoch,
            self._uid,
            ranges,
            durable=durable,
            leaves=leaves,
            refused=tuple(refused),
        )
        what = f"acknowledging records of {self.name}"
        answer = await self._log.requests.call(what, Kind.SETTLE, encode_header(request), self._key)
        self._log.requests.learned_way(self._key, decode_header(Settled, answer.header).served_by)

    # Asking for records.

    async def _keep_pulling(self) -> None:
        retries = self._log.requests.retries_of(f"consuming {self.name} of {self.topic}", self.topic)
        while True:
            while self._buffered > _BUFFERED_ANSWERS * self._options.max_bytes:
                self._taken.clear()
                await self._taken.wait()
            try:
                await self._pull()
            except IsterError as error:
                try:
                    await self._pause(retries, error)
                except IsterError as final:
                    self._fail(final)
                    return
            except Exception as error:
                self._fail(error)
                return
            else:
                retries.succeeded()

    async def _pause(self, retries: Retries, error: IsterError) -> None:
        self._log.requests.way_failed(self._key, error)
        await retries.pause(error)

    def _fail(self, error: Exception) -> None:
        self._ready.append(error)
        self._arrived.set()

    async def _pull(self) -> None:
        self._number += 1
        number = self._number
        request = Pull(
            self.topic,
            self.name,
            self._consumer,
            number,
            self._received,
            self._options.window,
            self._options.max_bytes,
            WAIT_MS,
            uid=self._uid,
            kind=self._options.kind or "",
        )
        self._is_asking = True
        try:
            answer = await self._log.requests.ask_once(
                Kind.PULL, encode_header(request), self._key, WAIT_MS / 1000
            )
        finally:
            self._is_asking = False
        pulled = decode_header(Pulled, answer.header)
        frames = AnsweredFrames(answer.payload, self.topic)
        self._received = number
        self._log.requests.learned_way(self._key, pulled.served_by)
        if pulled.epoch < self._least_epoch:
            return  # handed out before somebody here sent it elsewhere
        if (pulled.uid, pulled.epoch) != (self._uid, self._epoch):
            self._begin_epoch(pulled.uid, pulled.epoch)
        for delivered in pulled.ranges:
            chosen = frames.of(delivered.start, delivered.end)
            self._buffered += sum(frame.header.size for frame in chosen)
            self._ready.append(
                Batch(
                    self.topic,
                    delivered.start,
                    delivered.end,
                    delivered.attempt,
                    delivered.may_repeat,
                    pulled.epoch,
                    chosen,
                    self,
                    self._decoded,
                )
            )
        if pulled.ranges:
            self._arrived.set()
