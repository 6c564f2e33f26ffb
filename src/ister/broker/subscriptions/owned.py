"""A subscription while this node owns it: its consumers, what they ask for, and the reading for them.

A consumer asks for as many records as it is willing to hold, and waits until there are some; `handing_out`
chooses them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from ister.broker.subscriptions.dispatch import Dispatcher, Past
from ister.broker.subscriptions.handing_out import READ_BYTES, HandingOut, Selected, Source
from ister.broker.subscriptions.policy import dead_letter, dead_letter_topic, judge
from ister.errors import IsterError, RecordsLost, StaleDelivery, SubscriptionBusy
from ister.frame import DEFAULT_LIMIT, frames_in
from ister.io.clock import monotonic
from ister.logs import fields
from ister.metadata.commands import FlushRow
from ister.metadata.topics import SubscriptionState, TopicState
from ister.protocol.messages import Fetch
from ister.protocol.subscriptions import Delivered, OnFailure, Pull, Refused, SubscriptionKind

log = logging.getLogger("ister.broker.subscriptions")

SESSION_SECONDS: Final = 10.0
"""A consumer that says nothing for so long, and waits for nothing, is gone: others get what it has."""
LOST_SECONDS: Final = 1.0
"""The same for one whose connection broke: it may come back by another one."""
MAX_REASON: Final = 500
"""Characters."""
RETRY_SECONDS: Final = 5.0
"""Before a dead letter that could not be written is tried again."""
_WATCH_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.1


class Letters(Protocol):
    async def append(self, topic: str, frame: bytes) -> None: ...


class _Consumer:
    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.last_request = 0
        self.asked: Pull | None = None
        """The last that came, which alone is answered: one that is sent again has the number of the first."""
        self.waiting = 0
        """Its requests that are being answered."""


class Owned:
    def __init__(
        self,
        topic: TopicState,
        state: SubscriptionState,
        source: Source,
        dead_letters: Letters,
        current: Callable[[Owned], TopicState],
        changed: Callable[[Owned, int], None],
        is_paused: Callable[[Owned], bool],
        end_at_claim: int,
    ) -> None:
        self.topic_uid, self.uid = topic.uid, state.uid
        self.name, self.kind, self.epoch = state.name, state.kind, state.epoch
        self.policy = policy = state.policy
        self.dispatcher = Dispatcher(
            state.cursor,
            state.beyond,
            state.attempts,
            lambda attempts: judge(policy, attempts),
            by_key=state.kind == SubscriptionKind.KEY_SHARED,
        )
        self.stored: FlushRow = self.row()
        """What the metadata has."""
        self.unstored_since: float | None = None
        self._source = source
        self._dead_letters = dead_letters
        self._burying: asyncio.Task[None] | None = None
        self._current = current
        """Raises if this node does not own it any more."""
        self._changed = changed
        """To be told how many were acknowledged, or that something else is to be stored."""
        self._handing_out = HandingOut(
            self.dispatcher,
            state,
            source,
            lambda: current(self),
            lambda count: changed(self, count),
            end_at_claim if state.epoch > 1 else 0,
        )
        self._consumers: dict[int, _Consumer] = {}
        self._selecting = asyncio.Lock()
        self._news = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._is_paused = is_paused

    def row(self) -> FlushRow:
        dispatcher = self.dispatcher
        beyond = list(dispatcher.acknowledged.beyond)
        return FlushRow(
            self.topic_uid, self.uid, self.epoch, dispatcher.cursor, beyond, dispatcher.attempts()
        )

    def close(self) -> None:
        """Somebody else owns it, or nobody: who waits here looks again."""
        self._news.set()
        for task in (self._watching, self._burying):
            if task is not None:
                task.cancel()

    def wake(self) -> None:
        """Something that is not seen from here has changed: whoever waits looks again."""
        self._news.set()

    # Consumers.

    @property
    def consumers(self) -> int:
        return len(self._consumers)

    def seen(self, consumer: int) -> _Consumer:
        """A consumer is there; raises if there is no place for it."""
        now = monotonic()
        found = self._consumers.get(consumer)
        if found is None:
            if self.kind == SubscriptionKind.EXCLUSIVE and self._consumers:
                raise SubscriptionBusy(f"the exclusive subscription {self.name} has a consumer already")
            found = self._consumers[consumer] = _Consumer(now)
            self.dispatcher.join(consumer)
        found.deadline = now + SESSION_SECONDS
        return found

    def keep_alive(self, consumer: int) -> None:
        found = self._consumers.get(consumer)
        if found is not None:
            found.deadline = monotonic() + SESSION_SECONDS

    def connection_lost(self, consumer: int) -> None:
        found = self._consumers.get(consumer)
        if found is not None:
            found.deadline = min(found.deadline, monotonic() + LOST_SECONDS)

    def leave(self, consumer: int) -> None:
        """What it has goes to others at once."""
        if self._consumers.pop(consumer, None) is not None:
            if self.dispatcher.give_back(consumer):
                self._changed(self, 0)
            self.dispatcher.leave(consumer)
        self._news.set()

    def look(self, now: float) -> None:
        """Let go of consumers that are gone, and take back what is not acknowledged in time."""
        for consumer, found in list(self._consumers.items()):
            if found.deadline <= now and not found.waiting:
                log.info("consumer gone", extra=fields(subscription=self.name, consumer=consumer))
                del self._consumers[consumer]
                if self.dispatcher.lose(consumer, now):
                    self._changed(self, 0)
                self.dispatcher.leave(consumer)
                self._news.set()
        if self.dispatcher.handed and self.dispatcher.expire(now):
            self._changed(self, 0)
            self._news.set()
        if self.dispatcher.ripen(now):
            self._news.set()
        self._see_to_failed()

    def refuse(self, epoch: int, consumer: int, refused: tuple[Refused, ...]) -> None:
        self._check_epoch(epoch)
        now = monotonic()
        for one in refused:
            delay = one.delay_ms / 1000 if one.delay_ms >= 0 else None
            if one.start < one.end:
                self.dispatcher.refuse(consumer, one.start, one.end, now, delay, one.reason[:MAX_REASON])
        self._changed(self, 0)
        self._news.set()
        self._see_to_failed()

    # What has failed.

    def _see_to_failed(self) -> None:
        if self.dispatcher.failed and self._burying is None:
            self._burying = asyncio.get_running_loop().create_task(self._bury())
            self._burying.add_done_callback(self._buried)

    def _buried(self, task: asyncio.Task[None]) -> None:
        self._burying = None
        if not task.cancelled() and task.exception() is not None:
            log.error("records of %s that failed are where they were", self.name, exc_info=task.exception())

    async def _bury(self) -> None:
        """Do what the policy says with what was delivered too often; in its time again if that fails."""
        while (first := self.dispatcher.failed.first) is not None:
            topic = self._current(self)
            start, end, past = first
            now, longest = monotonic(), self.policy.backoff_max_ms / 1000
            try:
                match self.policy.on_failure:
                    case OnFailure.DROP:
                        log.warning(
                            "records dropped after %d deliveries: %s",
                            past.attempts,
                            past.reason,
                            extra=fields(topic=topic.name, subscription=self.name, offset=start, end=end),
                        )
                    case OnFailure.DEAD_LETTER:
                        end = await self._write_dead_letters(topic.name, start, end, past)
                    case _:
                        self.dispatcher.block(start, end, now, longest)
                        continue
            except RecordsLost as error:
                end = error.offsets[1] if error.offsets is not None else start + 1
            except IsterError as error:
                log.warning("dead letters of %s wait: %s", self.name, error.message)
                self.dispatcher.block(start, end, now, min(longest, RETRY_SECONDS))
                return
            self._changed(self, self.dispatcher.acknowledge(start, end))
            self._news.set()

    async def _write_dead_letters(self, topic: str, start: int, end: int, past: Past) -> int:
        """As far as one read goes; returns how far that is."""
        if start < self._current(self).start_offset:
            return self._current(self).start_offset  # retention was quicker
        data = await self._source.read(Fetch(topic, start, READ_BYTES))
        where = dead_letter_topic(topic, self.name, self.policy)
        for frame in frames_in(data, limit=max(DEFAULT_LIMIT, len(data))):
            for record in frame.records():
                if start <= record.offset < end:
                    self._current(self)
                    await self._dead_letters.append(where, dead_letter(record, topic, self.name, past))
                    start = record.offset + 1
        return start

    def acknowledge(self, epoch: int, ranges: list[tuple[int, int]]) -> None:
        self._check_epoch(epoch)
        count = sum(self.dispatcher.acknowledge(start, end) for start, end in ranges if start < end)
        if count:
            self._changed(self, count)
            self._news.set()  # there may be room in a window again

    def _check_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            raise StaleDelivery(
                f"{self.name} is in epoch {self.epoch}, what is acknowledged was handed out in epoch {epoch}"
            )

    # Handing out.

    async def pull(self, request: Pull, until: float) -> tuple[list[Delivered], list[memoryview]]:
        """Ranges for a consumer, and the frames that they lie in; nothing if the time is over."""
        consumer = self.seen(request.consumer)
        if consumer.last_request > request.number:
            return [], []  # it was long on its way, and its consumer has asked anew
        self._give_back(request.consumer, request.received + 1, consumer.last_request + 1)
        consumer.last_request, consumer.asked = request.number, request
        consumer.waiting += 1
        left_after = LOST_SECONDS  # its connection broke
        try:
            found = await self._pull(request, consumer, until)
            left_after = SESSION_SECONDS
            return found
        finally:
            consumer.waiting -= 1
            consumer.deadline = monotonic() + left_after

    async def _pull(
        self, request: Pull, consumer: _Consumer, until: float
    ) -> tuple[list[Delivered], list[memoryview]]:
        while True:
            is_at_end = False
            async with self._selecting:
                self._news.clear()
                self._current(self)
                if not self._is_waited_for(request, consumer):
                    return [], []
                if self._may_have(request.consumer):
                    found = await self._select(request, consumer)
                    if found is None:
                        return [], []
                    if found.ranges:
                        return found.ranges, found.payload
                    is_at_end = found.is_at_end
            left = until - monotonic()
            if left <= 0:
                return [], []
            if is_at_end:
                self._watch()
            try:
                async with asyncio.timeout(left):
                    await self._news.wait()
            except TimeoutError:
                return [], []

    async def _select(self, request: Pull, consumer: _Consumer) -> Selected | None:
        """What it may have now; None if nobody waits for that any more, which others may have then."""
        found = None
        try:
            selected = await self._handing_out.select(request, self.consumers)
            if self._is_waited_for(request, consumer):
                found = selected
        finally:
            if found is None:
                self._give_back(request.consumer, request.number, request.number + 1)
        return found

    def _is_waited_for(self, request: Pull, consumer: _Consumer) -> bool:
        """Not once its consumer has left, asks anew, or has sent this again: then what came of its number may
        be with it already. Each wait for a read is long enough for that."""
        return self._consumers.get(request.consumer) is consumer and consumer.asked is request

    def _give_back(self, consumer: int, first: int, end: int) -> None:
        """What was handed out to these of its requests never came to it, and never will."""
        if first < end and self.dispatcher.give_back(consumer, range(first, end)):
            self._news.set()

    def _may_have(self, consumer: int) -> bool:
        """Whether it is this one's turn. Of a failover subscription it is the first one's, as long as that
        stays; of an exclusive one there is no other."""
        if self._is_paused(self):
            return False
        return self.kind != SubscriptionKind.FAILOVER or next(iter(self._consumers)) == consumer

    def _watch(self) -> None:
        """See to it that somebody hears when the topic goes on."""
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._wait_for_records())

    async def _wait_for_records(self) -> None:
        try:
            topic = self._current(self)
            await self._source.wait(topic.name, self.dispatcher.next_offset, _WATCH_SECONDS)
        except IsterError as error:
            log.debug("waiting for records of %s: %s", self.name, error.message)
            await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            self._watching = None
            self._news.set()
