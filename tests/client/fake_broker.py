"""A broker in memory, for the client's tests: the protocol over the network seam, and ways to misbehave.

`on_append` and `on_request` decide for each request what goes wrong; `None` is good behaviour. Sequences are
checked as A5 says, by code of its own, so that the client is held against the rule and not against a
shared implementation of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

import msgspec

from ister.errors import (
    BadRequest,
    DuplicateSequence,
    IsterError,
    MessageTooLarge,
    OffsetOutOfRange,
    OutOfSequence,
    TopicExists,
    UnknownProducer,
    UnknownTopic,
)
from ister.frame import Frame, FrameHeader, decode, stamp
from ister.io.network import Listener, Network
from ister.protocol import codec
from ister.protocol import messages as m


class Fault(Enum):
    DROP_BEFORE = auto()  # the connection breaks, and the request had no effect
    DROP_AFTER = auto()  # the request has taken effect, and its answer is lost with the connection
    SILENCE = auto()  # the request had no effect, and no answer ever comes
    LOST_ANSWER = auto()  # the request has taken effect, and no answer ever comes


PATIENCE_S = 30.0
"""How long a test waits for what must happen: far longer than it takes, even where others use the machine."""

AppendFault = Fault | IsterError | None


@dataclass
class FakeTopic:
    uid: int
    frames: list[bytearray] = field(default_factory=list)
    headers: list[FrameHeader] = field(default_factory=list)
    producers: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    start_offset: int = 0

    @property
    def end_offset(self) -> int:
        return self.headers[-1].end_offset if self.headers else 0

    def values(self) -> list[bytes | None]:
        found: list[bytes | None] = []
        for data in self.frames:
            frame = decode(data)
            assert isinstance(frame, Frame)
            found.extend(record.value for record in frame.records())
        return found

    def check(self, header: FrameHeader) -> int | None:
        """The original offset of a repeat, None for the producer's next (A5)."""
        known = self.producers.get(header.producer_id)
        if known is None:
            if header.sequence != 0:
                raise UnknownProducer(f"producer {header.producer_id} is not known")
            return None
        expected = known[-1][0] + known[-1][1]
        if header.sequence > expected:
            raise OutOfSequence(f"sequence {header.sequence}, {expected} is next")
        for sequence, count, offset in known[-8:]:
            if (sequence, count) == (header.sequence, header.count):
                return offset
        if header.sequence < expected:
            raise DuplicateSequence(f"sequence {header.sequence} again, {expected} is next")
        return None


class FakeBroker:
    def __init__(self, network: Network, *, max_frame_bytes: int = 64 * 1024 * 1024) -> None:
        self.network = network
        self.topics: dict[str, FakeTopic] = {}
        self.max_frame_bytes = max_frame_bytes
        self.on_append: Callable[[FrameHeader], AppendFault] = lambda header: None
        self.on_request: Callable[[int], AppendFault] = lambda kind: None
        self.on_frames: Callable[[list[bytearray]], list[bytearray]] = lambda frames: frames
        self.delay_s = 0.0
        self.hurries = False  # answers a long poll at once, with nothing
        self.read_sizes: list[int] = []
        self.requests: list[int] = []
        self.fetches: list[m.Fetch] = []
        self.administered: list[tuple[m.Kind, m.NodeRequest | m.AddNode | m.Control]] = []
        self.connections: list[_Session] = []
        self.most_in_flight = 0
        self.clock_us = 1_000_000
        self.holds_answers = False  # keeps them until they are released
        self._held: list[tuple[_Session, bytes]] = []
        self._asked = asyncio.Event()
        self._grew = asyncio.Event()
        self._listener: Listener | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        self._listener = await self.network.listen(lambda: _Session(self), host, port)
        return "{}:{}".format(*self._listener.address)

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self.break_connections()
        await asyncio.sleep(0)

    async def until_received(self, kind: m.Kind, count: int = 1) -> None:
        """Wait until so many requests of a kind have come, and done what they do at once."""
        async with asyncio.timeout(PATIENCE_S):
            while self.requests.count(kind) < count:
                self._asked.clear()
                await self._asked.wait()

    def release_answers(self) -> None:
        self.holds_answers = False
        held, self._held = self._held, []
        for session, data in held:
            session.write(data)

    def break_connections(self) -> None:
        for session in self.connections:
            session.transport.abort()
        self.connections = []

    def topic(self, name: str, *, create: bool = False) -> FakeTopic:
        if name not in self.topics:
            if not create:
                raise UnknownTopic(f"there is no topic {name}")
            self.topics[name] = FakeTopic(len(self.topics) + 1)
        return self.topics[name]

    def append(self, name: str, data: bytearray) -> tuple[int, int]:
        frame = decode(data)
        assert isinstance(frame, Frame), frame
        topic, header = self.topic(name, create=True), frame.header
        if header.producer_id:
            original = topic.check(header)
            if original is not None:
                return original, self.clock_us
        base = topic.end_offset
        self.clock_us += 1000
        stamp(data, base, 1, self.clock_us)
        topic.frames.append(data)
        topic.headers.append(header._replace(base_offset=base, append_time_us=self.clock_us))
        if header.producer_id:
            row = (header.sequence, header.count, base)
            topic.producers.setdefault(header.producer_id, []).append(row)
        self._grew.set()
        self._grew = asyncio.Event()
        return base, self.clock_us

    async def fetch(self, request: m.Fetch) -> tuple[m.FetchAnswer, bytes]:
        topic = self.topic(request.topic)
        if request.offset == topic.end_offset and request.wait_ms and not self.hurries:
            try:
                await asyncio.wait_for(self._grew.wait(), request.wait_ms / 1000)
            except TimeoutError:
                pass
        if not topic.start_offset <= request.offset <= topic.end_offset:
            raise OffsetOutOfRange(
                f"offset {request.offset} is not in {topic.start_offset}..{topic.end_offset}"
            )
        chosen: list[bytearray] = []
        size = 0
        for header, data in zip(topic.headers, topic.frames, strict=True):
            if header.end_offset <= request.offset:
                continue
            if chosen and size + len(data) > request.max_bytes:
                break
            chosen.append(data)
            size += len(data)
        return m.FetchAnswer(topic.start_offset, topic.end_offset), b"".join(self.on_frames(chosen))

    def offsets(self, request: m.ListOffsets) -> m.ListOffsetsAnswer:
        topic = self.topic(request.topic)
        special = {m.EARLIEST: topic.start_offset, m.LATEST: topic.end_offset}
        found = []
        for at in request.at:
            by_time = (h.base_offset for h in topic.headers if h.append_time_us >= at)
            found.append(special[at] if at in special else next(by_time, topic.end_offset))
        return m.ListOffsetsAnswer(found)

    def describe(self, name: str) -> m.TopicDescription:
        topic = self.topic(name)
        size = sum(map(len, topic.frames))
        return m.TopicDescription(
            name, topic.uid, topic.start_offset, topic.end_offset, size, m.TopicSettings(), [], 0, []
        )

    def administer(self, kind: int, header: bytes) -> msgspec.Struct:
        match kind:
            case m.Kind.CREATE_TOPIC:
                create = codec.decode_header(m.CreateTopic, header)
                if create.topic in self.topics and not create.if_absent:
                    raise TopicExists(f"topic {create.topic} exists")
                self.topic(create.topic, create=True)
                return self.describe(create.topic)
            case m.Kind.DELETE_TOPIC:
                return m.Deleted(
                    was_there=bool(self.topics.pop(codec.decode_header(m.DeleteTopic, header).topic, None))
                )
            case m.Kind.DESCRIBE_TOPIC:
                return self.describe(codec.decode_header(m.DescribeTopic, header).topic)
            case m.Kind.ALTER_TOPIC:
                return self.describe(codec.decode_header(m.AlterTopic, header).topic)
            case m.Kind.LIST_TOPICS:
                prefix = codec.decode_header(m.ListTopics, header).prefix
                return m.TopicList([self.describe(name) for name in self.topics if name.startswith(prefix)])
            case m.Kind.LIST_OFFSETS:
                return self.offsets(codec.decode_header(m.ListOffsets, header))
            case m.Kind.CLUSTER:
                return m.ClusterAnswer("c1", [m.ClusterNode(1, "127.0.0.1", 1)])
            case m.Kind.STATS:
                return m.StatsAnswer(1, 2, {"x": 3.0})
            case m.Kind.TRANSFER_LEADER | m.Kind.REMOVE_NODE | m.Kind.PROMOTE_NODE:
                named = codec.decode_header(m.NodeRequest, header)
                self.administered.append((m.Kind(kind), named))
                return m.NodeAnswer(named.node_id or 2, "done")
            case m.Kind.ADD_NODE:
                self.administered.append((m.Kind.ADD_NODE, codec.decode_header(m.AddNode, header)))
                return m.NodeAnswer(4, "done")
            case m.Kind.CONTROL:
                self.administered.append((m.Kind.CONTROL, codec.decode_header(m.Control, header)))
                return m.Empty()
            case _:
                raise BadRequest(f"unknown request {kind}")


class _Session(asyncio.BufferedProtocol):
    """One client's connection. Requests are served in order, each to its end (long polls aside)."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.transport: asyncio.Transport
        self.data = bytearray()
        self.chunk = bytearray(1 << 20)
        self.greeted = False
        self.in_flight = 0
        self.muted = False
        self.tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.broker.connections.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        for task in self.tasks:
            task.cancel()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.chunk

    def buffer_updated(self, nbytes: int) -> None:
        self.broker.read_sizes.append(nbytes)
        self.data += memoryview(self.chunk)[:nbytes]
        if not self.greeted and len(self.data) >= codec.PREAMBLE_SIZE:
            codec.choose_version(self.data)
            del self.data[: codec.PREAMBLE_SIZE]
            self.greeted = True
        position = 0
        while len(self.data) - position >= codec.PREFIX_SIZE:
            size, correlation, kind, header_size = codec.PREFIX.unpack_from(self.data, position)
            end = position + codec.SIZE_FIELD + size
            if end > len(self.data) or self.transport.is_closing():
                break
            start = position + codec.PREFIX_SIZE
            header, payload = self.data[start : start + header_size], self.data[start + header_size : end]
            position = end
            self.serve(correlation, kind, bytes(header), payload)
        del self.data[:position]
        self.broker._asked.set()

    def serve(self, correlation: int, kind: int, header: bytes, payload: bytearray) -> None:
        self.broker.requests.append(kind)
        fault = self.broker.on_request(kind)
        if kind == m.Kind.APPEND:
            parsed = decode(payload)
            assert isinstance(parsed, Frame), parsed
            fault = fault or self.broker.on_append(parsed.header)
            if parsed.header.size > self.broker.max_frame_bytes:
                fault = MessageTooLarge(f"a frame of {parsed.header.size} bytes")
        if isinstance(fault, IsterError):
            self.answer(codec.encode_failure(correlation, fault), kind)
        elif fault is Fault.DROP_BEFORE:
            self.transport.abort()
        elif fault is not Fault.SILENCE:
            self.muted = fault in (Fault.DROP_AFTER, Fault.LOST_ANSWER)
            self.apply(correlation, kind, header, payload)
            self.muted = False
            if fault is Fault.DROP_AFTER:
                self.transport.abort()

    def apply(self, correlation: int, kind: int, header: bytes, payload: bytearray) -> None:
        try:
            if kind == m.Kind.APPEND:
                topic = codec.decode_header(m.Append, header).topic
                base, append_time_us = self.broker.append(topic, payload)
                self.answer(codec.encode_appended(correlation, base, append_time_us), kind)
            elif kind == m.Kind.FETCH:
                request = codec.decode_header(m.Fetch, header)
                self.broker.fetches.append(request)
                task = asyncio.get_running_loop().create_task(self.fetch(correlation, request))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
            else:
                answer = self.hello() if kind == m.Kind.HELLO else self.broker.administer(kind, header)
                self.answer(codec.encode_message(correlation, 0, codec.encode_header(answer)), kind)
        except IsterError as error:
            self.answer(codec.encode_failure(correlation, error), kind)

    def hello(self) -> m.HelloAnswer:
        return m.HelloAnswer(1, "fake", "c1", 1, 1 << 26, 1 << 26)

    async def fetch(self, correlation: int, request: m.Fetch) -> None:
        try:
            answer, frames = await self.broker.fetch(request)
        except IsterError as error:
            self.answer(codec.encode_failure(correlation, error), m.Kind.FETCH)
            return
        head = codec.encode_message(correlation, 0, codec.encode_header(answer), len(frames))
        self.answer(head + frames, m.Kind.FETCH)

    def answer(self, data: bytes, kind: int) -> None:
        if self.muted:
            return
        is_work = kind not in (m.Kind.HELLO, m.Kind.CLUSTER)
        if self.broker.holds_answers and is_work:
            self.broker._held.append((self, data))
        elif self.broker.delay_s and is_work:
            self.in_flight += 1
            self.broker.most_in_flight = max(self.broker.most_in_flight, self.in_flight)
            asyncio.get_running_loop().call_later(self.broker.delay_s, self.write_late, data)
        else:
            self.write(data)

    def write_late(self, data: bytes) -> None:
        self.in_flight -= 1
        self.write(data)

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)
