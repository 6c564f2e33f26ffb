"""The receiving side of a client connection: bytes in, whole requests out, within the bounds.

Each request is copied once, out of a scratch buffer that all connections share; one that has not arrived
in full gets a buffer of its own size, once there is room for it.

Bounds, enforced here. The size of a request: a larger one is read to its end, answered with an error, and
the connection lives on. Unanswered bytes, per connection and in all: beyond them the broker stops reading.
Bytes count from the moment that memory is set aside for them until the log has answered, whether their
client is still there or not; so a disk that hangs and clients that come, send and leave fill the bound and
no more. What may lie beside it is one scratch buffer's worth for each connection that is not read from.

Time. A request that has its own buffer holds what others may wait for: it must arrive at a least pace
(`is_too_slow`). Small ones need not: all connections together cannot hold half of the bound with them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from ister.broker.clients.answers import is_too_slow
from ister.errors import BadRequest, IsterError, MessageTooLarge, RequestTimeout
from ister.io.clock import monotonic
from ister.protocol.codec import PREAMBLE_SIZE, PREFIX, PREFIX_SIZE, SIZE_FIELD, choose_version
from ister.protocol.messages import Kind
from ister.protocol.text import LENGTH_SIZE, is_text

if TYPE_CHECKING:
    from ister.broker.clients.server import Server

DRAIN_LIMIT = 1 << 30
GREETING_BYTES = 128 * 1024
"""The most that somebody may send as the first request: nobody we know has a claim to memory yet."""
QUESTION_BYTES = 1024
"""A request that is no append and no larger is taken however many appends wait for room."""

_APPEND = int(Kind.APPEND)
_KINDS = frozenset(map(int, Kind))


class Receiver(asyncio.BufferedProtocol):
    """A connection that can be received from. `Connection` adds what is done with a request."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.greeted = False
        self.version = 0
        self.last_received = 0.0
        self.in_flight_bytes = 0
        self.writable = asyncio.Event()
        self.writable.set()
        self._closed = False
        self._stash: bytes | bytearray = b""
        self._partial: bytearray | None = None
        self._filled = 0
        self._began = 0.0
        self._announced = 0
        self._skip = 0
        self._reading_paused = False

    # What the other side does.

    def _handle(
        self,
        data: bytearray,
        start: int,
        total: int,
        correlation: int,
        kind: int,
        header_size: int,
        *,
        owned: bool = False,
    ) -> None:
        """One whole request lies in `data`, which is the request's own or will be overwritten."""
        raise NotImplementedError

    def _send_failure(self, correlation: int, error: IsterError) -> None:
        raise NotImplementedError

    def _speaks_text(self, first: bytes) -> None:
        """These bytes begin the text protocol: this object has nothing more to do."""
        raise NotImplementedError

    def refuse(self, error: IsterError) -> None:
        """Say why, and close."""
        raise NotImplementedError

    # asyncio's side.

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._partial is not None:
            return memoryview(self._partial)[self._filled :]
        return self._server.scratch_view

    def buffer_updated(self, nbytes: int) -> None:
        server = self._server
        self.last_received = monotonic()
        server.bytes_in.value += nbytes
        if self._partial is not None:
            self._filled += nbytes
            if self._filled == len(self._partial):
                self._finish(self._partial)
            return
        if self._stash:
            data = bytearray(self._stash) + server.scratch[:nbytes]
            self._stash = b""
            self._parse(data, len(data))
        else:
            self._parse(server.scratch, nbytes)

    # Requests.

    def _parse(self, data: bytearray, end: int) -> None:
        server = self._server
        position = self._announced = 0
        if self._skip:
            position = min(self._skip, end)
            self._skip -= position
        if self.version == 0:
            if is_text(bytes(data[: min(end, LENGTH_SIZE)])):  # behind `end` lies what others have sent
                self._speaks_text(bytes(data[:end]))
                return
            if end < PREAMBLE_SIZE:
                self._stash = bytes(data[:end])
                return
            try:
                self.version = choose_version(data[:PREAMBLE_SIZE])
            except IsterError as error:
                self.refuse(error)
                return
            position = PREAMBLE_SIZE
        # Looked at once: what one read brings may pass the bound, what the next one brings waits.
        is_full = server.in_flight_bytes > server.total_limit
        while not self._closed:
            limit = server.message_limit if self.greeted else GREETING_BYTES
            have = end - position
            if have < PREFIX_SIZE:
                self._stash = bytes(data[position:end])
                return
            size, correlation, kind, header_size = PREFIX.unpack_from(data, position)
            total = size + SIZE_FIELD
            if total > limit or total < PREFIX_SIZE + header_size:
                if not self._refuse_message(total, correlation, kind, header_size):
                    return
                position += total
                if position >= end:
                    self._skip = position - end
                    return
                continue
            if have < total:
                is_question = kind != _APPEND and total <= QUESTION_BYTES
                if self._own_bounds_allow and (is_question or server.has_room(total)):
                    self._begin(total, data[position:end])
                else:
                    self._wait_with(total, data[position:end])
                return
            if is_full and kind == _APPEND and self.greeted:
                self._wait_with(total, data[position:end])
                return
            self._handle(data, position, total, correlation, kind, header_size)
            position += total

    def _refuse_message(self, total: int, correlation: int, kind: int, header_size: int) -> bool:
        """Answer a request that cannot be taken; False if the connection cannot go on."""
        limit = self._server.broker.config.max_message_bytes
        is_garbage = total < PREFIX_SIZE + header_size or total > DRAIN_LIMIT or kind not in _KINDS
        if is_garbage or not self.greeted:
            self.refuse(
                BadRequest(f"a message of {total} bytes and kind {kind} with a header of {header_size}")
            )
            return False
        error = MessageTooLarge(f"a request of {total} bytes is over the limit of {limit}")
        self._send_failure(correlation, error)
        return True

    def _wait_with(self, total: int, first: bytearray) -> None:
        """There is no room for this request: keep what is here, and read no more until there is."""
        self._stash, self._announced = bytes(first), total
        self._steer_reading()

    def _begin(self, total: int, first: bytes | bytearray) -> None:
        """Receive the rest of a request into a buffer of its own, now that there is room for it."""
        self._count(total)
        self._partial = bytearray(total)
        self._filled = min(total, len(first))
        self._partial[: self._filled] = first[: self._filled]
        self._began = monotonic()
        if self._is_whole:
            # Whoever made the room is in the middle of something: it is handled when that is over.
            self._stash = bytes(first[total:])
            asyncio.get_running_loop().call_soon(self._go_on)

    @property
    def _is_whole(self) -> bool:
        return self._partial is not None and self._filled == len(self._partial)

    def _go_on(self) -> None:
        """The request that waited with all its bytes, and what came behind it."""
        if self._partial is not None and not self._closed:
            behind, self._stash = bytearray(self._stash), b""
            self._finish(self._partial)
            if behind and not self._closed:
                self._parse(behind, len(behind))

    def _finish(self, message: bytearray) -> None:
        self._partial = None
        _, correlation, kind, header_size = PREFIX.unpack_from(message)
        # What it reserved is given back only after its append has reserved: nobody slips in between.
        self._count(-len(message))
        self._handle(message, 0, len(message), correlation, kind, header_size, owned=True)
        self._reserve(0)

    def _abandon(self) -> None:
        """Nothing more is received: let go of what has not become a request. Closed, from here on."""
        self._closed = True
        if self._partial is not None:
            self._count(-len(self._partial))
        self._partial, self._stash, self._announced, self._skip = None, b"", 0, 0
        self._server.waiting.pop(self, None)
        self._server.let_in()

    # Bounds.

    def _count(self, size: int) -> None:
        self.in_flight_bytes += size
        self._server.in_flight_bytes += size

    def _reserve(self, size: int) -> None:
        """Count unanswered bytes, and stop or resume reading as they pass the bounds."""
        server = self._server
        self.in_flight_bytes = own = self.in_flight_bytes + size
        server.in_flight_bytes = total = server.in_flight_bytes + size
        if own > server.connection_limit or total > server.total_limit or self._reading_paused:
            self._steer_reading()
        if size <= 0 and server.waiting:
            server.let_in()

    @property
    def _own_bounds_allow(self) -> bool:
        # A client that does not take its answers is not asked for more.
        return self.writable.is_set() and self.in_flight_bytes <= self._server.connection_limit

    @property
    def announced(self) -> int:
        """The size of a request that has begun to arrive and has no buffer yet; else 0."""
        return self._announced

    def _steer_reading(self) -> None:
        """Read or do not read, as the bounds now say.

        The bound of all stops those who have a part in it, or wait with a request. Others are read from: they
        may want to ask something, and an append of theirs waits when it has come.

        A request that has its buffer is let in: all that have one are within the bound of all together, so
        that each of them can end, and make room, without waiting for another.
        """
        if self._closed or self._is_whole:
            return
        server = self._server
        allowed = self.writable.is_set() if self._partial is not None else self._own_bounds_allow
        has_part = self._announced or self.in_flight_bytes
        if allowed and has_part and self._partial is None and not server.has_room(self._announced):
            server.waiting[self] = None
            allowed = False
        else:
            server.waiting.pop(self, None)
        if allowed:
            self._resume()
        elif not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()
            server.paused[self] = None

    def let_in(self) -> None:
        """The bound of all has room for what this connection waits with."""
        self._steer_reading()

    def _resume(self) -> None:
        if self._announced:
            total, first = self._announced, self._stash
            self._announced, self._stash = 0, b""
            self._begin(total, first)
        if self._reading_paused and not self._is_whole:
            self._reading_paused = False
            self._server.paused.pop(self, None)
            self._transport.resume_reading()

    def _lateness(self, now: float, timeout: float) -> RequestTimeout | None:
        """What to tell a client that began a request, or no hello, and does not go on as it should."""
        partial = self._partial
        unfinished = partial is not None or self._stash or self._skip or not self.greeted
        # Who is not read from is not late, unless its own unread answers hold up a request of its own.
        if not unfinished or (self._reading_paused and (partial is None or self.writable.is_set())):
            return None
        if now - self.last_received > timeout:
            return RequestTimeout(f"nothing came for {timeout:g} s in the middle of a request")
        if partial is not None and len(partial) > self._server.small_request_bytes:
            elapsed = now - self._began
            if is_too_slow(self._filled, elapsed, timeout):
                return RequestTimeout(
                    f"{self._filled} bytes of a request of {len(partial)} came in {elapsed:.0f} s",
                    hint="Send smaller batches over a slow line, or raise the broker's request_timeout_ms.",
                )
        return None
