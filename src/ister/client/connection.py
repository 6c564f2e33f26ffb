"""One connection to a broker: requests out, answers in, as many at once as the limits allow.

What can fail: the connection may break at any byte, and then nobody can say which of the unanswered
requests took effect; a broker may fall silent; bytes may be no message at all. In each case the connection
is given up as a whole: every unanswered request fails with `ConnectionFailed` (the one that waited too long
with `RequestTimeout`), each exactly once, and the connection is never used again.

A broker that says nothing is given up long before what it owes is overdue: `silence` finds out.

Requests issued in one turn of the event loop leave in one write, at the end of that turn. An answer that is
too large for the shared buffer is received straight into a buffer of its own, placed so that its frames are
aligned for Arrow.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, Protocol

from ister.addresses import Address
from ister.client.silence import SILENCE_SECONDS, Listening
from ister.errors import BadRequest, ConnectionFailed, IsterError, RequestTimeout
from ister.io.clock import monotonic
from ister.io.network import Network
from ister.protocol.codec import (
    MAX_ANSWER_BYTES,
    PREFIX,
    PREFIX_SIZE,
    SIZE_FIELD,
    Bytes,
    decode_failure,
    decode_header,
    encode_header,
    encode_message,
    encode_preamble,
)
from ister.protocol.messages import Hello, HelloAnswer, Kind

_BUFFER_BYTES: Final = 256 * 1024
_OWN_BUFFER_FROM: Final = 64 * 1024
"""An answer of at least this size that has not arrived in full gets a buffer of its own."""
MAX_REQUESTS: Final = 1024
_FIRST_IN_FLIGHT_BYTES: Final = 1024 * 1024
"""Until the broker has named its own limit."""
_NEVER_S: Final = 3600.0
"""The time of a request that somebody else watches."""


class Answer(NamedTuple):
    header: bytes
    payload: Bytes


class Sink(Protocol):
    """Who takes an answer. Exactly one of the two is called, once, from the event loop."""

    def answered(self, header: bytes, payload: Bytes) -> None: ...

    def failed(self, error: IsterError) -> None: ...


class _Waiter:
    """A sink for a caller that simply awaits."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Answer]) -> None:
        self.future = future

    def answered(self, header: bytes, payload: Bytes) -> None:
        if not self.future.done():
            self.future.set_result(Answer(header, payload))

    def failed(self, error: IsterError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class _Nobody:
    """Whatever the answer is: that there is one was the question."""

    def answered(self, header: bytes, payload: Bytes) -> None: ...

    def failed(self, error: IsterError) -> None: ...


_Pending = tuple[Sink, int, float, float]
"""Who waits, the size of the request's payload, when the answer is overdue, when silence says something."""


class Connection(asyncio.BufferedProtocol):
    """Used from one event loop. Made by `open_connection`, which also greets the broker."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.hello: HelloAnswer | None = None
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._error: IsterError | None = None
        self._pending: dict[int, _Pending] = {}
        self._pending_bytes = 0
        self._max_bytes = _FIRST_IN_FLIGHT_BYTES
        self._correlation = 0
        self._out: list[Bytes] = []
        self._flush_due = False
        self._paused = False
        self._room_waiters: deque[Callable[[], None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._listening: Listening | None = None
        self._question = b""
        self.heard_at = monotonic()
        """When the last bytes came."""
        self.on_silence: Callable[[], None] = lambda: None
        """Called if it is given up because nobody is there any more."""
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._own: memoryview | None = None
        self._own_filled = 0

    # Sending.

    @property
    def is_open(self) -> bool:
        return self._error is None and self._transport is not None

    @property
    def has_room(self) -> bool:
        """Whether one more request keeps within the bounds on requests, bytes and the socket."""
        return (
            not self._paused
            and len(self._pending) < MAX_REQUESTS
            and (self._pending_bytes < self._max_bytes or not self._pending)
        )

    def when_room(self, call: Callable[[], None]) -> None:
        """Call once as soon as there is room, or the connection has failed."""
        self._room_waiters.append(call)

    def send(
        self, kind: int, header: bytes, payload: Bytes, sink: Sink, timeout_s: float, wait_s: float = 0.0
    ) -> None:
        """Queue a request. The caller has asked `has_room`; order of calls is order on the wire. `wait_s` is
        how long the broker was asked to wait by itself."""
        if self._error is not None:
            sink.failed(self._lost())
            return
        self._correlation = correlation = (self._correlation + 1) & 0xFFFFFFFF
        size = len(payload)
        self._out.append(encode_message(correlation, kind, header, size))
        if size:
            self._out.append(payload)
        now = monotonic()
        deadline = now + timeout_s
        self._pending[correlation] = (sink, size, deadline, now + wait_s + SILENCE_SECONDS)
        self._pending_bytes += size
        if self._timer is None or deadline < self._timer.when():
            self._watch(deadline)
        if len(self._pending) == 1 and self._listening is not None:
            self._listening.begin()
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    async def request(
        self,
        kind: int,
        header: bytes,
        payload: Bytes = b"",
        *,
        timeout_s: float = 30.0,
        wait_s: float = 0.0,
    ) -> Answer:
        while not self.has_room and self._error is None:
            room = self._loop.create_future()
            self.when_room(lambda room=room: None if room.done() else room.set_result(None))  # type: ignore[misc]
            await room
        future: asyncio.Future[Answer] = self._loop.create_future()
        self.send(kind, header, payload, _Waiter(future), timeout_s, wait_s)
        return await future

    def _flush(self) -> None:
        self._flush_due = False
        if self._paused or self._transport is None or not self._out:
            return  # when writing resumes, `resume_writing` comes back here
        out, self._out = self._out, []
        self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()
        self._wake_room()

    def _wake_room(self) -> None:
        waiters = self._room_waiters
        while waiters and (self.has_room or self._error is not None):
            waiters.popleft()()

    # Time.

    def _watch(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._check_deadlines)

    def _check_deadlines(self) -> None:
        """One timer for all requests: it stands at or before the earliest deadline."""
        self._timer = None
        if not self._pending:
            return
        earliest = min(deadline for _, _, deadline, _ in self._pending.values())
        if earliest > monotonic():
            self._watch(earliest)
            return
        late = [number for number, pending in self._pending.items() if pending[2] <= earliest]
        sinks = [self._pending.pop(number)[0] for number in late]
        # Nobody can say what became of the request, so what follows it on this connection is in doubt too.
        self._break(ConnectionFailed(f"{self.address} left a request unanswered for too long"))
        for sink in sinks:
            sink.failed(RequestTimeout(f"{self.address} did not answer a request in time"))

    # Silence.

    def first_due(self) -> float | None:
        """From when on silence says something; None if nothing is awaited."""
        return min((due for _, _, _, due in self._pending.values()), default=None)

    def ask(self, due: float) -> None:
        """Greet the broker once more, which it answers at once."""
        wait_s = due - monotonic() - SILENCE_SECONDS
        self.send(Kind.HELLO, self._question, b"", _Nobody(), _NEVER_S, wait_s)

    def fell_silent(self, why: str) -> None:
        if self._error is None:
            self.on_silence()
            self._break(ConnectionFailed(f"{self.address} has fallen silent, and cannot be reached: {why}"))

    # Receiving.

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._own is not None:
            return self._own[self._own_filled :]
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_at = monotonic()
        try:
            if self._own is None:
                self._filled += nbytes
                self._deliver_all()
            else:
                self._own_filled += nbytes
                if self._own_filled == len(self._own):
                    message, self._own = self._own, None
                    self._deliver_own(message)
        except BadRequest as error:
            self._break(ConnectionFailed(f"{self.address} sent what is no message: {error}"))
        if self._room_waiters:
            self._wake_room()

    def _deliver_all(self) -> None:
        """Hand out every whole message in the shared buffer; keep the rest at its front."""
        buffer, filled, position = self._buffer, self._filled, 0
        while filled - position >= PREFIX_SIZE:
            size, correlation, kind, header_size = PREFIX.unpack_from(buffer, position)
            end = position + SIZE_FIELD + size
            start = position + PREFIX_SIZE
            if start + header_size > end or size > MAX_ANSWER_BYTES:
                raise BadRequest(f"a message of {size} bytes with a header of {header_size}")
            if end > filled:
                if end - position >= _OWN_BUFFER_FROM:
                    self._move_to_own(position, end - position, header_size)
                    return
                break
            body = start + header_size
            header = bytes(self._view[start:body])
            payload = bytes(self._view[body:end]) if end > body else b""
            position = end
            self._deliver(correlation, kind, header, payload)
        rest = filled - position
        if position and rest:
            buffer[:rest] = buffer[position:filled]
        self._filled = rest

    def _move_to_own(self, position: int, size: int, header_size: int) -> None:
        # The payload starts at a multiple of 8, and so does every frame and column in it.
        padding = -(PREFIX_SIZE + header_size) % 8
        own = memoryview(bytearray(padding + size))[padding:]
        have = self._filled - position
        own[:have] = self._view[position : self._filled]
        self._own, self._own_filled, self._filled = own, have, 0

    def _deliver_own(self, message: memoryview) -> None:
        _, correlation, kind, header_size = PREFIX.unpack_from(message)
        body = PREFIX_SIZE + header_size
        self._deliver(correlation, kind, bytes(message[PREFIX_SIZE:body]), message[body:])

    def _deliver(self, correlation: int, kind: int, header: bytes, payload: Bytes) -> None:
        pending = self._pending.pop(correlation, None)
        if pending is None and correlation == 0 and kind:
            self._dismissed(decode_failure(kind, header))
            return
        if pending is None:
            raise BadRequest(f"an answer to request {correlation}, which is not open")
        sink, size, _, _ = pending
        self._pending_bytes -= size
        if kind == 0:
            sink.answered(header, payload)
            return
        try:
            error = decode_failure(kind, header)
        except BadRequest as unreadable:
            error = ConnectionFailed(f"{self.address} sent error {kind} in no readable form: {unreadable}")
        sink.failed(error)

    # The end.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        reason = "the broker closed it" if exc is None else str(exc)
        self._break(ConnectionFailed(f"connection to {self.address} was lost: {reason}"))

    def close(self) -> None:
        self._break(ConnectionFailed(f"connection to {self.address} was closed by this client"))

    def _break(self, error: IsterError) -> None:
        if self._error is not None:
            return
        self._error = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._listening is not None:
            self._listening.end()
        if self._transport is not None:
            self._transport.abort()
        pending, self._pending = self._pending, {}
        self._pending_bytes = 0
        self._out = []
        for sink, _, _, _ in pending.values():
            sink.failed(self._lost())
        self._wake_room()

    def _dismissed(self, error: IsterError) -> None:
        """The other side says why it closes: to one that it never greeted, as what it is; else what was asked
        before is in doubt, as with any connection that breaks."""
        message = f"{self.address} closed the connection: {error.message}"
        kind = type(error) if self.hello is None else ConnectionFailed
        self._break(kind(message, hint=error.hint))

    def _lost(self) -> IsterError:
        # An own exception for each waiter: a traceback must not gather those of strangers.
        return self._error.again() if self._error is not None else ConnectionFailed("not connected")

    def greeted(
        self, hello: Hello, answer: HelloAnswer, find_there: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        self.hello = answer
        self._question = encode_header(hello)
        self._listening = Listening(self, find_there)
        self._max_bytes = max(answer.max_in_flight_bytes, 1)

    def greet(self, hello: Hello) -> asyncio.Future[Answer]:
        """Preamble and hello in one write; the future has the broker's answer."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._out.append(encode_preamble())
        self.send(Kind.HELLO, encode_header(hello), b"", _Waiter(future), _NEVER_S)
        return future


async def open_connection(
    network: Network, address: Address, hello: Hello, *, timeout_s: float
) -> Connection:
    """Connect and greet; raises `ConnectionFailed`, or what the broker has against this client."""
    connection: Connection | None = None
    try:
        async with asyncio.timeout(timeout_s):
            made = await network.connect(lambda: Connection(address), address.host, address.port)
            assert isinstance(made, Connection)
            connection = made
            answer = await connection.greet(hello)
            connection.greeted(
                hello,
                decode_header(HelloAnswer, answer.header),
                lambda: _find_there(network, address, hello),
            )
            return connection
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, TimeoutError):
            raise ConnectionFailed(f"{address} did not answer within {timeout_s:g} s") from error
        raise


async def _find_there(network: Network, address: Address, hello: Hello) -> None:
    """Returns if a broker answers at that address, with whatever; else raises `ConnectionFailed`."""
    try:
        async with asyncio.timeout(SILENCE_SECONDS):
            made = await network.connect(lambda: Connection(address), address.host, address.port)
            assert isinstance(made, Connection)
            try:
                await made.greet(hello)
            except IsterError:
                return
            finally:
                made.close()
    except TimeoutError as error:
        raise ConnectionFailed(f"it did not answer within {SILENCE_SECONDS:g} s") from error
