"""Requests that their consumer has given up, or left behind, while the owner still reads for them: what they
would have had goes to whoever waits, at once and in order.

The policy has no bound for acknowledgements, so that nothing comes back by itself later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ister.broker.subscriptions.owned import Owned
from ister.frame import encode, stamp
from ister.io.clock import monotonic
from ister.metadata.topics import SubscriptionState, TopicSettings, TopicState
from ister.protocol.messages import Fetch
from ister.protocol.subscriptions import Delivered, FailurePolicy, Pull, SubscriptionKind
from ister.testing import simulate

A, B = 1, 2


class Topic:
    """Frames of ten records, each read by itself; as long as `holds` is set, a read takes for ever."""

    def __init__(self, frames: int) -> None:
        self.frames = frames
        self.grows = asyncio.Event()
        self.reads: asyncio.Queue[int] = asyncio.Queue()
        self._answers = asyncio.Event()
        self._answers.set()

    def hold(self) -> None:
        self._answers.clear()

    def let_go(self) -> None:
        self._answers.set()

    async def read(self, request: Fetch) -> bytes:
        self.reads.put_nowait(request.offset)
        await self._answers.wait()
        number = request.offset // 10
        if number >= self.frames:
            return b""
        frame = bytearray(encode([b"%d" % offset for offset in range(number * 10, number * 10 + 10)]))
        stamp(frame, number * 10, 1, 0)
        return bytes(frame)

    async def wait(self, topic: str, offset: int, seconds: float) -> None:
        await self.grows.wait()

    async def append(self, topic: str, frame: bytes) -> None:
        raise AssertionError("nothing fails here")


def owned_by(source: Topic, kind: SubscriptionKind) -> Owned:
    policy = FailurePolicy(ack_timeout_ms=0)
    state = SubscriptionState("s", 7, kind, 0, 0, owner=1, epoch=1, policy=policy)
    topic = TopicState("default/t", 3, TopicSettings(), 0, [], subscriptions=[state])
    return Owned(
        topic, state, source, source, lambda _: topic, lambda _, count: None, lambda _: False, end_at_claim=0
    )


async def pull(owned: Owned, consumer: int, number: int, received: int = 0) -> list[Delivered]:
    request = Pull("default/t", "s", consumer, number, received, window=1_000, max_bytes=1_000_000)
    ranges, _ = await owned.pull(request, monotonic() + 5)
    owned.dispatcher.validate()
    return ranges


def story(
    scenario: Callable[[Topic, Owned], Awaitable[None]], kind: SubscriptionKind, frames: int = 1
) -> None:
    async def main(_: object) -> None:
        topic = Topic(frames)
        owned = owned_by(topic, kind)
        try:
            await scenario(topic, owned)
        finally:
            owned.close()

    simulate(main, seed=1)


def test_what_was_read_for_a_request_that_was_given_up_goes_to_the_next_one() -> None:
    async def scenario(topic: Topic, owned: Owned) -> None:
        topic.hold()
        given_up = asyncio.ensure_future(pull(owned, A, 1))
        await topic.reads.get()
        asked_anew = asyncio.ensure_future(pull(owned, A, 2))
        await asyncio.sleep(0.1)
        topic.let_go()
        assert await given_up == [], "nobody waits for this answer"
        assert await asked_anew == [Delivered(0, 10, 1)]

    story(scenario, SubscriptionKind.EXCLUSIVE)


def test_a_given_up_request_that_ends_in_the_middle_leaves_nothing_with_itself() -> None:
    async def scenario(topic: Topic, owned: Owned) -> None:
        topic.hold()
        given_up = asyncio.ensure_future(pull(owned, A, 1))
        await topic.reads.get()
        asked_anew = asyncio.ensure_future(pull(owned, A, 2))
        await asyncio.sleep(0.1)
        topic.let_go()
        topic.hold()  # the read that waited ends; the next one does not
        while await topic.reads.get() != 10:
            pass
        given_up.cancel()  # its connection breaks
        topic.let_go()
        assert [(one.start, one.end, one.attempt) for one in await asked_anew] == [(0, 10, 1), (10, 20, 1)]

    story(scenario, SubscriptionKind.EXCLUSIVE, frames=2)


def test_what_was_read_for_a_consumer_that_left_goes_to_another_one() -> None:
    async def scenario(topic: Topic, owned: Owned) -> None:
        topic.hold()
        left = asyncio.ensure_future(pull(owned, A, 1))
        await topic.reads.get()
        owned.leave(A)
        other = asyncio.ensure_future(pull(owned, B, 1))
        await asyncio.sleep(0.1)
        topic.let_go()
        assert await left == []
        assert await other == [Delivered(0, 10, 1)]

    story(scenario, SubscriptionKind.SHARED)


def test_a_request_that_comes_after_a_later_one_gets_nothing_and_takes_nothing_back() -> None:
    """It was long on its way, by another node."""

    async def scenario(topic: Topic, owned: Owned) -> None:
        assert await pull(owned, A, 2) == [Delivered(0, 10, 1)]
        waits = asyncio.ensure_future(pull(owned, A, 3, received=2))
        await asyncio.sleep(0.1)
        assert await pull(owned, A, 1) == []
        topic.frames = 2
        topic.grows.set()
        assert await waits == [Delivered(10, 20, 1)]
        assert owned.dispatcher.held_by(A) == 20

    story(scenario, SubscriptionKind.EXCLUSIVE)


def test_of_a_request_that_is_sent_again_the_last_copy_alone_is_answered() -> None:
    async def scenario(topic: Topic, owned: Owned) -> None:
        topic.hold()
        first = asyncio.ensure_future(pull(owned, A, 1))
        await topic.reads.get()
        again = asyncio.ensure_future(pull(owned, A, 1))
        await asyncio.sleep(0.1)
        topic.let_go()
        assert await first == [], "nobody waits for this answer"
        assert await again == [Delivered(0, 10, 1)]

    story(scenario, SubscriptionKind.EXCLUSIVE)
