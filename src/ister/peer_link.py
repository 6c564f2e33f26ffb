"""The way to one other node: a connection that this node dials, and dials again whenever it breaks.

There are two kinds. The plain one carries Raft, pings and requests. The bulk one carries the frames of
segments that are replicated there, so that these never stand in the way of a heartbeat; it is dialled when it
is first needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from ister.callers import GREETING_BYTES
from ister.errors import ConnectionFailed, DataDirectoryError, IsterError, RequestTimeout
from ister.io.clock import monotonic
from ister.io.network import Network
from ister.protocol.codec import (
    MAX_ANSWER_BYTES,
    Bytes,
    decode_failure,
    decode_header,
    encode_header,
    encode_message,
)
from ister.protocol.peer import NodeAddress, PeerHello, PeerHelloAnswer, PeerKind, encode_peer_preamble
from ister.protocol.stream import MessageStream

log = logging.getLogger("ister.peers")

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0
CONNECT_SECONDS = 2.0
PING_SECONDS = 0.5
SILENT_PINGS = 4
SILENT_SECONDS = 1.5
"""A node that did not answer a ping for so long is not counted on for anything new."""
BULK_BUFFER_BYTES = 4 * 1024 * 1024
"""What may wait to be sent on a bulk connection; past it nothing more is given to it until it was sent."""
_RAFT = int(PeerKind.RAFT)
_REPLICATE = int(PeerKind.REPLICATE)


class PeerAnswer(NamedTuple):
    header: bytes


class BulkListener(Protocol):
    """Who is told of what happens on the bulk connections."""

    def connected(self, member: int) -> None: ...

    def disconnected(self, member: int) -> None: ...

    def answered(self, member: int, header: bytes) -> None:
        """A follower says how far it is (`Replicated`)."""
        ...

    def room_made(self, member: int) -> None:
        """What could not be sent may be sent now."""
        ...


class Outbound(MessageStream):
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
                    self.max_bytes = MAX_ANSWER_BYTES
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
        self._correlation = correlation = self._correlation + 1
        future: asyncio.Future[PeerAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[correlation] = future
        try:
            self.send(correlation, kind, header, payload)
            return await future
        finally:
            self._waiting.pop(correlation, None)  # who gave up is not kept for an answer that may never come

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


class Link:
    """The way to one member, dialled again whenever it breaks.

    Where it is, the metadata says; but a node that has moved can tell the metadata of it only once it is
    reached. So where it said itself that it is, when it called, is tried in turn with that.
    """

    def __init__(
        self,
        network: Network,
        node: NodeAddress,
        hello: Callable[[], PeerHello],
        on_refused: Callable[[DataDirectoryError], None],
    ) -> None:
        self.node = self.dialled = node
        self.address = address_of_peer(node)
        self.is_alive = False
        self._hello = hello
        self._on_refused = on_refused
        self._network = network
        self._connection: Outbound | None = None
        self.said: NodeAddress | None = None
        self.clock: tuple[int, float] | None = None
        """What its clock said, and when that was heard."""
        self._nudge = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._keep())

    def _make(self) -> Outbound:
        return Outbound(self._hello())

    def _came_up(self) -> None:
        """For a subclass: there is a connection."""

    def _went_down(self) -> None:
        """For a subclass: there is none any more."""

    def heard_from(self, node: NodeAddress) -> None:
        self.said = node if address_of_peer(node) != self.address else None
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
        pause = FIRST_PAUSE_SECONDS
        loop = asyncio.get_running_loop()
        while True:
            up_since: float | None = None
            try:
                connection = await self._dial(self.dialled)
                up_since = monotonic()
                self._connection, self.is_alive = connection, True
                self._came_up()
                await self._watch(connection)
            except DataDirectoryError as error:
                self._on_refused(error)
            except IsterError as error:
                log.debug("no link to node %d: %s", self.node.node_id, error)
                self.dialled = self.said if self.said and self.dialled is self.node else self.node
            except Exception as error:  # a defect costs this connection, not the way to the node for good
                report = {"message": f"the link to node {self.node.node_id} broke", "exception": error}
                loop.call_exception_handler({**report, "task": self.task})
            finally:
                was_up, self._connection, self.is_alive = self._connection is not None, None, False
                if was_up:
                    self._went_down()
            if up_since is None:
                await self._pause(pause)
            elif monotonic() - up_since > LONGEST_PAUSE_SECONDS:
                pause = FIRST_PAUSE_SECONDS
                await self._pause(pause)
            else:
                # Greeted, and closed at once for what one of the two sends: that it is up is no news.
                await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _watch(self, connection: Outbound) -> None:
        """Until the connection is gone: ask now and then, so that a silent node is known as such."""
        unanswered = 0
        while not connection.is_closed:
            try:
                async with asyncio.timeout(SILENT_SECONDS):
                    answer = await connection.request(PeerKind.PING, b"", b"")
                self.is_alive, unanswered = True, 0
                self.clock = int.from_bytes(answer.header, "little"), monotonic()
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

    async def _dial(self, node: NodeAddress) -> Outbound:
        made: Outbound | None = None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connected = await self._network.connect(self._make, node.peer_host, node.peer_port)
                assert isinstance(connected, Outbound)
                made = connected
                answer = await made.greeted
        except BaseException as error:
            if made is not None:
                made.abort()  # it may be taken, and never be answered
            if isinstance(error, TimeoutError):
                raise ConnectionFailed(f"node {node.node_id} did not greet in time") from error
            raise
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


class BulkLink(Link):
    """The way to one member for the frames of segments."""

    def __init__(
        self,
        network: Network,
        node: NodeAddress,
        hello: Callable[[], PeerHello],
        on_refused: Callable[[DataDirectoryError], None],
        listener: BulkListener,
    ) -> None:
        self.listener = listener
        super().__init__(network, node, hello, on_refused)

    def _make(self) -> Outbound:
        return _BulkOutbound(self._hello(), self)

    def _came_up(self) -> None:
        self.listener.connected(self.node.member)

    def _went_down(self) -> None:
        self.listener.disconnected(self.node.member)

    @property
    def has_room(self) -> bool:
        return self._connection is not None and not self._connection.is_congested

    def send_frames(self, header: bytes, frames: Sequence[Bytes], size: int) -> None:
        """Send at once: what follows in this turn of the loop may be a wait for the disk."""
        if self._connection is not None:
            self._connection.send_at_once(encode_message(0, _REPLICATE, header, size), frames)


class _BulkOutbound(Outbound):
    def __init__(self, hello: PeerHello, link: BulkLink) -> None:
        super().__init__(hello)
        self._link = link

    def opened(self) -> None:
        self._transport.set_write_buffer_limits(high=BULK_BUFFER_BYTES)
        super().opened()

    def message(self, correlation: int, kind: int, header: bytes, payload: bytes) -> None:
        if correlation == 0 and kind == 0 and self.greeted.done():
            self._link.listener.answered(self._link.node.member, header)
        else:
            super().message(correlation, kind, header, payload)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._link.listener.room_made(self._link.node.member)


def address_of_peer(node: NodeAddress) -> tuple[str, int]:
    return node.peer_host, node.peer_port
