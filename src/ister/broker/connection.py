"""One client connection: bytes in, requests out to the broker, answers back.

The receive path copies each request once, out of a scratch buffer that all connections share (a request
larger than it is received straight into a buffer of its own size). Appends run on the spot, with no task and
no future; their answers are gathered and written once per commit cycle. Everything else is a task.

Bounds, all enforced here: the size of a request (a larger one is read to its end, answered with an error,
and the connection lives on), unanswered bytes per connection and in all (beyond them the broker stops
reading), requests waiting for data, and what a slow reader may have in its send buffer (no further fetch
is read from disk until it drains).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, cast

from ister.errors import BadRequest, IsterError, MessageTooLarge, Overloaded, RequestTimeout
from ister.frame import admit
from ister.protocol.codec import (
    PREAMBLE_SIZE,
    PREFIX,
    PREFIX_SIZE,
    SIZE_FIELD,
    choose_version,
    encode_appended,
    encode_failure,
    encode_message,
)
from ister.protocol.messages import Kind

if TYPE_CHECKING:
    from ister.broker.server import Server

log = logging.getLogger("ister.broker.connection")

WRITE_BUFFER_BYTES = 1024 * 1024
MAX_TASKS = 1000
DRAIN_LIMIT = 1 << 30
GREETING_BYTES = 128 * 1024
"""The most that somebody may send as the first request: nobody we know has a claim to memory yet."""

_APPEND = int(Kind.APPEND)
_HELLO = int(Kind.HELLO)
_KINDS = frozenset(map(int, Kind))


class Connection(asyncio.BufferedProtocol):
    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.peer = "?"
        self.greeted = False
        self.version = 0
        self.last_received = 0.0
        self.in_flight_bytes = 0
        self.writable = asyncio.Event()
        self.writable.set()
        self.read_slots = asyncio.Semaphore(2)
        # Receiving.
        self._stash = b""
        self._partial: bytearray | None = None
        self._filled = 0
        self._announced = 0
        self._skip = 0
        self._reading_paused = False
        # Answering.
        self._out: list[bytes] = []
        self._tokens = 0
        self._appends: dict[int, tuple[int, int, int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)
        self.last_received = self._server.broker.clock.monotonic()
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        self._server.closed(self)

    def pause_writing(self) -> None:
        self.writable.clear()
        self._steer_reading()

    def resume_writing(self) -> None:
        self.writable.set()
        self._steer_reading()

    def eof_received(self) -> bool:
        return False  # close: a client that sends no more wants no more

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._partial is not None:
            return memoryview(self._partial)[self._filled :]
        return self._server.scratch

    def buffer_updated(self, nbytes: int) -> None:
        server = self._server
        self.last_received = server.broker.clock.monotonic()
        server.bytes_in.value += nbytes
        if self._partial is not None:
            self._filled += nbytes
            if self._filled == len(self._partial):
                message, self._partial = self._partial, None
                _, correlation, kind, header_size = PREFIX.unpack_from(message)
                # What it reserved is given back only after its append has reserved: nobody slips in between.
                self._count(-len(message))
                self._handle(message, 0, len(message), correlation, kind, header_size, owned=True)
                self._reserve(0)
            return
        if self._stash:
            data: bytearray | memoryview = bytearray(self._stash) + server.scratch[:nbytes]
            self._stash = b""
            self._parse(data, len(data))
        else:
            self._parse(server.scratch, nbytes)

    # Receiving.

    def _parse(self, data: bytearray | memoryview, end: int) -> None:
        position = self._announced = 0
        if self._skip:
            position = min(self._skip, end)
            self._skip -= position
        if self.version == 0:
            if end < PREAMBLE_SIZE:
                self._stash = bytes(data[:end])
                return
            try:
                self.version = choose_version(data[:PREAMBLE_SIZE])
            except IsterError as error:
                self._refuse_connection(error)
                return
            position = PREAMBLE_SIZE
        while not self._closed:
            limit = self._server.broker.config.max_message_bytes if self.greeted else GREETING_BYTES
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
                if self._own_bounds_allow and self._server.has_room(total):
                    self._begin(total, data[position:end])
                else:
                    self._stash, self._announced = bytes(data[position:end]), total
                    self._steer_reading()
                return
            self._handle(data, position, total, correlation, kind, header_size)
            position += total

    def _begin(self, total: int, first: bytes | bytearray | memoryview) -> None:
        """Receive the rest of a request into a buffer of its own, now that there is room for it."""
        self._count(total)
        self._partial = bytearray(total)
        self._partial[: len(first)] = first
        self._filled = len(first)

    def _refuse_message(self, total: int, correlation: int, kind: int, header_size: int) -> bool:
        """Answer a request that cannot be taken; False if the connection cannot go on."""
        limit = self._server.broker.config.max_message_bytes
        is_garbage = total < PREFIX_SIZE + header_size or total > DRAIN_LIMIT or kind not in _KINDS
        if is_garbage or not self.greeted:
            self._refuse_connection(
                BadRequest(f"a message of {total} bytes and kind {kind} with a header of {header_size}")
            )
            return False
        self._send(
            encode_failure(
                correlation, MessageTooLarge(f"a request of {total} bytes is over the limit of {limit}")
            )
        )
        return True

    def _refuse_connection(self, error: IsterError) -> None:
        log.warning("connection refused: %s", error.message, extra={"fields": {"peer": self.peer}})
        self.flush()
        self._transport.write(encode_failure(0, error))
        self._transport.close()
        self._closed = True

    def _handle(
        self,
        data: bytearray | memoryview,
        start: int,
        total: int,
        correlation: int,
        kind: int,
        header_size: int,
        *,
        owned: bool = False,
    ) -> None:
        """One whole request lies in `data`."""
        header_end = start + PREFIX_SIZE + header_size
        header = bytes(data[start + PREFIX_SIZE : header_end])
        end = start + total
        try:
            if kind == _APPEND and self.greeted:
                # A frame in the shared scratch must be copied; a request's own buffer is kept as it is.
                view = memoryview(data)[header_end:end]
                frame: bytearray | memoryview = view if owned else bytearray(view)
                self._append(correlation, header, frame)
            elif kind != _HELLO and not self.greeted:
                raise BadRequest(f"the first request is of kind {kind}, a hello was expected")
            elif kind == _HELLO:
                self._server.hello(self, correlation, header)  # at once: requests may follow right behind it
            else:
                self._start(self._server.answer(self, kind, correlation, header), correlation)
        except IsterError as error:
            self._send(encode_failure(correlation, error))
            if not self.greeted and kind != _HELLO:
                self._refuse_connection(error)
        except Exception as error:
            log.exception("request of kind %d failed", kind)
            self._send(encode_failure(correlation, IsterError(f"{type(error).__name__}: {error}")))

    def _append(self, correlation: int, header: bytes, frame: bytearray | memoryview) -> None:
        """The hot path: check, append, remember who to answer."""
        found = admit(frame)
        server = self._server
        self._tokens = token = self._tokens + 1
        size = len(frame)
        self._appends[token] = (correlation, size, found.count)
        self._reserve(size)
        try:
            topic = server.logs.get(header)
            if topic is None:
                server.append(header, frame, found, self, token)
            else:
                topic.append(frame, found, self, token, self.last_received)
        except IsterError:
            del self._appends[token]
            self._reserve(-size)
            raise

    # Answers to appends: `ister.wal.segment.Sink`.

    def appended(self, token: int, base_offset: int, append_time_us: int) -> None:
        correlation, size, count = self._appends.pop(token)
        server = self._server
        server.records_in.value += count
        if self._closed:
            return
        self._reserve(-size)
        self._send(encode_appended(correlation, base_offset, append_time_us))

    def refused(self, token: int, error: IsterError) -> None:
        correlation, size, _ = self._appends.pop(token)
        if self._closed:
            return
        self._reserve(-size)
        self._send(encode_failure(correlation, error))

    def _send(self, answer: bytes) -> None:
        """Gather; all that is gathered goes out in one write at the end of the cycle."""
        if not self._out:
            self._server.will_flush(self)
        self._out.append(answer)

    def flush(self) -> None:
        out, self._out = self._out, []
        if out and not self._transport.is_closing():
            data = out[0] if len(out) == 1 else b"".join(out)
            self._server.bytes_out.value += len(data)
            self._transport.write(data)

    # Answers to everything else.

    def _start(self, work: Coroutine[Any, Any, None], correlation: int) -> None:
        if len(self._tasks) >= MAX_TASKS:
            work.close()
            raise Overloaded(f"{len(self._tasks)} requests of this connection are still being answered")
        task = asyncio.get_running_loop().create_task(self._run(work, correlation))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, work: Coroutine[Any, Any, None], correlation: int) -> None:
        try:
            await self.writable.wait()  # no answer is made for a client that has yet to take earlier ones
            await work
        except IsterError as error:
            self._send(encode_failure(correlation, error))
        except Exception as error:
            log.exception("request failed")
            self._send(encode_failure(correlation, IsterError(f"{type(error).__name__}: {error}")))
        finally:
            work.close()

    def respond(self, correlation: int, header: bytes, payload: list[bytes | bytearray | memoryview]) -> None:
        if self._transport.is_closing():
            return
        self.flush()
        size = sum(map(len, payload))
        prefix = encode_message(correlation, 0, header, size)
        self._server.bytes_out.value += len(prefix) + size
        if size < 16 * 1024:
            self._transport.write(b"".join((prefix, *payload)))
        else:
            self._transport.write(prefix)
            for part in payload:
                self._transport.write(part)

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

        A request that has its buffer is let in: all that have one are within the bound of all together, so
        that each of them can end, and make room, without waiting for another.
        """
        server = self._server
        allowed = self.writable.is_set() if self._partial is not None else self._own_bounds_allow
        if allowed and self._partial is None and not server.has_room(self._announced):
            server.waiting[self] = None
            allowed = False
        else:
            server.waiting.pop(self, None)
        if not allowed:
            if not self._reading_paused:
                self._reading_paused = True
                self._transport.pause_reading()
                server.paused[self] = None
        elif not self._closed:
            self._resume()

    def let_in(self) -> None:
        """The bound of all has room for what this connection waits with."""
        self._steer_reading()

    def _resume(self) -> None:
        if self._announced:
            total, first = self._announced, self._stash
            self._announced, self._stash = 0, b""
            self._begin(total, first)
        if self._reading_paused:
            self._reading_paused = False
            self._server.paused.pop(self, None)
            self._transport.resume_reading()

    def refuse(self, error: IsterError) -> None:
        """The server will not have this connection."""
        self._refuse_connection(error)

    def expire(self, now: float, timeout: float) -> None:
        """Close if a request was begun and then nothing came, or no hello ever did."""
        if self._closed:
            if now - self.last_received > timeout:
                self._transport.abort()  # it was told to go and does not even take its last answers
            return
        unfinished = self._partial is not None or self._stash or self._skip or not self.greeted
        # Who is not read from is not late, unless its own unread answers hold up a request of its own.
        waits_for_us = self._reading_paused and (self._partial is None or self.writable.is_set())
        if unfinished and not waits_for_us and now - self.last_received > timeout:
            self._refuse_connection(
                RequestTimeout(f"nothing came for {timeout:g} s in the middle of a request")
            )

    @property
    def has_no_appends(self) -> bool:
        return not self._appends

    def close(self) -> None:
        self.flush()
        self._transport.close()
