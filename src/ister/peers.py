"""The connections between brokers: one listener, and one outgoing link to each of the others.

A node sends on the link it dialled and is answered there; what arrives on a connection that somebody else
dialled is served. A link that breaks is dialled again after a pause that grows to a second. Raft messages
that find no open link, or a congested one, are dropped: Raft sends again what matters. Requests fail at once
with a retriable error instead; nothing waits here without a bound.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from ister.callers import GREETING_BYTES, MAX_MESSAGE_BYTES, Callers, Serve
from ister.errors import ConnectionFailed, DataDirectoryError, IsterError, RequestTimeout
from ister.io.network import Listener, Network
from ister.protocol.codec import Bytes, decode_failure, decode_header, encode_header
from ister.protocol.peer import NodeAddress, PeerHello, PeerHelloAnswer, PeerKind, encode_peer_preamble
from ister.protocol.stream import MessageStream

log = logging.getLogger("ister.peers")

LONGEST_PAUSE_SECONDS = 1.0
CONNECT_SECONDS = 2.0
PING_SECONDS = 0.5
SILENT_PINGS = 4
SILENT_SECONDS = 1.5
"""A node that did not answer a ping for so long is not counted on for anything new."""
MAX_STRANGERS = 32
"""So many that called, and that the metadata does not know, are dialled back."""
_RAFT = int(PeerKind.RAFT)


class PeerAnswer(NamedTuple):
    header: bytes


class Peers:
    """All that a node has to do with other nodes' sockets."""

    def __init__(
        self,
        network: Network,
        hello: Callable[[], PeerHello],
        *,
        on_raft: Callable[[int, bytes], None],
        serve: Serve,
        accepts: Callable[[PeerHello], IsterError | None],
        on_refused: Callable[[DataDirectoryError], None] = lambda error: None,
        now_us: Callable[[], int] = lambda: 0,
    ) -> None:
        """`on_refused` is told when another node takes this one's directory for a copy; `now_us` is the clock
        that others are told of (A6)."""
        self.hello = hello
        self.on_refused = on_refused
        self.listener: Listener | None = None
        self._network = network
        self._links: dict[int, _Link] = {}
        self._strangers: dict[int, None] = {}
        """Those of them that only called: the metadata has not said yet that they are members."""
        self._callers = Callers(
            hello,
            on_raft=on_raft,
            serve=serve,
            accepts=accepts,
            on_hello=self.heard_from,
            now_us=now_us,
        )

    async def listen(self, host: str, port: int) -> None:
        self.listener = await self._network.listen(self._callers.answer_call, host, port)

    async def stop(self) -> None:
        if self.listener is not None:
            self.listener.close()
        links, self._links = self._links, {}
        for link in links.values():
            link.stop()
        self._callers.close()
        await asyncio.gather(*(link.task for link in links.values()), return_exceptions=True)

    def know(self, nodes: list[NodeAddress], myself: int) -> None:
        """These are the members now: link to the new ones, let go of the others."""
        wanted = {node.member: node for node in nodes if node.member != myself}
        for member in [member for member in self._links if member not in wanted]:
            self._links.pop(member).stop()
        self._strangers.clear()
        for member, node in wanted.items():
            link = self._links.get(member)
            if link is None or link.address != _address(node):
                self._links[member] = _Link(self, self._network, node)
                if link is not None:
                    self._links[member].said = link.said
                    link.stop()

    def heard_from(self, hello: PeerHello) -> None:
        """It is up, and says where it is: no need to wait before dialling it there."""
        member = hello.node.member
        link = self._links.get(member)
        if link is not None:
            link.heard_from(hello.node)
        elif hello.cluster_id and self.hello().cluster_id and member != self.hello().node.member:
            self._links[member] = _Link(self, self._network, hello.node)
            self._strangers[member] = None
            if len(self._strangers) > MAX_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                self._links.pop(oldest).stop()

    def drop_callers(self, node_id: int, starts: int) -> None:
        """Let go of whoever calls as an earlier start of this node: who still is there has to say hello
        again, and hears that it is not the one any more (I2)."""
        self._callers.drop(
            lambda hello: hello.node.node_id == node_id and hello.starts < starts and bool(hello.cluster_id)
        )

    def clock_of(self, member: int) -> int | None:
        """About what another node's clock says now, whatever this one's does; None if it is not heard."""
        link = self._links.get(member)
        if link is None or not link.is_alive or link.clock is None:
            return None
        now_us, heard_at = link.clock
        return now_us + int((asyncio.get_running_loop().time() - heard_at) * 1_000_000)

    def callers(self) -> list[NodeAddress]:
        """The nodes that have called here and say that they are in the cluster."""
        return self._callers.nodes()

    def is_alive(self, member: int) -> bool:
        """Whether it answered within the last moments; this node itself always does."""
        link = self._links.get(member)
        return link.is_alive if link is not None else member == self.hello().node.member

    def where_alive(self, member: int) -> tuple[str, int] | None:
        """Where another node was reached that answered within the last moments; None if it did not."""
        link = self._links.get(member)
        return _address(link.dialled) if link is not None and link.is_alive else None

    def send_raft(self, member: int, data: bytes) -> None:
        link = self._links.get(member)
        if link is not None:
            link.send_raft(data)

    async def request(
        self, member: int, kind: int, header: bytes, payload: Bytes = b"", *, timeout: float
    ) -> PeerAnswer:
        link = self._links.get(member)
        if link is None:
            raise ConnectionFailed(f"no member {member} is known here")
        return await link.request(kind, header, payload, timeout)

    async def ask(
        self, host: str, port: int, kind: int, header: bytes, *, timeout: float
    ) -> tuple[PeerHelloAnswer, PeerAnswer]:
        """One request to an address that is no member yet, on a connection of its own."""
        try:
            async with asyncio.timeout(timeout):
                made = await self._network.connect(lambda: _Outbound(self.hello()), host, port)
                assert isinstance(made, _Outbound)
                try:
                    greeted = await made.greeted
                    return greeted, await made.request(kind, header, b"")
                finally:
                    made.close()
        except TimeoutError as error:
            raise RequestTimeout(f"{host}:{port} did not answer within {timeout:.0f} s") from error


class _Outbound(MessageStream):
    """A connection that this node dialled."""

    def __init__(self, hello: PeerHello) -> None:
        super().__init__(GREETING_BYTES)
        self._hello = hello
        self._correlation = 1
        self._waiting: dict[int, asyncio.Future[PeerAnswer]] = {}
        self.greeted: asyncio.Future[PeerHelloAnswer] = asyncio.get_running_loop().create_future()
        self.gone = asyncio.Event()

    def opened(self) -> None:
        self.send_raw(encode_peer_preamble())
        self.send(1, PeerKind.HELLO, encode_header(self._hello))

    def message(self, correlation: int, kind: int, header: bytes, payload: bytes) -> None:
        error = decode_failure(kind, header) if kind else None
        if correlation <= 1:
            if not self.greeted.done():
                if error is not None:
                    self.greeted.set_exception(error)
                else:
                    self.greeted.set_result(decode_header(PeerHelloAnswer, header))
                    self.max_bytes = MAX_MESSAGE_BYTES
            return
        future = self._waiting.pop(correlation, None)
        if future is not None and not future.done():
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(PeerAnswer(header or payload))  # a long answer comes behind an empty header

    async def request(self, kind: int, header: bytes, payload: Bytes) -> PeerAnswer:
        if self.is_closed:
            raise ConnectionFailed(f"the link to {self.peer} is down")
        self._correlation += 1
        future: asyncio.Future[PeerAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[self._correlation] = future
        self.send(self._correlation, kind, header, payload)
        return await future

    def refused(self, error: IsterError) -> None:
        log.warning("peer %s sent what is no message: %s", self.peer, error)
        if not self.greeted.done():
            self.greeted.set_exception(
                ConnectionFailed(f"what answers at {self.peer} is no broker's peer port: {error.message}")
            )

    def lost(self) -> None:
        self.gone.set()
        error = ConnectionFailed(f"the link to {self.peer} broke")
        waiting: list[asyncio.Future[Any]] = [self.greeted, *self._waiting.values()]
        self._waiting.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(error)
        if not self.greeted.cancelled():
            self.greeted.exception()  # looked at: nobody may be left to do so


class _Link:
    """The way to one member, dialled again whenever it breaks.

    Where it is, the metadata says; but a node that has moved can tell the metadata of it only once it is
    reached. So where it said itself that it is, when it called, is tried in turn with that.
    """

    def __init__(self, peers: Peers, network: Network, node: NodeAddress) -> None:
        self.node = self.dialled = node
        self.address = _address(node)
        self.is_alive = False
        self._peers = peers
        self._network = network
        self._connection: _Outbound | None = None
        self.said: NodeAddress | None = None
        self.clock: tuple[int, float] | None = None
        """What its clock said, and when that was heard."""
        self._nudge = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._keep())

    def heard_from(self, node: NodeAddress) -> None:
        self.said = node if _address(node) != self.address else None
        self._nudge.set()
        if self._connection is not None and not self.is_alive:
            self._connection.close()

    def send_raft(self, data: bytes) -> None:
        connection = self._connection
        if connection is not None and not connection.is_congested:
            connection.send(0, _RAFT, b"", data)

    async def request(self, kind: int, header: bytes, payload: Bytes, timeout: float) -> PeerAnswer:
        connection = self._connection
        if connection is None:
            raise ConnectionFailed(f"node {self.node.node_id} cannot be reached")
        try:
            async with asyncio.timeout(timeout):
                return await connection.request(kind, header, payload)
        except TimeoutError as error:
            raise RequestTimeout(f"node {self.node.node_id} did not answer within {timeout:.1f} s") from error

    async def _keep(self) -> None:
        pause = 0.05
        while True:
            try:
                connection = await self._dial(self.dialled)
                pause = 0.05
                self._connection, self.is_alive = connection, True
                await self._watch(connection)
            except DataDirectoryError as error:
                self._peers.on_refused(error)
            except IsterError as error:
                log.debug("no link to node %d: %s", self.node.node_id, error)
                self.dialled = self.said if self.said and self.dialled is self.node else self.node
            finally:
                self._connection, self.is_alive = None, False
            await self._pause(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _watch(self, connection: _Outbound) -> None:
        """Until the connection is gone: ask now and then, so that a silent node is known as such."""
        unanswered = 0
        while not connection.is_closed:
            try:
                async with asyncio.timeout(SILENT_SECONDS):
                    answer = await connection.request(PeerKind.PING, b"", b"")
                self.is_alive, unanswered = True, 0
                self.clock = int.from_bytes(answer.header, "little"), asyncio.get_running_loop().time()
            except TimeoutError:
                self.is_alive = False
                unanswered += 1
                if self.said is not None or unanswered >= SILENT_PINGS:
                    connection.abort()  # it may never break by itself: dial it, or where it called from
            try:
                async with asyncio.timeout(PING_SECONDS):
                    await connection.gone.wait()
            except TimeoutError:
                continue

    async def _pause(self, seconds: float) -> None:
        self._nudge.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._nudge.wait()
        except TimeoutError:
            return

    async def _dial(self, node: NodeAddress) -> _Outbound:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                made = await self._network.connect(
                    lambda: _Outbound(self._peers.hello()), node.peer_host, node.peer_port
                )
                assert isinstance(made, _Outbound)
                answer = await made.greeted
        except TimeoutError as error:
            raise ConnectionFailed(f"node {node.node_id} did not greet in time") from error
        if answer.node.member != node.member:
            made.close()
            raise ConnectionFailed(
                f"{node.peer_host}:{node.peer_port} is node {answer.node.node_id} with disk "
                f"{answer.node.disk_id}, not node {node.node_id} with disk {node.disk_id}"
            )
        return made

    def stop(self) -> None:
        self.task.cancel()
        if self._connection is not None:
            self._connection.close()


def _address(node: NodeAddress) -> tuple[str, int]:
    return node.peer_host, node.peer_port
