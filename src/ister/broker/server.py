"""The server: connections, the limits they share, and the answer to every request but an append."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from ister import __version__
from ister.broker.answers import AnswerBudget, Share
from ister.broker.broker import Broker
from ister.broker.connection import UNCOUNTED_HEADER_BYTES, Connection
from ister.broker.receiving import Receiver
from ister.broker.topic_log import TopicLog
from ister.errors import BadRequest, Overloaded, UnknownTopic
from ister.frame import FrameHeader
from ister.io.network import Listener, Network
from ister.metrics import Counter, Gauge, Histogram
from ister.names import normalise_topic
from ister.protocol import messages
from ister.protocol.codec import MAX_HEADER_BYTES, encode_header
from ister.protocol.codec import decode_header as decode_message
from ister.protocol.messages import EARLIEST, LATEST, Kind

log = logging.getLogger("ister.broker.server")

SCRATCH_BYTES = 256 * 1024
MAX_FETCH_BYTES = 8 * 1024 * 1024
MAX_WAIT_MS = 60_000
DESCRIPTION_BYTES = 256 * 1024
"""The share of memory that an answer with descriptions of topics takes while it is made."""
_TOPICS_CACHED = 100_000

Handler = Callable[[Connection, int, bytes], Awaitable[None]]


class Server:
    def __init__(self, broker: Broker, network: Network, read_rss: Callable[[], int]) -> None:
        self.broker = broker
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.bytes_in = Counter("bytes_in_total", "Bytes received from clients.")
        self.bytes_out = Counter("bytes_out_total", "Bytes sent to clients.")
        self.records_in = Counter("records_in_total", "Records appended and acknowledged.")
        self.records_out = Counter("records_out_total", "Records sent to readers.")
        self.fetch_seconds = Histogram("fetch_duration_seconds", "Time to answer a fetch that has data.")
        self.listener: Listener | None = None
        self._network = network
        self._read_rss = read_rss
        self._connections: dict[Connection, None] = {}
        self.in_flight_bytes = 0
        """Request bytes of all connections that are not answered yet."""
        self.total_limit = broker.config.max_in_flight_bytes
        self.connection_limit = broker.config.max_connection_in_flight_bytes
        self.message_limit = broker.config.max_message_bytes
        self.small_request_bytes = self.total_limit // (2 * broker.config.max_connections)
        """Requests up to this size take half of the bound if every connection is in the middle of one."""
        self.answers = AnswerBudget(broker.config.max_answer_bytes)
        self.paused: dict[Receiver, None] = {}
        """Connections that are not read from, for back-pressure."""
        self.waiting: dict[Receiver, None] = {}
        """Those of them that wait for the bound of all, in the order in which they came to it."""
        self.logs: dict[bytes, TopicLog] = {}
        """Topics by the header of an append to them: the same bytes come millions of times."""
        broker.on_topics_changed = self.logs.clear
        self._dirty: list[Connection] = []
        self._flush_scheduled = False
        self._started = broker.clock.monotonic()
        self._sweeper: asyncio.Task[None] | None = None
        self._handlers: dict[int, Handler] = {
            Kind.FETCH: self._fetch,
            Kind.LIST_OFFSETS: self._list_offsets,
            Kind.CREATE_TOPIC: self._create_topic,
            Kind.DELETE_TOPIC: self._delete_topic,
            Kind.LIST_TOPICS: self._list_topics,
            Kind.DESCRIBE_TOPIC: self._describe_topic,
            Kind.ALTER_TOPIC: self._alter_topic,
            Kind.CLUSTER: self._cluster,
            Kind.STATS: self._stats,
        }
        broker.metrics.add(
            self.bytes_in,
            self.bytes_out,
            self.records_in,
            self.records_out,
            self.fetch_seconds,
            Gauge("connections", "Open client connections.", lambda: len(self._connections)),
            Gauge("in_flight_bytes", "Request bytes not answered yet.", lambda: self.in_flight_bytes),
            Gauge("answer_bytes", "Bytes of answers being made or not taken yet.", lambda: self.answers.used),
            Gauge(
                "paused_connections",
                "Connections not read from, for back-pressure.",
                lambda: len(self.paused),
            ),
        )

    async def start(self) -> None:
        config = self.broker.config
        self.listener = await self._network.listen(
            lambda: Connection(self), config.client_host, config.client_port
        )
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    @property
    def advertised(self) -> tuple[str, int]:
        assert self.listener is not None
        config = self.broker.config
        host = config.client_advertise_host or config.client_host
        return host, config.client_advertise_port or self.listener.address[1]

    async def stop(self, timeout: float) -> None:
        """Take no more connections, answer what was asked within the time, close the rest."""
        if self.listener is not None:
            self.listener.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.broker.drain()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while loop.time() < deadline:
            if all(connection.has_no_appends for connection in self._connections):
                break
            await asyncio.sleep(0.005)
        for connection in list(self._connections):
            connection.close()

    # Connections and what they share.

    def opened(self, connection: Connection) -> None:
        self._connections[connection] = None
        limit = self.broker.config.max_connections
        if len(self._connections) > limit:
            connection.refuse(Overloaded(f"there are {limit} connections already (max_connections)"))

    def closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self.paused.pop(connection, None)

    def has_room(self, size: int) -> bool:
        """May a request of this size be received, next to all that is not answered yet? Alone, any may."""
        total = self.in_flight_bytes
        return total + size <= self.total_limit or total == 0

    def let_in(self) -> None:
        """There may be room again, for the first of those that wait; the order keeps large requests alive."""
        while self.waiting:
            first = next(iter(self.waiting))
            if not self.has_room(first.announced):
                return
            del self.waiting[first]
            first.let_in()

    def will_flush(self, connection: Connection) -> None:
        """This connection has answers gathered: they go out when the commit cycle or this turn ends."""
        self._dirty.append(connection)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        self._flush_scheduled = False
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()

    async def _sweep(self) -> None:
        timeout = self.broker.config.request_timeout_ms / 1000
        while True:
            await asyncio.sleep(min(1.0, timeout / 2))
            now = self.broker.clock.monotonic()
            for connection in list(self._connections):
                connection.expire(now, timeout)

    def append(
        self,
        header: bytes,
        frame: bytearray | memoryview,
        found: FrameHeader,
        connection: Connection,
        token: int,
    ) -> None:
        """An append whose header was not seen before; raises or tells the connection."""
        name = normalise_topic(decode_message(messages.Append, header).topic)
        self.broker.append(name, frame, found, connection, token, connection.last_received)
        topic = self.broker.takes_appends(name)
        if topic is not None and len(header) <= UNCOUNTED_HEADER_BYTES:
            if len(self.logs) >= _TOPICS_CACHED:
                self.logs.clear()
            self.logs[header] = topic

    # Requests.

    async def answer(self, connection: Connection, kind: int, correlation: int, header: bytes) -> None:
        handler = self._handlers.get(kind)
        if handler is None:
            raise BadRequest(f"there is no request of kind {kind}")
        await handler(connection, correlation, header)

    def _respond(self, connection: Connection, correlation: int, answer: msgspec.Struct) -> None:
        header = encode_header(answer)
        if len(header) <= MAX_HEADER_BYTES:
            connection.respond(correlation, header, [])
        else:
            connection.respond(correlation, b"", [header])

    def hello(self, connection: Connection, correlation: int, header: bytes) -> None:
        hello = decode_message(messages.Hello, header)
        identity = self.broker.identity
        assert identity is not None
        if hello.cluster_id and hello.cluster_id != identity.cluster_id:
            raise BadRequest(
                f"the client expects cluster {hello.cluster_id}, this is {identity.cluster_id}",
                hint="Check the bootstrap address: it leads to another cluster.",
            )
        connection.greeted = True
        config = self.broker.config
        answer = messages.HelloAnswer(
            version=connection.version,
            broker=f"ister {__version__}",
            cluster_id=identity.cluster_id,
            node_id=identity.node_id,
            max_message_bytes=config.max_message_bytes,
            max_in_flight_bytes=config.max_connection_in_flight_bytes,
        )
        self._respond(connection, correlation, answer)

    async def _fetch(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(messages.Fetch, header)
        topic = self.broker.find(request.topic)
        max_bytes = max(1, min(request.max_bytes, MAX_FETCH_BYTES))
        if request.wait_ms > 0 and await topic.is_at_end(request.offset):
            await self._wait_for_records(topic, request.offset, min(request.wait_ms, MAX_WAIT_MS) / 1000)
            if topic.is_deleted:
                raise UnknownTopic(f"topic {topic.state.name} was deleted")
        async with connection.read_slots:
            least: int | None = 0
            while least is not None:
                least = await self._read(connection, correlation, topic, request.offset, max_bytes, least)

    async def _read(
        self,
        connection: Connection,
        correlation: int,
        topic: TopicLog,
        offset: int,
        max_bytes: int,
        least: int,
    ) -> int | None:
        """Answer with what is there; or say how much memory that takes, if it is more than there is now."""
        with await self._room_for(connection, max_bytes, least) as share:
            started = self.broker.clock.monotonic()
            found = await topic.read(offset, min(share.size, max_bytes))
            # A frame is never split: one may be larger than what was asked for.
            size = sum(map(len, found.buffers))
            if size > share.size and not share.grow(size):
                return size
            answer = messages.FetchAnswer(topic.state.start_offset, topic.end_offset)
            connection.respond(correlation, encode_header(answer), list(found.buffers))
            if found.records:
                self.records_out.add(found.records)
                self.fetch_seconds.observe(self.broker.clock.monotonic() - started)
            return None

    async def _room_for(self, connection: Connection, wanted: int, least: int = 0) -> Share:
        """Memory for an answer, for a client that has taken its earlier ones."""
        await connection.drained()
        share = await self.answers.take(wanted, least)
        while not connection.writable.is_set():  # it stopped reading while it waited: others go first
            share.give_back()
            await connection.drained()
            share = await self.answers.take(wanted, least)
        return share

    async def _wait_for_records(self, topic: TopicLog, offset: int, seconds: float) -> None:
        woken = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                while topic.end_offset <= offset and not topic.is_deleted:
                    topic.wait_for_commit(woken.set)
                    await woken.wait()
                    woken.clear()
        except TimeoutError:
            pass
        finally:
            topic.stop_waiting(woken.set)

    async def _list_offsets(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(messages.ListOffsets, header)
        topic = self.broker.find(request.topic)
        found: list[int] = []
        for at in request.at:
            if at == EARLIEST:
                found.append(topic.state.start_offset)
            elif at == LATEST:
                found.append(await topic.known_end())
            elif at < 0:
                raise BadRequest(f"{at} is no time", hint="Give microseconds since 1970, -1 or -2.")
            else:
                found.append(await topic.offset_at(at))
        self._respond(connection, correlation, messages.ListOffsetsAnswer(found))

    async def _create_topic(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(messages.CreateTopic, header)
        topic = await self.broker.create_topic(request.topic, request.settings, if_absent=request.if_absent)
        await self._respond_with_description(connection, correlation, topic)

    async def _delete_topic(self, connection: Connection, correlation: int, header: bytes) -> None:
        await self.broker.delete_topic(decode_message(messages.DeleteTopic, header).topic)
        self._respond(connection, correlation, messages.Empty())

    async def _alter_topic(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(messages.AlterTopic, header)
        await self.broker.alter_topic(request.topic, request.settings)
        await self._respond_with_description(connection, correlation, self.broker.find(request.topic))

    async def _list_topics(self, connection: Connection, correlation: int, header: bytes) -> None:
        prefix = decode_message(messages.ListTopics, header).prefix
        async with connection.description_slots:
            with await self._room_for(connection, DESCRIPTION_BYTES):
                found = [
                    await self.broker.describe(topic, with_segments=False)
                    for name, topic in sorted(self.broker.topics.items())
                    if name.startswith(prefix)
                ]
                self._respond(connection, correlation, messages.TopicList(found))

    async def _describe_topic(self, connection: Connection, correlation: int, header: bytes) -> None:
        topic = self.broker.find(decode_message(messages.DescribeTopic, header).topic)
        await self._respond_with_description(connection, correlation, topic)

    async def _respond_with_description(
        self, connection: Connection, correlation: int, topic: TopicLog
    ) -> None:
        """A chain of many segments makes a large answer: it is bounded as a fetch is."""
        async with connection.description_slots:
            with await self._room_for(connection, DESCRIPTION_BYTES):
                self._respond(connection, correlation, await self.broker.describe(topic))

    async def _cluster(self, connection: Connection, correlation: int, header: bytes) -> None:
        identity = self.broker.identity
        assert identity is not None
        host, port = self.advertised
        node = messages.ClusterNode(identity.node_id, host, port)
        self._respond(connection, correlation, messages.ClusterAnswer(identity.cluster_id, [node]))

    async def _stats(self, connection: Connection, correlation: int, header: bytes) -> None:
        uptime = int((self.broker.clock.monotonic() - self._started) * 1000)
        answer = messages.StatsAnswer(self._read_rss(), uptime, self.broker.metrics.values())
        self._respond(connection, correlation, answer)
