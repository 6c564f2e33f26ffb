"""The connections between brokers: one listener, and one outgoing link to each of the others.

A node sends on the link it dialled and is answered there; what arrives on a connection that somebody else
dialled is served. A link that breaks is dialled again after a pause that grows to a second. Raft messages
that find no open link, or a congested one, are dropped: Raft sends again what matters. Requests fail at once
with a retriable error instead; nothing waits here without a bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ister.callers import Caller, Callers, Serve
from ister.errors import ConnectionFailed, DataDirectoryError, IsterError, RequestTimeout
from ister.io.clock import monotonic
from ister.io.network import Listener, Network
from ister.peer_link import BulkLink, BulkListener, Link, Outbound, PeerAnswer, address_of_peer
from ister.protocol.codec import Bytes
from ister.protocol.peer import NodeAddress, PeerHello, PeerHelloAnswer

MAX_STRANGERS = 32
"""So many that called, and that the metadata does not know, are dialled back."""


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
        self._links: dict[int, Link] = {}
        self._bulk: dict[int, BulkLink] = {}
        self._bulk_listener: BulkListener | None = None
        self._starts: dict[int, int] = {}
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
        links = [*self._links.values(), *self._bulk.values()]
        self._links, self._bulk = {}, {}
        for link in links:
            link.stop()
        self._callers.close()
        await asyncio.gather(*(link.task for link in links), return_exceptions=True)

    def _link_to(self, node: NodeAddress) -> Link:
        return Link(self._network, node, self.hello, self.on_refused)

    # Frames of replicated segments.

    def replicate(self, listener: BulkListener, on_replicate: Callable[[Caller, bytes, bytes], None]) -> None:
        """This node keeps replicas: who is told of what comes of it, and who takes what others send."""
        self._bulk_listener = listener
        self._callers.on_replicate = on_replicate

    def bulk(self, member: int) -> BulkLink | None:
        """The way for frames, dialled from the first time on that it is asked for; None to a stranger."""
        found = self._bulk.get(member)
        link = self._links.get(member)
        if found is None and link is not None and self._bulk_listener is not None:
            found = self._bulk[member] = BulkLink(
                self._network, link.node, self.hello, self.on_refused, self._bulk_listener
            )
            found.said = link.said
        return found

    def know(self, nodes: list[NodeAddress], myself: int) -> None:
        """These are the members now: link to the new ones, let go of the others."""
        wanted = {node.member: node for node in nodes if node.member != myself}
        for member in [member for member in self._links if member not in wanted]:
            self._links.pop(member).stop()
        moved: list[int] = []
        for member, bulk in list(self._bulk.items()):
            if member not in wanted or bulk.address != address_of_peer(wanted[member]):
                self._bulk.pop(member).stop()
                moved.append(member)
        self._strangers.clear()
        for member, node in wanted.items():
            link = self._links.get(member)
            if link is None or link.address != address_of_peer(node):
                self._links[member] = self._link_to(node)
                if link is not None:
                    self._links[member].said = link.said
                    link.stop()
        for member in moved:
            self.bulk(member)  # those who follow there may wait for nothing but a question

    def heard_from(self, hello: PeerHello) -> None:
        """It is up, and says where it is: no need to wait before dialling it there."""
        member = hello.node.member
        if member in self._links:
            self._starts[member] = max(hello.starts, self.starts_of(member))
        link = self._links.get(member)
        if link is not None:
            link.heard_from(hello.node)
            if member in self._bulk:
                self._bulk[member].heard_from(hello.node)
        elif hello.cluster_id and self.hello().cluster_id and member != self.hello().node.member:
            self._links[member] = self._link_to(hello.node)
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
        return now_us + int((monotonic() - heard_at) * 1_000_000)

    def callers(self) -> list[NodeAddress]:
        """The nodes that have called here and say that they are in the cluster."""
        return self._callers.nodes()

    def is_alive(self, member: int) -> bool:
        """Whether it answered within the last moments; this node itself always does."""
        link = self._links.get(member)
        return link.is_alive if link is not None else member == self.hello().node.member

    def starts_of(self, member: int) -> int:
        """How often another node was started, by what it last said; 0 if it did not."""
        return self._starts.get(member, 0)

    def where_alive(self, member: int) -> tuple[str, int] | None:
        """Where another node was reached that answered within the last moments; None if it did not."""
        link = self._links.get(member)
        return address_of_peer(link.dialled) if link is not None and link.is_alive else None

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
                made = await self._network.connect(lambda: Outbound(self.hello()), host, port)
                assert isinstance(made, Outbound)
                try:
                    greeted = await made.greeted
                    return greeted, await made.request(kind, header, b"")
                finally:
                    made.close()
        except TimeoutError as error:
            raise RequestTimeout(f"{host}:{port} did not answer within {timeout:.0f} s") from error
