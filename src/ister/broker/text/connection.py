"""A client connection that turned out to speak the text protocol, and the broker as that protocol sees it.

Records are handed out one at a time, but read a chunk at a time: the newest chunk of each topic that somebody
GETs is kept, a bounded number of them, so that a thousand GETs of one frame decode it once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from ister.broker.text.node import PEER_SECONDS
from ister.broker.text.session import TextSession
from ister.errors import IsterError, RequestTimeout
from ister.frame import FrameHeader, decode_header, encode, frames_in
from ister.io.clock import monotonic
from ister.logs import fields
from ister.metadata.nodes import NodeState
from ister.metadata.replicated import ReplicatedMetadata
from ister.protocol.messages import Fetch
from ister.raft import RaftStatus

if TYPE_CHECKING:
    from ister.broker.clients.server import Server
    from ister.broker.node.broker import Broker

log = logging.getLogger("ister.broker.text")

_RECEIVE_BYTES = 16 * 1024
_CHUNK_BYTES = 256 * 1024
_CHUNKS_KEPT = 64


class TextConnection(asyncio.BufferedProtocol):
    """Takes a transport over from `Connection`, once the first bytes have said what it speaks."""

    def __init__(self, server: Server, transport: asyncio.Transport) -> None:
        self._server = server
        self._transport = transport
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._left = asyncio.Event()
        self._left.set()
        self._last_received = monotonic()
        self._unsent = 0
        self._watched = (self._last_received, 0)
        """When its client last took something of what it was sent, and how much was left then."""
        assert server.text is not None
        self.session = TextSession(server.text, self._write, self._flushed, self._let_go, on_full=self._steer)
        self._leaving_since: float | None = None
        """When its client was told that this is the end."""
        self._has_said_all = False

    # asyncio's side.

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._server.bytes_in.value += nbytes
        self.feed(self._buffer[:nbytes])

    def feed(self, data: bytes | memoryview) -> None:
        self._last_received = monotonic()
        self.session.feed(data)

    def eof_received(self) -> bool:
        self._has_said_all = True
        self.session.eof()
        return self._leaving_since is None  # the replies still go out

    def connection_lost(self, exc: Exception | None) -> None:
        self.session.lost()
        self._left.set()
        self._count(0)
        self._server.text_closed(self)

    def pause_writing(self) -> None:
        self._left.clear()

    def resume_writing(self) -> None:
        self._left.set()
        self._count(0)

    # The session's side.

    def _write(self, data: bytes) -> None:
        self._server.bytes_out.value += len(data)
        self._transport.write(data)
        if not self._left.is_set():
            self._count(self._transport.get_write_buffer_size())

    def _count(self, unsent: int) -> None:
        change, self._unsent = unsent - self._unsent, unsent
        self._server.answers.change(change)

    async def _flushed(self) -> None:
        await self._left.wait()
        if self._transport.is_closing():
            raise ConnectionResetError("the client is gone")

    def _steer(self, is_full: bool) -> None:
        if self._transport.is_closing():
            return
        if is_full:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _let_go(self) -> None:
        """Nothing more is answered. What its client still sends is read and dropped until it is gone, or for
        a while: to close with bytes unread would take the last reply away from it (a reset overtakes it)."""
        if self._has_said_all or self._transport.is_closing():
            self._transport.close()
            return
        self._leaving_since = monotonic()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._transport.resume_reading()

    # The server's side.

    def expire(self, now: float, timeout: float) -> None:
        """Close if a frame was begun and does not come, or replies are not taken; commands may take long."""
        unsent = self._transport.get_write_buffer_size()
        if unsent == 0 or unsent < self._watched[1]:
            self._watched = now, unsent
        if now - self._watched[0] > timeout:
            self._transport.abort()
        elif self._leaving_since is not None:
            if now - self._leaving_since > timeout:
                self._transport.close()
        elif now - self._last_received > timeout and self.session.waits_for_more:
            self.dismiss(RequestTimeout(f"nothing came for {timeout:g} s in the middle of a command"))

    def dismiss(self, error: RequestTimeout) -> None:
        """Say why, and close."""
        peer = self._transport.get_extra_info("peername")
        log.warning("text connection closed: %s", error.message, extra=fields(peer=str(peer)))
        self.session.dismiss(RequestTimeout(error.message, hint="Connect again, and send whole commands."))

    def close(self) -> None:
        self.session.lost()
        self._transport.close()


class _Chunk(NamedTuple):
    topic_uid: int
    first_offset: int
    values: list[bytes]


class BrokerTextNode:
    """The broker as a `TextNode`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._broker: Broker = server.broker
        self._chunks: OrderedDict[str, _Chunk] = OrderedDict()

    @property
    def member(self) -> int:
        return self._broker.metadata.member

    @property
    def metadata(self) -> ReplicatedMetadata:
        return self._broker.metadata

    def is_alive(self, member: int) -> bool:
        return self._broker.metadata.is_alive(member)

    async def ensure_topic(self, topic: str) -> None:
        await self._broker.create_topic(topic, {}, if_absent=True)

    async def read_one(self, topic: str, offset: int) -> tuple[int, bytes] | None:
        found = await self._broker.find(topic)
        uid = found.state.uid
        chunk = self._chunks.get(topic)
        if (
            chunk is None
            or chunk.topic_uid != uid
            or not _holds(chunk, offset)
            or found.places.is_given_up(offset)
        ):
            data = await self._server.requests.read(Fetch(topic, offset, _CHUNK_BYTES))
            frames = frames_in(data, limit=max(_CHUNK_BYTES, len(data)))
            if not frames:
                return None
            values = [record.value or b"" for frame in frames for record in frame.records()]
            chunk = _Chunk(uid, frames[0].header.base_offset, values)
            self._keep(topic, chunk)
        return offset, chunk.values[offset - chunk.first_offset]

    def _keep(self, topic: str, chunk: _Chunk) -> None:
        self._chunks[topic] = chunk
        self._chunks.move_to_end(topic)
        while len(self._chunks) > _CHUNKS_KEPT:
            self._chunks.popitem(last=False)

    async def append_one(self, topic: str, value: bytes) -> int:
        frame = bytearray(encode([value]))
        header = decode_header(frame)
        assert isinstance(header, FrameHeader)
        sink = _OneAppend(asyncio.get_running_loop().create_future())
        self._broker.append(topic, frame, header, sink, 0, monotonic())
        offset = await sink.offset
        self._server.records_in.add()
        return offset

    def raft_status(self) -> RaftStatus:
        return self._broker.metadata.status()

    def raft_nodes(self) -> Mapping[int, NodeState]:
        return self._broker.metadata.state.nodes

    async def peer_request(
        self, member: int, kind: int, header: bytes, payload: bytes, timeout: float = PEER_SECONDS
    ) -> bytes:
        peers = self._broker.metadata.peers
        return (await peers.request(member, kind, header, payload, timeout=timeout)).header


def _holds(chunk: _Chunk, offset: int) -> bool:
    return chunk.first_offset <= offset < chunk.first_offset + len(chunk.values)


class _OneAppend:
    """Waits for one append."""

    def __init__(self, offset: asyncio.Future[int]) -> None:
        self.offset = offset

    def appended(self, token: int, base_offset: int, append_time_us: int, leader: int = 0) -> None:
        if not self.offset.done():
            self.offset.set_result(base_offset)

    def refused(self, token: int, error: IsterError) -> None:
        if not self.offset.done():
            self.offset.set_exception(error)
