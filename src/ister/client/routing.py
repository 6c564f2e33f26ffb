"""Which node to ask, and the connection to it. The one place in the client that knows.

Any node answers any request, so that nothing here is needed for a right answer: it saves the way through
another node. Answers name the node that had what was asked for, and the next request goes there directly; one
that cannot be reached or no longer leads is forgotten, and any node that is up is asked instead: one that was
silent a while ago after all others, since an attempt at it takes long. The other nodes of a cluster are asked
for once there is a connection, so that the client outlives the nodes that it was told of.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ister.addresses import Address, parse_addresses
from ister.client.connection import Connection, open_connection
from ister.errors import (
    BadRequest,
    ConfigError,
    ConnectionFailed,
    IsterError,
    LogClosed,
    NodeUnreachable,
    NotLeader,
    RequestTimeout,
    ShuttingDown,
)
from ister.io.clock import monotonic
from ister.io.network import Network
from ister.protocol.codec import Bytes, decode_header, encode_header
from ister.protocol.messages import ClusterAnswer, Empty, Hello, Kind

DEFAULT_PORT = 9091
_LAST_SECONDS: Final = 30.0
"""So long a node that did not answer is asked after all others."""
_ASK_ANOTHER = (ConnectionFailed, NodeUnreachable, NotLeader, RequestTimeout, ShuttingDown)


def parse_bootstrap(bootstrap: str) -> list[Address]:
    """`host:port[,host:port...]`; a port that is not given is the default one."""
    addresses = parse_addresses(bootstrap, DEFAULT_PORT)
    if not addresses:
        raise ConfigError(f"no address in {bootstrap!r}", hint="Give host:port, or several with commas.")
    return addresses


class Routes:
    """Connections by what is asked for, opened when needed and shared by all that go the same way.

    A way is named by a key: a topic's name for appends, something else for reads of it, None for anything.
    """

    def __init__(self, bootstrap: str, network: Network, *, client: str, connect_timeout_s: float) -> None:
        self._bootstrap = parse_bootstrap(bootstrap)
        self._network = network
        self._client = client
        self._connect_timeout_s = connect_timeout_s
        self._cluster_id = ""
        self._nodes: dict[int, Address] = {}
        self._leaders: dict[str, int] = {}
        self._known: dict[str, int] = {}
        self.told_index = 0
        """The newest metadata that a node has told of: what is sent from now on was not sent before (A5)."""
        self._lines: dict[Address, Connection] = {}
        self._silent_until: dict[Address, float] = {}
        self._current: Connection | None = None
        """The connection for whatever has no better one."""
        self._preferred = 0
        self._opening: asyncio.Task[Connection] | None = None
        self._direct: dict[Address, asyncio.Task[Connection]] = {}
        self._asked_for_nodes = False
        self._closed = False

    def ready(self, key: str | None) -> Connection | None:
        """An open connection that serves the key, the best there is right now."""
        if self._leaders and key is not None:
            address = self._nodes.get(self._leaders.get(key, 0))
            if address is not None:
                line = self._lines.get(address)
                if line is not None and line.is_open:
                    return line
        current = self._current
        return current if current is not None and current.is_open else None

    async def connection(self, key: str | None) -> Connection:
        """A connection that serves the key; raises the last error when no address answers."""
        ready = self.ready(key)
        if ready is not None:
            return ready
        if self._closed:
            raise LogClosed("this log is closed")
        opening = self._opening
        if opening is None:
            opening = self._opening = asyncio.get_running_loop().create_task(self._open_any())
            opening.add_done_callback(self._opened_any)
        # Others may be waiting for the same attempt: one that is cancelled must not take it along.
        await asyncio.wait([opening])
        if opening.cancelled():
            raise ConnectionFailed("the log was closed while it connected", hint="Call ister.connect again.")
        error = opening.exception()
        if isinstance(error, IsterError):
            raise error.again()
        return opening.result()

    @property
    def cluster_id(self) -> str:
        """Empty before the first connection."""
        return self._cluster_id

    @property
    def is_closed(self) -> bool:
        return self._closed

    def learned(self, key: str, node_id: int) -> None:
        """An answer said which node has what this key asks for."""
        if not node_id or self._leaders.get(key) == node_id:
            return
        self._leaders[key] = node_id
        address = self._nodes.get(node_id)
        if address is None:
            self._ask_for_nodes()
        else:
            self._open_directly(address)

    def changed_at(self, topic: str, index: int) -> None:
        """A topic of this name was made or deleted at this index of the metadata."""
        self._known[topic] = max(index, self.known_index(topic))

    def known_index(self, topic: str) -> int:
        """What a node must know before it answers for this topic: else it may mean the one before (I3)."""
        return self._known.get(topic, 0)

    def told(self, index: int) -> None:
        """A node has applied the metadata up to there, or somebody has."""
        self.told_index = max(self.told_index, index)

    def failed(self, key: str | None, error: IsterError) -> None:
        """Learn from a failed request where not to go next."""
        self.told(error.index)
        if not isinstance(error, _ASK_ANOTHER):
            return
        if key is not None and self._leaders.pop(key, None) is not None:
            return
        # The node that is asked for whatever has no better one may be cut off from the others: ask the next.
        addresses = self._addresses()
        if len(addresses) > 1:
            self._preferred = (self._preferred + 1) % len(addresses)
            self._current = self._lines.get(addresses[self._preferred])

    async def close(self) -> None:
        self._closed = True
        for task in (self._opening, *self._direct.values()):
            if task is not None:
                task.cancel()
        for line in list(self._lines.values()):
            line.close()
        await asyncio.sleep(0)  # the transport tells the protocol in the next turn

    # The nodes of the cluster.

    def _addresses(self) -> list[Address]:
        """Where a node may be found: those that the client was told of, then those it has heard of."""
        return list(dict.fromkeys([*self._bootstrap, *self._nodes.values()]))

    def _ask_for_nodes(self) -> None:
        current = self._current
        if current is not None and current.is_open and current.has_room:
            current.send(Kind.CLUSTER, encode_header(Empty()), b"", _NodesSink(self), self._connect_timeout_s)

    def heard_of(self, cluster: ClusterAnswer) -> None:
        self.told(cluster.applied_index)
        self._nodes = {
            node.node_id: Address(node.client_host, node.client_port)
            for node in cluster.nodes
            if node.client_port
        }
        for node_id in set(self._leaders.values()):
            address = self._nodes.get(node_id)
            if address is not None:
                self._open_directly(address)

    # Connecting.

    def _open_directly(self, address: Address) -> None:
        """In the background: until it is open, requests go the long way."""
        line = self._lines.get(address)
        if (line is not None and line.is_open) or address in self._direct or self._closed:
            return
        task = asyncio.get_running_loop().create_task(self._open(address))
        self._direct[address] = task

        def opened(done: asyncio.Task[Connection]) -> None:
            del self._direct[address]
            if not done.cancelled() and done.exception() is not None:
                unreachable = {node for node, where in self._nodes.items() if where == address}
                self._leaders = {k: node for k, node in self._leaders.items() if node not in unreachable}

        task.add_done_callback(opened)

    async def _open(self, address: Address) -> Connection:
        line = self._lines.get(address)
        if line is not None and line.is_open:
            return line
        hello = Hello(self._client, self._cluster_id)
        try:
            line = await open_connection(self._network, address, hello, timeout_s=self._connect_timeout_s)
        except ConnectionFailed:
            self._said_nothing(address)
            raise
        self._silent_until.pop(address, None)
        line.on_silence = lambda: self._said_nothing(address)
        self._lines[address] = line
        if line.hello is not None:
            self._cluster_id = line.hello.cluster_id
            self.told(line.hello.index)
            self._nodes[line.hello.node_id] = address
        return line

    def _said_nothing(self, address: Address) -> None:
        self._silent_until[address] = monotonic() + _LAST_SECONDS

    def _opened_any(self, task: asyncio.Task[Connection]) -> None:
        self._opening = None
        if not task.cancelled():
            task.exception()  # those who await it are told; with none of them left, nobody needs to be

    async def _open_any(self) -> Connection:
        last: IsterError = ConnectionFailed("no address was tried")
        addresses = self._addresses()
        turns = [(self._preferred + turn) % len(addresses) for turn in range(len(addresses))]
        now = monotonic()
        turns.sort(key=lambda at: self._silent_until.get(addresses[at], 0.0) > now)
        for at in turns:
            try:
                line = await self._open(addresses[at])
            except IsterError as error:
                last = error
                continue
            self._preferred, self._current = at, line
            if not self._asked_for_nodes:
                self._asked_for_nodes = True
                self._ask_for_nodes()
            return line
        if len(addresses) > 1 and isinstance(last, ConnectionFailed):
            tried = ", ".join(map(str, addresses))
            raise ConnectionFailed(
                f"none of {tried} can be reached; the last error: {last.message}"
            ) from last
        raise last


class _NodesSink:
    """Takes the answer to the question who is in the cluster. Without one, things are just slower."""

    __slots__ = ("_routes",)

    def __init__(self, routes: Routes) -> None:
        self._routes = routes

    def answered(self, header: bytes, payload: Bytes) -> None:
        try:
            self._routes.heard_of(decode_header(ClusterAnswer, header or payload))
        except BadRequest:
            return  # a broker that says it in other words

    def failed(self, error: IsterError) -> None:
        """Nothing to do: the next connection asks again if it matters."""
