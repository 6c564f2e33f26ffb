"""The connections between brokers: one listener, and one outgoing link to each of the others.

A node sends on the link it dialled and is answered there; what arrives on a connection that somebody else
dialled is served. A link that breaks is dialled again after a pause that grows to a second. Raft messages
that find no open link, or a congested one, are dropped: Raft sends again what matters. Requests fail at once
with a retriable error instead; nothing waits here without a bound.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from ister.errors import BadRequest, ConnectionFailed, IsterError, RequestTimeout
from ister.io.network import Listener, Network
from ister.protocol.codec import Bytes, decode_failure, decode_header, encode_failure, encode_header
from ister.protocol.peer import (
    PEER_PREAMBLE_SIZE,
    NodeAddress,
    PeerHello,
    PeerHelloAnswer,
    PeerKind,
    check_peer_preamble,
    encode_peer_preamble,
)
from ister.protocol.stream import MessageStream

log = logging.getLogger("ister.peers")

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
LONGEST_PAUSE_SECONDS = 1.0
CONNECT_SECONDS = 2.0
_RAFT = int(PeerKind.RAFT)


class PeerAnswer(NamedTuple):
    header: bytes
    payload: bytes


Serve = Callable[[NodeAddress, int, bytes, bytes], Awaitable[bytes]]
"""Answers a request: who asks, kind, header, payload -> the answer's header."""


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
    ) -> None:
        self.hello = hello
        self.on_raft = on_raft
        self.serve = serve
        self.accepts = accepts
        self.listener: Listener | None = None
        self._network = network
        self._links: dict[int, _Link] = {}
        self._inbound: dict[_Inbound, None] = {}

    async def listen(self, host: str, port: int) -> None:
        self.listener = await self._network.listen(lambda: _Inbound(self), host, port)

    async def stop(self) -> None:
        if self.listener is not None:
            self.listener.close()
        links, self._links = self._links, {}
        for link in links.values():
            link.stop()
        for connection in list(self._inbound):
            connection.close()
        await asyncio.gather(*(link.task for link in links.values()), return_exceptions=True)

    def know(self, nodes: list[NodeAddress], myself: int) -> None:
        """These are the members now: link to the new ones, let go of the others."""
        wanted = {node.member: node for node in nodes if node.member != myself}
        for member in [member for member in self._links if member not in wanted]:
            self._links.pop(member).stop()
        for member, node in wanted.items():
            link = self._links.get(member)
            if link is not None and link.node != node:
                link.stop()
                link = None
            if link is None:
                self._links[member] = _Link(self, self._network, node)

    def heard_from(self, hello: PeerHello) -> None:
        """It is up: no need to wait before dialling it. One not heard of before says where it is."""
        member = hello.node.member
        link = self._links.get(member)
        if link is not None:
            link.nudge.set()
        elif hello.cluster_id and member != self.hello().node.member:
            self._links[member] = _Link(self, self._network, hello.node)

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
        super().__init__(MAX_MESSAGE_BYTES)
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
            return
        future = self._waiting.pop(correlation, None)
        if future is not None and not future.done():
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(PeerAnswer(header, payload))

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
    """The way to one member, dialled again whenever it breaks."""

    def __init__(self, peers: Peers, network: Network, node: NodeAddress) -> None:
        self.node = node
        self._peers = peers
        self._network = network
        self._connection: _Outbound | None = None
        self.nudge = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._keep())

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
                connection = await self._dial()
                pause = 0.05
                self._connection = connection
                await connection.gone.wait()
            except IsterError as error:
                log.debug("no link to node %d: %s", self.node.node_id, error)
            finally:
                self._connection = None
            await self._pause(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _pause(self, seconds: float) -> None:
        self.nudge.clear()
        try:
            async with asyncio.timeout(seconds):
                await self.nudge.wait()
        except TimeoutError:
            return

    async def _dial(self) -> _Outbound:
        node = self.node
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


class _Inbound(MessageStream):
    """A connection that another node dialled."""

    def __init__(self, peers: Peers) -> None:
        super().__init__(MAX_MESSAGE_BYTES, PEER_PREAMBLE_SIZE)
        self._peers = peers
        self._hello: PeerHello | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def opened(self) -> None:
        self._peers._inbound[self] = None

    def preamble(self, data: bytes) -> None:
        check_peer_preamble(data)

    def message(self, correlation: int, kind: int, header: bytes, payload: bytes) -> None:
        hello = self._hello
        if kind == PeerKind.HELLO:
            self._greet(correlation, decode_header(PeerHello, header))
        elif hello is None:
            raise BadRequest(f"a peer's first request is of kind {kind}, a hello was expected")
        elif kind == _RAFT:
            self._peers.on_raft(hello.node.member, payload)
        else:
            task = asyncio.get_running_loop().create_task(
                self._answer(hello.node, correlation, kind, header, payload)
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _greet(self, correlation: int, hello: PeerHello) -> None:
        error = self._peers.accepts(hello)
        if error is not None:
            log.warning("peer refused: %s", error.message, extra={"fields": {"peer": self.peer}})
            self.send_raw(encode_failure(correlation, error))
            self.close()
            return
        self._hello = hello
        self._peers.heard_from(hello)
        mine = self._peers.hello()
        self.send(correlation, 0, encode_header(PeerHelloAnswer(mine.cluster_id, mine.node)))

    async def _answer(
        self, node: NodeAddress, correlation: int, kind: int, header: bytes, payload: bytes
    ) -> None:
        try:
            self.send(correlation, 0, await self._peers.serve(node, kind, header, payload))
        except IsterError as error:
            self.send_raw(encode_failure(correlation, error))

    def refused(self, error: IsterError) -> None:
        log.warning("not a peer: %s", error.message, extra={"fields": {"peer": self.peer}})
        self.send_raw(encode_failure(0, error))

    def lost(self) -> None:
        self._peers._inbound.pop(self, None)
        for task in self._tasks:
            task.cancel()
