"""The way to other nodes, for requests that only they can answer: connections to their client ports.

One to each for appends, and one for everything else, so that a slow answer is in no append's way.

Appends to one node leave in the order in which they came, and as many at once as the connection takes. What
cannot be sent because the node cannot be reached is refused as `NodeUnreachable`: it was not begun there.
What was sent and not answered is refused as `ConnectionFailed` or `RequestTimeout`: nobody knows (a retry of
the producer is recognised, A5). Nothing is kept here without a bound: an append that waits is counted by the
connection that it came from, and a node that does not answer breaks its connection after the timeout.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ister.addresses import Address
from ister.client.connection import Answer, Connection, open_connection
from ister.errors import (
    SAME_PRODUCER_HINT,
    ConnectionFailed,
    IsterError,
    NodeUnreachable,
    RequestTimeout,
)
from ister.io.clock import monotonic
from ister.io.network import Network
from ister.metadata.state import NodeState
from ister.protocol.codec import AppendAnswer, Bytes, decode_appended
from ister.protocol.messages import Hello, Kind
from ister.protocol.peer import node_of

log = logging.getLogger("ister.broker.forward.forwarding")

CONNECT_SECONDS = 2.0
REQUEST_SECONDS = 10.0
LATE_SECONDS = 60.0
APPEND_SECONDS = 30.0
_PAUSE_SECONDS = 0.2
"""A node that could not be reached is not tried again for each request."""

FindNode = Callable[[int], NodeState | None]
"""The node that a member is now; None if it is no longer there, or on another disk."""


class PassedOn(Protocol):
    """Who waits for an append that another node is to take."""

    def taken(self, answer: AppendAnswer, node_id: int) -> None: ...

    def returned(self, error: IsterError) -> None: ...


class _Waiting(NamedTuple):
    header: bytes
    frame: Bytes
    waiter: PassedOn


class Forwarder:
    def __init__(self, network: Network, node_id: int, cluster_id: Callable[[], str], find: FindNode) -> None:
        self.network = network
        self.hello = Hello(f"ister-node/{node_id}")
        self.cluster_id = cluster_id
        self.find = find
        self._ways: dict[tuple[int, bool], _Way] = {}
        self._errors_due = 0

    def append(self, member: int, header: bytes, frame: Bytes, waiter: PassedOn) -> None:
        if self._fails_on_purpose():
            waiter.returned(_on_purpose(member))
        else:
            self._way(member, for_appends=True).append(_Waiting(header, frame, waiter))

    async def request(
        self,
        member: int,
        kind: int,
        header: bytes,
        *,
        timeout_s: float = REQUEST_SECONDS,
        wait_s: float = 0.0,
    ) -> Answer:
        """`wait_s` is how long the other node was asked to wait by itself."""
        if self._fails_on_purpose():
            raise _on_purpose(member)
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._way(member, for_appends=False).connection()
                # Longer than anybody waits here: one slow answer must not end what others wait for.
                return await connection.request(
                    kind, header, timeout_s=timeout_s + LATE_SECONDS, wait_s=wait_s
                )
        except TimeoutError as error:
            raise RequestTimeout(f"node {node_of(member)} did not answer within {timeout_s:.0f} s") from error

    def _way(self, member: int, *, for_appends: bool) -> _Way:
        key = member, for_appends
        way = self._ways.get(key)
        if way is None:
            way = self._ways[key] = _Way(self, member)
        return way

    def forget(self, members: set[int]) -> None:
        """Only these are there now."""
        for key in [key for key, way in self._ways.items() if key[0] not in members or way.has_moved]:
            self._ways.pop(key).close()

    async def close(self) -> None:
        ways, self._ways = self._ways, {}
        for way in ways.values():
            way.close()
        await asyncio.sleep(0)

    def fail_next(self, count: int) -> None:
        """For tests: refuse the next requests to other nodes."""
        self._errors_due = count

    def _fails_on_purpose(self) -> bool:
        if self._errors_due:
            self._errors_due -= 1
            return True
        return False


def _on_purpose(member: int) -> NodeUnreachable:
    return NodeUnreachable(f"the way to node {node_of(member)} was made to fail, for a test")


class _Way:
    """The connection to one node, made when it is needed."""

    def __init__(self, forwarder: Forwarder, member: int) -> None:
        self._forwarder = forwarder
        self._member = member
        self._queue: deque[_Waiting] = deque()
        self._connection: Connection | None = None
        self._opening: asyncio.Task[Connection] | None = None
        self._fault: IsterError | None = None
        self._fault_until = 0.0
        self._waits_for_room = False
        self._closed = False

    @property
    def has_moved(self) -> bool:
        """Whether the node is said to be elsewhere now than where this way leads."""
        node, connection = self._forwarder.find(self._member), self._connection
        if node is None or connection is None:
            return False
        return connection.address != Address(node.client_host, node.client_port)

    def append(self, waiting: _Waiting) -> None:
        self._queue.append(waiting)
        self._pump()

    def _pump(self) -> None:
        self._waits_for_room = False
        connection = self._connection
        if connection is None or not connection.is_open:
            self._open_soon()
            return
        queue = self._queue
        while queue:
            if not connection.has_room:
                if not self._waits_for_room:
                    self._waits_for_room = True
                    connection.when_room(self._pump)
                return
            waiting = queue.popleft()
            sink = _AppendSink(waiting.waiter, self._member)
            connection.send(Kind.APPEND, waiting.header, waiting.frame, sink, APPEND_SECONDS)

    async def connection(self) -> Connection:
        connection = self._connection
        if connection is not None and connection.is_open:
            return connection
        task = self._open_soon()
        await asyncio.wait([task])
        if task.cancelled():
            raise self._unreachable("this node is stopping")
        error = task.exception()
        if isinstance(error, IsterError):
            raise error.again()
        return task.result()

    def _open_soon(self) -> asyncio.Task[Connection]:
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._opened)
        return self._opening

    async def _open(self) -> Connection:
        if self._fault is not None and monotonic() < self._fault_until:
            raise self._fault.again()
        forwarder = self._forwarder
        node = forwarder.find(self._member)
        if node is None:
            raise self._unreachable(
                "it is no longer in the cluster, or came back with another disk",
                hint="`ister topic recover TOPIC` says what is lost with that disk, and what can be done.",
            )
        address = Address(node.client_host, node.client_port)
        hello = Hello(forwarder.hello.client, forwarder.cluster_id())
        try:
            made = await open_connection(forwarder.network, address, hello, timeout_s=CONNECT_SECONDS)
            if made.hello is not None and made.hello.node_id != node.node_id:
                # It would pass it on as we do; and if it is this very node, for ever.
                made.close()
                raise ConnectionFailed(f"at {address} is node {made.hello.node_id}")
            return made
        except IsterError as error:
            self._fault = self._unreachable(error.message)
            self._fault_until = monotonic() + _PAUSE_SECONDS
            raise self._fault.again() from error

    def _opened(self, task: asyncio.Task[Connection]) -> None:
        self._opening = None
        if task.cancelled():
            self._refuse(self._unreachable("this node is stopping"))
            return
        error = task.exception()
        if error is None:
            self._fault = None
            self._connection = task.result()
            if self._closed:
                self._connection.close()
            else:
                self._pump()
        elif isinstance(error, IsterError):
            self._refuse(error)
        else:
            log.error("no way to node %d: %r", node_of(self._member), error)
            self._refuse(self._unreachable(str(error)))

    def _refuse(self, error: IsterError) -> None:
        queue, self._queue = self._queue, deque()
        for waiting in queue:
            waiting.waiter.returned(error.again())

    def _unreachable(self, why: str, hint: str | None = None) -> NodeUnreachable:
        return NodeUnreachable(f"node {node_of(self._member)} cannot be reached: {why}", hint=hint)

    def close(self) -> None:
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            self._connection.close()
        self._refuse(self._unreachable("this node is stopping"))


class _AppendSink:
    """Takes the other node's answer to an append."""

    __slots__ = ("_member", "_waiter")

    def __init__(self, waiter: PassedOn, member: int) -> None:
        self._waiter = waiter
        self._member = member

    def answered(self, header: bytes, payload: Bytes) -> None:
        answer = decode_appended(header)
        self._waiter.taken(answer, answer.leader or node_of(self._member))

    def failed(self, error: IsterError) -> None:
        if isinstance(error, ConnectionFailed):
            error = ConnectionFailed(
                f"node {node_of(self._member)} was lost before it answered: {error.message}",
                hint=SAME_PRODUCER_HINT,
            )
        self._waiter.returned(error)
