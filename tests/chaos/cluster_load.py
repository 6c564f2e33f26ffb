"""Producers and readers of a cluster that is being broken, each of them through a node of its own.

Half of the clients find their own way to the node that leads, as a user's does. The others are kept to one
node by a network that leads nowhere else, so that all they do is passed on by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import aclosing
from random import Random

import ister
from ister.errors import ConnectionFailed, IsterError
from ister.io.network import ProtocolFactory, TcpNetwork
from ister.testing.checkers import Violation
from ister.testing.history import History, Read, SeenFrame, Send

RETRY_SECONDS = 90.0
"""Longer than any fault and the way back from it: whatever fails after this is a defect."""
PAUSES = (0.0, 0.0, 0.005, 0.05)


class OnlyOneNode(TcpNetwork):
    """A network on which only one address can be reached."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.BufferedProtocol:
        if port != self._port:
            raise ConnectionFailed(f"{host}:{port} is not on this network")
        return await super().connect(factory, host, port)


def connect(
    port: int, *, is_kept: bool, request_timeout_s: float = 10.0, patience_s: float = RETRY_SECONDS
) -> ister.Log:
    """A client told of one node: it finds the others by itself, or is kept to this one."""
    return ister.connect(
        f"127.0.0.1:{port}",
        request_timeout_s=request_timeout_s,
        connect_timeout_s=2.0,
        retry_deadline_s=patience_s,
        network=OnlyOneNode(port) if is_kept else None,
    )


def seen(frame: ister.Frame) -> SeenFrame:
    header = frame.header
    values = tuple(record.value for record in frame.records())
    return SeenFrame(header.base_offset, values, header.append_time_us, header.producer_id, header.sequence)


class Load:
    def __init__(self, history: History, random: Random) -> None:
        self._history = history
        self._random = random
        self._values = 0
        self._over = asyncio.Event()

    def finish(self) -> None:
        """Producers begin nothing more; what they have begun they bring to its end."""
        self._over.set()

    def _value(self, session: str) -> bytes:
        self._values += 1
        return b"%s-%d-" % (session.encode(), self._values) + b"." * self._random.randrange(80)

    async def produce(self, log: ister.Log, session: str, topic: str) -> None:
        """Single records through a producer, several on their way at once; a new producer now and then."""
        generation = 0
        while not self._over.is_set():
            generation += 1
            name = f"{session}.{generation}"
            async with log.producer(topic, linger_ms=1, batch_records=20) as producer:
                for _ in range(self._random.randrange(20, 400)):
                    if self._over.is_set():
                        break
                    count = self._random.randrange(1, 60)
                    sends = [self._history.sending(name, topic, [self._value(name)]) for _ in range(count)]
                    receipts = [await producer.submit(send.values[0]) for send in sends]
                    for send, receipt in zip(sends, receipts, strict=True):
                        await self._told(send, receipt)
                    await asyncio.sleep(self._random.choice(PAUSES))

    async def append(self, log: ister.Log, session: str, topic: str) -> None:
        """Whole batches, some of them side by side, all under the log's own identity."""
        while not self._over.is_set():
            batches = [
                [self._value(session) for _ in range(self._random.randrange(1, 30))]
                for _ in range(self._random.choice((1, 1, 4)))
            ]
            sends = [self._history.sending(session, topic, values) for values in batches]
            await asyncio.gather(*(self._told_all(send, log.append(topic, send.values)) for send in sends))
            await asyncio.sleep(self._random.choice(PAUSES))

    async def _told(self, send: Send, offset: Awaitable[int]) -> None:
        try:
            send.acknowledged([await offset])
        except IsterError as error:
            send.unknown(error)

    async def _told_all(self, send: Send, appended: Awaitable[ister.Appended]) -> None:
        try:
            send.acknowledged(list((await appended).offsets))
        except IsterError as error:
            send.unknown(error)

    async def tail(self, log: ister.Log, session: str, topic: str) -> None:
        """Read from the start and follow, until cancelled. No fault that passes may end it."""
        read = self._history.reading(session, topic, 0)
        try:
            async with aclosing(log.read(topic, follow=True).frames()) as frames:
                async for frame in frames:
                    read.frames.append(seen(frame))
        except IsterError as error:
            raise Violation(
                "reader_goes_on", f"{session} was at offset {read.end_offset} of {topic}: {error}"
            ) from error


async def read_all(log: ister.Log, session: str, topic: str) -> Read:
    """The whole line, as it is now."""
    read = Read(session, topic, 0)
    async with aclosing(log.read(topic).frames()) as frames:
        async for frame in frames:
            read.frames.append(seen(frame))
    return read
