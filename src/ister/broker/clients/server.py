"""The server: connections and the limits they share. What is answered to a request is in `requests`."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter as Counts
from collections.abc import Callable

from ister import __version__
from ister.broker.clients.answers import AnswerBudget
from ister.broker.clients.connection import UNCOUNTED_HEADER_BYTES, Connection
from ister.broker.clients.receiving import Receiver
from ister.broker.clients.requests import Requests
from ister.broker.node.broker import Broker
from ister.broker.text.connection import BrokerTextNode, TextConnection
from ister.broker.text.get_service import GetService
from ister.broker.text.put_service import PutService
from ister.broker.text.service import TextService
from ister.broker.topic.topic_log import TopicLog
from ister.errors import BadRequest, IsterError, NotLeader, Overloaded, RequestTimeout
from ister.frame import FrameHeader
from ister.io.clock import monotonic
from ister.io.network import Listener, Network
from ister.logs import Repeats, fields
from ister.metrics import Counter, Gauge
from ister.names import normalise_topic
from ister.protocol import messages
from ister.protocol.codec import decode_header as decode_message
from ister.wal.sink import OnlyIf, Sink

log = logging.getLogger("ister.broker.clients.server")

SCRATCH_BYTES = 256 * 1024
_TOPICS_CACHED = 100_000
ALONE_SECONDS = 1.0
"""How long a stopping broker works off what it has accepted if most nodes do not answer: its disk is done by
then, and nobody else will be."""


class Server:
    def __init__(self, broker: Broker, network: Network, read_rss: Callable[[], int]) -> None:
        self.broker = broker
        self.scratch = bytearray(SCRATCH_BYTES)
        self.scratch_view = memoryview(self.scratch)
        self.bytes_in = Counter("bytes_in_total", "Bytes received from clients.")
        self.bytes_out = Counter("bytes_out_total", "Bytes sent to clients.")
        self.records_in = Counter("records_in_total", "Records appended and acknowledged.")
        self.listener: Listener | None = None
        self._network = network
        self._connections: dict[Connection, None] = {}
        self._texts: dict[TextConnection, None] = {}
        self._refusals = Repeats(monotonic)
        self.text: TextService | None = None
        """What carries out the commands of the text protocol; from `start` on."""
        self._gets: GetService | None = None
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
        self._waiting_appends: set[asyncio.Task[None]] = set()
        self._waiting_for: Counts[str] = Counts()
        """How many of them there are of a topic."""
        self._dirty: list[Connection] = []
        self._flush_scheduled = False
        self._sweeper: asyncio.Task[None] | None = None
        self.requests = Requests(self, read_rss)
        broker.metrics.add(
            self.bytes_in,
            self.bytes_out,
            self.records_in,
            *self.requests.metrics,
            Gauge(
                "connections",
                "Open client connections.",
                lambda: len(self._connections) + len(self._texts),
            ),
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
        node = BrokerTextNode(self)
        self._gets = GetService(node)
        self._gets.start()
        puts = PutService(
            node, held_seconds=config.max_held_ms / 1000, answer_seconds=config.quorum_timeout_ms / 1000
        )
        self.text = TextService(node, self._gets, puts)
        self.broker.metadata.serve_other = self.text.serve_peer
        self.requests.subscriptions.start()
        await self.broker.announce(*self.advertised)

    @property
    def advertised(self) -> tuple[str, int]:
        assert self.listener is not None
        config = self.broker.config
        host = config.client_advertise_host or config.client_host
        return host, config.client_advertise_port or self.listener.address[1]

    async def stop(self, timeout: float) -> None:
        """Take no more connections, answer what was asked within the time, close the rest.

        What waits for other nodes that are gone, most of all for a quorum of replicas, is not waited for.
        """
        if self.listener is not None:
            self.listener.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.broker.drain()
        began = monotonic()
        deadline = began + timeout
        while monotonic() < deadline:
            if all(connection.has_no_appends for connection in self._connections) and all(
                connection.session.is_idle for connection in self._texts
            ):
                break
            if not self.broker.has_majority:
                deadline = min(deadline, began + ALONE_SECONDS)
            await asyncio.sleep(0.005)
        for task in self._waiting_appends:
            task.cancel()
        for connection in list(self._connections):
            connection.close()
        for text in list(self._texts):
            text.close()
        await self.requests.subscriptions.stop()
        if self._gets is not None:
            await self._gets.stop()

    # Connections and what they share.

    def opened(self, connection: Connection) -> None:
        self._connections[connection] = None
        limit = self.broker.config.max_connections
        if len(self._connections) + len(self._texts) > limit:
            connection.refuse(Overloaded(f"there are {limit} connections already (max_connections)"))

    def tell_of_refusal(self, peer: str, error: IsterError) -> None:
        """What the same host is told again and again is logged once, and then how often."""
        count = self._refusals.count((peer.rpartition(":")[0], error.message))
        if count:
            again = {"times": count} if count > 1 else {}
            log.warning("connection refused: %s", error.message, extra=fields(peer=peer, **again))

    def closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self.requests.subscriptions.connection_lost(connection)
        self.paused.pop(connection, None)

    def speaks_text(
        self, connection: Connection, transport: asyncio.Transport, first: bytes
    ) -> TextConnection:
        """The first bytes of a connection are a text frame's: another protocol takes it over."""
        self.closed(connection)
        text = TextConnection(self, transport)
        self._texts[text] = None
        transport.set_protocol(text)
        text.feed(first)
        return text

    def text_closed(self, text: TextConnection) -> None:
        self._texts.pop(text, None)

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
            now = monotonic()
            for connection in list(self._connections):
                connection.expire(now, timeout)
            for text in list(self._texts):
                text.expire(now, timeout)

    def append(
        self,
        header: bytes,
        frame: bytearray | memoryview,
        found: FrameHeader,
        connection: Connection,
        token: int,
    ) -> None:
        """An append whose header was not seen before; raises or tells the connection."""
        request = decode_message(messages.Append, header)
        name = normalise_topic(request.topic)
        offset = None if request.expected_offset == messages.ANY_OFFSET else request.expected_offset
        uid = request.topic_uid
        is_conditional = offset is not None or request.told_index > 0 or uid > 0
        sink = OnlyIf(connection, offset, request.told_index, uid) if is_conditional else connection
        started = connection.last_received
        is_behind = request.min_index > self.broker.metadata.state.applied_index
        if is_behind or self._waiting_for[name] or (uid and not self.broker.has_topic(name, uid)):
            self._append_when_applied(request.min_index, uid, name, frame, found, sink, token, started)
            return
        self.broker.append(name, frame, found, sink, token, started)
        topic = self.broker.takes_appends(name)
        if topic is not None and not is_conditional and len(header) <= UNCOUNTED_HEADER_BYTES:
            if len(self.logs) >= _TOPICS_CACHED:
                self.logs.clear()
            self.logs[header] = topic

    def _append_when_applied(
        self,
        index: int,
        uid: int,
        name: str,
        frame: bytearray | memoryview,
        found: FrameHeader,
        sink: Sink,
        token: int,
        started: float,
    ) -> None:
        """Another node knows of a handoff to this one, and this one does not yet (H3); or the topic that is
        meant is not known here. Those for one topic go on in the order in which they came: who comes while
        another waits goes behind it."""
        broker = self.broker

        async def work() -> None:
            try:
                await broker.metadata.wait_applied(index, broker.config.max_held_ms / 1000)
                if uid:
                    await broker.find_same(name, uid)
                broker.append(name, frame, found, sink, token, started)
            except RequestTimeout as error:
                sink.refused(token, NotLeader(f"nothing was appended: {error.message}"))
            except IsterError as error:
                sink.refused(token, error)
            finally:
                self._waiting_for[name] -= 1
                if not self._waiting_for[name]:
                    del self._waiting_for[name]

        self._waiting_for[name] += 1
        task = asyncio.get_running_loop().create_task(work())
        self._waiting_appends.add(task)
        task.add_done_callback(self._waiting_appends.discard)

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
            index=self.broker.metadata.state.applied_index,
        )
        self.requests.respond(connection, correlation, answer)
