"""The clients of a run: producers of every kind, readers that follow, a churner and an operator.

They use the public client only, and write down in the history what they were told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from random import Random
from typing import Any

import ister
from ister.errors import (
    BadRequest,
    CorruptFrame,
    CorruptSegment,
    DuplicateSequence,
    InvariantBroken,
    IsterError,
    OffsetOutOfRange,
    RecordsLost,
    UnknownProducer,
    UnknownTopic,
)
from ister.frame import Frame
from ister.testing import SimClock, SimNetwork, VirtualLoop
from ister.testing.history import History, Read, SeenFrame, Send
from tests.simulation.node import ADDRESS

COMPRESSIONS = ("none", "none", "lz4", "zstd")
NEVER = (UnknownProducer, DuplicateSequence, InvariantBroken)
"""Errors that a producer of a strong topic may never see: they mean that the log forgot or mixed up."""


class Clients:
    """What the clients of one run share."""

    def __init__(self, loop: VirtualLoop, network: SimNetwork, history: History) -> None:
        self.loop, self.network, self.history = loop, network, history
        self.lines: dict[str, str] = {}
        """Lines by topic, of the topics that are there for the whole run."""
        self.strong: set[str] = set()
        self.may_not_read = False
        """Whether reads from the disk are failing now, or have been."""
        self.never: tuple[type[IsterError], ...] = NEVER
        self.done = asyncio.Event()
        self.pause_s = 3.0
        self._values = 0
        self._connects = 0

    def value(self, session: str, dice: Random) -> bytes:
        """Unique, so that a value is the identity of its record."""
        self._values += 1
        size = dice.choice((0, 0, 3, 20, 90)) if dice.random() < 0.95 else 700
        return b"%s.%d." % (session.encode(), self._values) + b"x" * size

    def seen(self, frame: Frame) -> SeenFrame:
        header = frame.header
        values = tuple(record.value for record in frame.records())
        return SeenFrame(
            header.base_offset, values, header.append_time_us, header.producer_id, header.sequence
        )

    def connect(self, name: str) -> ister.Log:
        self._connects += 1  # two clients never draw the same producer id
        clock = SimClock(self.loop, self.loop.fork(f"clock-{name}-{self._connects}"))
        host = name.partition(".")[0]
        return ister.connect(
            ADDRESS,
            network=self.network.host(host),
            clock=clock,
            request_timeout_s=4,
            connect_timeout_s=2,
            retry_deadline_s=40,
        )

    async def with_log(self, name: str, work: Callable[[ister.Log, Random], Awaitable[None]]) -> None:
        """Connect as often as it takes, and do the work until it ends by itself."""
        dice = self.loop.fork(f"worker-{name}")
        while True:
            try:
                async with self.connect(name) as log:
                    await work(log, dice)
                    return
            except IsterError as error:
                if not error.retriable:
                    raise
                await asyncio.sleep(dice.uniform(0.05, 0.5))

    async def rest(self, dice: Random) -> None:
        """Mostly a while, now and then not at all: what comes at once is flushed and lost at once."""
        if dice.random() < 0.7:
            await asyncio.sleep(dice.expovariate(1 / self.pause_s))

    async def told(self, send: Send, answer: Awaitable[object]) -> None:
        """Wait for the answer and write down what it was."""
        try:
            offsets = await answer
        except TimeoutError as error:
            send.unknown(error)
        except BadRequest as error:
            if send.atomic:
                send.failed(error)
            else:
                send.unknown(error)  # of several frames: the others may have been appended
        except IsterError as error:
            send.unknown(error)
            if send.line in self.strong and isinstance(error, self.never):
                self.history.violated(f"{send.session} was told {error.code} for {send.line}: {error}")
        else:
            if isinstance(offsets, int):
                offsets = [offsets]
            elif isinstance(offsets, ister.Appended):
                offsets = list(offsets.offsets)
            assert isinstance(offsets, list | range)
            send.acknowledged(list(offsets))

    def behind_loss(self, name: str, line: str, place: int, error: RecordsLost) -> int:
        """Where a reader goes on that was told of a loss. Here nobody has given up anything."""
        raise error


def oversize(dice: Random) -> bytes:
    return b"far too large" * dice.randrange(200, 400)


async def append_batches(clients: Clients, name: str, topic: str) -> None:
    """`Log.append`: frames with all columns, alone or several at once, now and then one that is too large."""

    async def work(log: ister.Log, dice: Random) -> None:
        while not clients.done.is_set():
            count = 1 if dice.random() < 0.8 else dice.randrange(2, 7)
            await asyncio.gather(*[_append_one(clients, log, dice, name, topic) for _ in range(count)])
            await clients.rest(dice)

    await clients.with_log(name, work)


def _append_one(clients: Clients, log: ister.Log, dice: Random, name: str, topic: str) -> Awaitable[None]:
    values = [clients.value(name, dice) for _ in range(dice.choice((1, 1, 2, 5, 12)))]
    if dice.random() < 0.03:
        values[-1] += oversize(dice)
    count = len(values)
    answer: Awaitable[object] = log.append(
        topic,
        values,
        keys=[b"k%d" % dice.randrange(5) for _ in values] if dice.random() < 0.4 else None,
        timestamps_us=[dice.randrange(1 << 40)] * count if dice.random() < 0.3 else None,
        headers=[[("h", b"1")]] * count if dice.random() < 0.3 else None,
        compression=dice.choice(COMPRESSIONS),
    )
    if dice.random() < 0.04:
        answer = _within(dice.uniform(0.0001, 0.05), answer)
    return clients.told(clients.history.sending(name, clients.lines[topic], values), answer)


async def _within(seconds: float, answer: Awaitable[object]) -> object:
    # Not `wait_for`: its task would begin after those of later appends, and the order of calls counts.
    async with asyncio.timeout(seconds):
        return await answer


async def produce(clients: Clients, name: str, topic: str) -> None:
    """A producer with batching: `send`, `submit` and `send_many`, some of it in flight at once."""

    async def work(log: ister.Log, dice: Random) -> None:
        while not clients.done.is_set():
            producer = log.producer(
                topic,
                linger_ms=dice.choice((0, 1, 5)),
                batch_records=dice.choice((1, 3, 8)),
                max_in_flight=dice.choice((1, 5, 8)),
                compression=dice.choice(COMPRESSIONS),
            )
            session = f"{name}.{clients.history.operation_count}"
            try:
                async with producer:
                    for _ in range(dice.randrange(10, 40)):
                        if clients.done.is_set():
                            break
                        await _produce_some(clients, session, producer, clients.lines[topic], dice)
                        await clients.rest(dice)
            except IsterError:
                await clients.rest(dice)  # told to each send already; the next producer is another session

    await clients.with_log(name, work)


async def _produce_some(
    clients: Clients, session: str, producer: ister.Producer, line: str, dice: Random
) -> None:
    way = dice.randrange(3)
    count = dice.choice((1, 2, 4, 15))
    values = [clients.value(session, dice) for _ in range(count)]
    history = clients.history
    if way == 0:
        key = b"k" if dice.random() < 0.3 else None
        await clients.told(history.sending(session, line, values[:1]), producer.send(values[0], key=key))
    elif way == 1:
        sends = [history.sending(session, line, [value]) for value in values]
        receipts = [await producer.submit(value) for value in values]
        for send, receipt in zip(sends, receipts, strict=True):
            await clients.told(send, _wait(receipt))
    else:
        send = history.sending(session, line, values, atomic=False)
        await clients.told(send, producer.send_many(values))


async def _wait(receipt: ister.Receipt) -> int:
    return await receipt


async def follow(clients: Clients, name: str, topic: str, **options: Any) -> None:
    """Read along for the whole run, from where it got to, through every error that may pass."""
    line = clients.lines[topic]
    place = 0

    async def work(log: ister.Log, dice: Random) -> None:
        nonlocal place
        while not clients.done.is_set():
            read = clients.history.reading(name, line, place)
            reader = log.read(
                topic, start=place, follow=True, max_bytes=dice.choice((1, 4096, 4096, 1 << 20)), **options
            )
            try:
                async with aclosing(reader.frames()) as frames:
                    async for frame in frames:
                        read.frames.append(clients.seen(frame))
                        place = read.end_offset
                        if dice.random() < 0.02:
                            break  # begin anew, in the middle of a frame too
                if read.frames and dice.random() < 0.5:
                    place -= dice.randrange(len(read.frames[-1].values))
            except OffsetOutOfRange as error:
                place = await _after_trim(clients, log, topic, name, place, error)
            except RecordsLost as error:
                place = clients.behind_loss(name, line, place, error)
            except (CorruptSegment, CorruptFrame) as error:
                if not clients.may_not_read and line not in clients.history.excused:
                    clients.history.violated(f"{name} was told {error.code} at {place} of {line}: {error}")
                await asyncio.sleep(0.5)

    await clients.with_log(name, work)


async def _after_trim(
    clients: Clients, log: ister.Log, topic: str, name: str, place: int, error: OffsetOutOfRange
) -> int:
    earliest, latest = await log.offsets_at(topic, "earliest"), await log.offsets_at(topic, "latest")
    if place > latest and clients.lines[topic] not in clients.history.excused:
        clients.history.violated(f"{name} had read {topic} up to {place}, now it ends at {latest}: {error}")
        return latest
    return max(place, earliest)


async def churn(clients: Clients, name: str, topic: str) -> None:
    """Create, write, read, alter, delete, and again: another line each time (I3)."""

    async def work(log: ister.Log, dice: Random) -> None:
        while not clients.done.is_set():
            try:
                made = await log.create_topic(
                    topic, if_absent=True, segment_records=dice.choice((1, 4, 9)), max_message_bytes=2048
                )
                line = f"{topic}#{made.uid}"
                for _ in range(dice.randrange(1, 10)):
                    values = [clients.value(name, dice) for _ in range(dice.choice((1, 3)))]
                    send = clients.history.sending(f"{name}.{made.uid}", line, values)
                    await clients.told(send, log.append(topic, values))
                    if dice.random() < 0.2:
                        await log.alter_topic(topic, segment_records=dice.choice((1, 3, 50)))
                await _read_line(clients, log, topic, line, name)
                if dice.random() < 0.3:
                    await asyncio.gather(
                        log.delete_topic(topic), _lost_append(clients, log, topic, name, dice)
                    )
                else:
                    await log.delete_topic(topic)
            except (CorruptSegment, CorruptFrame) as error:
                if not clients.may_not_read:
                    clients.history.violated(f"{name} was told {error.code} for {topic}: {error}")
            except UnknownTopic:
                pass  # its append was late, and met the deleted topic
            await clients.rest(dice)

    await clients.with_log(name, work)


async def _lost_append(clients: Clients, log: ister.Log, topic: str, name: str, dice: Random) -> None:
    """An append that meets a deletion. It has no line to be judged by: either end is right."""
    try:
        await log.append(topic, [clients.value(name, dice)])
    except IsterError:
        pass


async def _read_line(clients: Clients, log: ister.Log, topic: str, line: str, name: str) -> None:
    read = clients.history.reading(f"{name}.{line}", line, 0)
    async with aclosing(log.read(topic).frames()) as frames:
        async for frame in frames:
            read.frames.append(clients.seen(frame))
    _check_all_there(clients, read)


def _check_all_there(clients: Clients, read: Read) -> None:
    """The churner is alone on its topic: what it was told is there before the topic is gone."""
    there = {value for _, value in read.rows()}
    for send in clients.history.sends:
        if send.line == read.line and send.outcome.value == "acknowledged" and not there >= set(send.values):
            clients.history.violated(f"{send.values} was acknowledged in {read.line} and is not there")


async def operate(clients: Clients, name: str, topics: list[str]) -> None:
    """Looks at everything and changes settings."""

    async def work(log: ister.Log, dice: Random) -> None:
        while not clients.done.is_set():
            topic = dice.choice(topics)
            try:
                await look_or_change(log, dice, topic)
            except CorruptSegment as error:
                if not clients.may_not_read:
                    clients.history.violated(f"{name} was told {error.code} for {topic}: {error}")
            await asyncio.sleep(dice.uniform(0.5, 3))

    async def look_or_change(log: ister.Log, dice: Random, topic: str) -> None:
        match dice.randrange(6):
            case 0:
                await log.list_topics()
            case 1:
                await log.describe_topic(topic)
            case 2:
                await log.alter_topic(topic, segment_records=dice.choice((3, 10, 40)))
            case 3:
                await log.alter_topic("loose", fsync=dice.choice(("interval", "none", "fsync")))
            case 4:
                await log.stats()
            case 5:
                await log.offsets_at(topic, dice.randrange(1_704_067_200_000_000, 1_704_067_300_000_000))

    await clients.with_log(name, work)
