"""A broker to be mistreated, and a client that checks nothing: what the tests of the broker's edge share.

`on_real_disk` runs a scenario against a broker on files and sockets; `simulated` the same on virtual time,
with a disk and a clock that fail to order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from ister.broker.clients.server import Server
from ister.broker.node.broker import Broker
from ister.broker.node.process import start
from ister.broker.topic.topic_log import TopicLog
from ister.config import BrokerConfig
from ister.errors import InvariantBroken, IsterError
from ister.frame import Frame, admit, encode, frames_in
from ister.io.network import Network, TcpNetwork
from ister.protocol import messages
from ister.protocol.codec import (
    PREFIX,
    PREFIX_SIZE,
    SIZE_FIELD,
    AppendAnswer,
    decode_appended,
    decode_failure,
    decode_header,
    encode_header,
    encode_message,
    encode_preamble,
)
from ister.protocol.messages import Kind
from ister.testing import SimClock, SimDisk, SimNetwork, VirtualLoop, simulate

T = TypeVar("T")
M = TypeVar("M")

ENOUGH_SECONDS = 20
"""Nothing here takes this long; a test that waits so long is broken."""


class Answer(NamedTuple):
    correlation: int
    kind: int
    header: bytes
    payload: bytes

    @property
    def error(self) -> IsterError:
        assert self.kind != 0, "the request was not refused"
        return decode_failure(self.kind, self.header)


class RawClient(asyncio.BufferedProtocol):
    """Sends exactly the bytes that it is told to, and keeps every answer."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.closed = asyncio.Event()
        self._buffer = memoryview(bytearray(256 * 1024))
        self._data = bytearray()
        self._answers: asyncio.Queue[Answer | None] = asyncio.Queue()
        self._correlation = 100

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._data += self._buffer[:nbytes]
        while len(self._data) >= PREFIX_SIZE:
            size, correlation, kind, header_size = PREFIX.unpack_from(self._data)
            if len(self._data) < SIZE_FIELD + size:
                break
            body = PREFIX_SIZE + header_size
            header, payload = bytes(self._data[PREFIX_SIZE:body]), bytes(self._data[body : SIZE_FIELD + size])
            del self._data[: SIZE_FIELD + size]
            self._answers.put_nowait(Answer(correlation, kind, header, payload))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self._answers.put_nowait(None)

    def send(self, *data: bytes) -> None:
        self.transport.write(b"".join(data))

    async def answer(self) -> Answer:
        async with asyncio.timeout(ENOUGH_SECONDS):
            answer = await self._answers.get()
        assert answer is not None, "the broker closed the connection"
        return answer

    async def answers(self, count: int) -> dict[int, Answer]:
        """So many answers, by their correlation."""
        found = [await self.answer() for _ in range(count)]
        assert len({answer.correlation for answer in found}) == count, "a request was answered twice"
        return {answer.correlation: answer for answer in found}

    @property
    def answer_count(self) -> int:
        """Answers that came and were not looked at."""
        return self._answers.qsize()

    def unread(self) -> list[Answer]:
        """The answers that nobody has looked at yet, oldest first."""
        found = [self._answers.get_nowait() for _ in range(self._answers.qsize())]
        return [answer for answer in found if answer is not None]

    async def wait_closed(self) -> None:
        async with asyncio.timeout(ENOUGH_SECONDS):
            await self.closed.wait()

    async def greet(self) -> messages.HelloAnswer:
        self.send(encode_preamble())
        return decode_header(
            messages.HelloAnswer, (await self.call(Kind.HELLO, messages.Hello("raw"))).header
        )

    async def ask(self, kind: int, message: msgspec.Struct, payload: bytes = b"") -> Answer:
        """One request, one answer, whatever it says."""
        self._correlation += 1
        self.send(request(self._correlation, kind, message, payload))
        answer = await self.answer()
        assert answer.correlation == self._correlation
        return answer

    async def call(self, kind: int, message: msgspec.Struct, payload: bytes = b"") -> Answer:
        """As `ask`; an error is raised."""
        answer = await self.ask(kind, message, payload)
        if answer.kind:
            raise answer.error
        return answer

    async def append(self, topic: str, frame: bytes) -> AppendAnswer:
        return decode_appended((await self.call(Kind.APPEND, messages.Append(topic), frame)).header)

    async def fetch(self, topic: str, offset: int, max_bytes: int = 1 << 20, wait_ms: int = 0) -> list[Frame]:
        answer = await self.call(Kind.FETCH, messages.Fetch(topic, offset, max_bytes, wait_ms))
        return frames_in(answer.payload)

    async def values(self, topic: str, offset: int = 0) -> list[bytes | None]:
        """All records from `offset` to the end."""
        found: list[bytes | None] = []
        while frames := await self.fetch(topic, offset):
            for frame in frames:
                assert frame.header.base_offset <= offset, "offsets are continuous"
                found += [record.value for record in frame.records() if record.offset >= offset]
                offset = frame.header.end_offset
        return found

    async def offsets_at(self, topic: str, *at: int) -> list[int]:
        answer = await self.call(Kind.LIST_OFFSETS, messages.ListOffsets(topic, list(at)))
        return decode_header(messages.ListOffsetsAnswer, answer.header).offsets

    async def create(self, topic: str, **settings: int | str) -> messages.TopicDescription:
        answer = await self.call(Kind.CREATE_TOPIC, messages.CreateTopic(topic, settings))
        return decode_header(messages.TopicDescription, answer.header)

    async def describe(self, topic: str) -> messages.TopicDescription:
        answer = await self.call(Kind.DESCRIBE_TOPIC, messages.DescribeTopic(topic))
        return decode_header(messages.TopicDescription, answer.header or answer.payload)


def request(correlation: int, kind: int, message: msgspec.Struct, payload: bytes = b"") -> bytes:
    return encode_message(correlation, kind, encode_header(message), len(payload)) + payload


def append_request(correlation: int, topic: str, frame: bytes) -> bytes:
    return request(correlation, Kind.APPEND, messages.Append(topic), frame)


def frame_of(*values: bytes, producer: int = 0, sequence: int = 0) -> bytes:
    return encode(list(values), producer_id=producer, sequence=sequence)


class Answers:
    """The sink of a program that embeds a broker: remembers what it was told, and that it was told once."""

    def __init__(self) -> None:
        self.appended_at: dict[int, int] = {}
        self.refusals: dict[int, IsterError] = {}

    def appended(self, token: int, base_offset: int, append_time_us: int, leader: int = 0) -> None:
        assert token not in self.appended_at and token not in self.refusals, "answered twice"
        self.appended_at[token] = base_offset

    def refused(self, token: int, error: IsterError) -> None:
        assert token not in self.appended_at and token not in self.refusals, "answered twice"
        self.refusals[token] = error

    def append(
        self, topic: TopicLog, token: int, *values: bytes, producer: int = 0, sequence: int = 0
    ) -> None:
        """Append in this one's name, as a server would; a refusal at once is one like any other."""
        frame = bytearray(frame_of(*values, producer=producer, sequence=sequence))
        try:
            topic.append(frame, admit(frame), self, token, 0.0)
        except IsterError as error:
            self.refused(token, error)


class Node:
    """A running broker and the way to it."""

    def __init__(self, broker: Broker, server: Server, network: Network) -> None:
        self.broker = broker
        self.server = server
        self._network = network
        self._stopped = False

    @property
    def address(self) -> tuple[str, int]:
        assert self.server.listener is not None
        return self.server.listener.address

    async def connect_raw(self) -> RawClient:
        """Connected; not a byte was sent."""
        client = await self._network.connect(RawClient, *self.address)
        assert isinstance(client, RawClient)
        return client

    async def connect(self) -> RawClient:
        client = await self.connect_raw()
        await client.greet()
        return client

    async def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        await self.server.stop(1)
        await self.broker.stop()


def real_config(data_dir: Path, **settings: Any) -> BrokerConfig:
    return BrokerConfig(
        **{
            "data_dir": str(data_dir),
            "client_port": 0,
            "admin_port": -1,
            "drain_timeout_ms": 1000,
            **settings,
        }
    )


def on_real_disk(data_dir: Path, scenario: Callable[[Node], Awaitable[T]], **settings: Any) -> T:
    async def main() -> T:
        running = await start(real_config(data_dir, **settings))
        try:
            return await scenario(Node(running.broker, running.server, TcpNetwork()))
        finally:
            await running.stop()

    return asyncio.run(main())


class SimNode(Node):
    """A broker on simulated seams, which can be stopped and started again."""

    loop: VirtualLoop
    disk: SimDisk
    world: SimNetwork
    clock: SimClock
    fatal: list[IsterError]

    @classmethod
    async def launch(cls, loop: VirtualLoop, disk: SimDisk, network: SimNetwork, **settings: Any) -> SimNode:
        clock = SimClock(loop, loop.fork("clock"))
        fatal: list[IsterError] = []

        def on_fatal(error: IsterError) -> None:
            fatal.append(error)
            if isinstance(error, InvariantBroken):
                loop.unhandled.append(error)  # a defect, whatever the test looks at

        config = BrokerConfig(**{"client_host": "broker", "request_timeout_ms": 30_000, **settings})
        host = network.host("broker")
        broker = Broker(config, disk.mount(), clock, host, on_fatal=on_fatal)
        server = Server(broker, host, lambda: 0)
        broker.commits.after_cycle = server.flush
        try:
            await broker.start()
            await server.start()
        except BaseException:
            await server.stop(0)
            await broker.stop()
            raise
        node = cls(broker, server, network.host("client"))
        node.loop, node.disk, node.world, node.clock, node.fatal = loop, disk, network, clock, fatal
        return node

    async def launch_again(self, **settings: Any) -> SimNode:
        """Another process on the same disk; this one must be stopped or dead."""
        return await SimNode.launch(self.loop, self.disk, self.world, **settings)


def simulated(scenario: Callable[[SimNode], Awaitable[T]], *, seed: int = 1, **settings: Any) -> T:
    async def main(loop: VirtualLoop) -> T:
        disk = SimDisk(loop.fork("disk"), trace=loop.trace)
        network = SimNetwork(loop.fork("network"), trace=loop.trace)
        node = await SimNode.launch(loop, disk, network, **settings)
        try:
            return await scenario(node)
        finally:
            disk.faults.clear()
            await node.stop()

    return simulate(main, seed=seed, limit_seconds=3600)


async def refusal(work: Awaitable[object], kind: type[IsterError]) -> IsterError:
    """The error that this must end in; it says what to do."""
    try:
        await work
    except kind as error:
        assert type(error) is kind, f"{error!r} is more special than expected"
        assert error.message and error.hint
        return error
    raise AssertionError(f"nothing was refused; {kind.__name__} was expected")
