"""One simulated connection: two transports and a pipe (`ister.testing.pipe`) in each direction.

What does not fit into the pipe waits in the sender's buffer, which pauses the sending protocol as
asyncio's transports do. The callbacks of each protocol run in the context (`contextvars`) of the task
that listened or connected, as on a real loop.

The end of a connection, for each protocol exactly one `connection_lost`, or none if its process was
killed:
- `close`: what was written is delivered, then the peer sees `eof_received`. Locally it is over as soon
  as everything has left the buffer. If the peer goes on sending to it, it is told so by a reset, which
  may overtake the last bytes: so does TCP.
- `abort`, `reset`, a killed peer: the other side sees `ConnectionResetError`; bytes on the way may be
  lost.
- bytes or acknowledgements held too long: `TimeoutError` on the sender's side.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ister.io.network import ProtocolFactory
from ister.testing.pipe import Pipe

if TYPE_CHECKING:
    from ister.testing.network import SimNetwork

Address = tuple[str, int]
_Data = bytes | bytearray | memoryview

_HIGH_WATER_BYTES = 64 * 1024


class StreamTransport(asyncio.Transport):
    """One end of a connection, in asyncio's terms, driving a `BufferedProtocol`."""

    def __init__(self, stream: Stream, name: Address, peer: Address, context: contextvars.Context) -> None:
        super().__init__({"sockname": name, "peername": peer})
        self.host = name[0]
        self.outgoing: Pipe
        self.incoming: Pipe
        self.dead = False  # no callback to the protocol any more
        self.silent = False  # and no answer to the peer either
        self._stream = stream
        self.context = context
        self._loop = asyncio.get_running_loop()
        self._protocol: asyncio.BufferedProtocol | None = None
        self._closing = False
        self._reading = True
        self._paused_protocol = False
        self._high, self._low = _HIGH_WATER_BYTES, _HIGH_WATER_BYTES // 4
        self._buffer: deque[bytes] = deque()
        self._buffer_size = 0
        self._pump_scheduled = False

    # What protocols call.

    def write(self, data: _Data) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
        if not data or self._closing or self.dead:
            return
        copied = bytes(data)  # the caller may use its buffer again at once
        self._buffer.append(copied)
        self._buffer_size += len(copied)
        self.pump_soon()
        if self._buffer_size > self._high and not self._paused_protocol:
            self._paused_protocol = True
            self._tell("pause_writing")

    def writelines(self, list_of_data: Iterable[_Data]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if self._closing or self.dead:
            return
        self._closing = True
        self.pump_soon()

    def abort(self) -> None:
        if not self.dead:
            self._stream.network.note(f"abort {self._stream.number} {self.host}")
            self.lose(None)
            self.outgoing.send_reset()

    def is_closing(self) -> bool:
        return self._closing or self.dead

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading and not self.is_closing():
            self._reading = True
            self._loop.call_soon(self.incoming.hand_over, context=self.context)

    def is_reading(self) -> bool:
        return self._reading and not self.is_closing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) must be >= low ({low}) must be >= 0")
        self._high, self._low = high, low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._buffer_size

    def can_write_eof(self) -> bool:
        return False

    def write_eof(self) -> None:
        raise NotImplementedError("this transport cannot close one direction only")

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.BufferedProtocol), protocol
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    # What the stream and its pipes call.

    def attach(self, protocol: asyncio.BufferedProtocol) -> None:
        self._protocol = protocol
        try:
            protocol.connection_made(self)
        except Exception as error:
            self._fail(error)
        # Not at once: whoever connected comes first.
        self._loop.call_soon(self.incoming.hand_over, context=self.context)

    @property
    def takes_bytes(self) -> bool:
        return self._reading and self._protocol is not None and not self.is_closing()

    def feed(self, data: memoryview) -> int:
        """Give the protocol as much as it takes; how much that was."""
        protocol = self._protocol
        assert protocol is not None
        taken = 0
        try:
            while taken < len(data) and self.takes_bytes:
                buffer = memoryview(protocol.get_buffer(len(data) - taken)).cast("B")
                count = min(len(buffer), len(data) - taken)
                if count == 0:
                    raise RuntimeError("get_buffer() returned an empty buffer")
                buffer[:count] = data[taken : taken + count]
                taken += count
                protocol.buffer_updated(count)
        except Exception as error:
            self._fail(error)
        return taken

    def feed_eof(self) -> None:
        if self._protocol is None or self.is_closing():
            return
        try:
            keep_open = self._protocol.eof_received()
        except Exception as error:
            self._fail(error)
            return
        if not keep_open:
            self.close()

    def lose(self, error: Exception | None) -> None:
        """The connection is over on this side."""
        if self.dead:
            return
        self.dead = self._closing = True
        self._drop_buffer()
        if self._protocol is not None:
            self._loop.call_soon(self._protocol.connection_lost, error, context=self.context)
        self._stream.ended()

    def die(self, *, silent: bool) -> None:
        """The process on this side is gone: nobody is told anything here."""
        self.dead = self._closing = True
        self.silent = silent
        self._drop_buffer()
        self._stream.ended()

    def _pump(self) -> None:
        """Move what fits from the buffer onto the wire."""
        self._pump_scheduled = False
        if self.dead:
            return
        room = self.outgoing.room
        if room > 0 and self._buffer:
            whole = self._buffer.popleft() if len(self._buffer) == 1 else b"".join(self._buffer)
            packet, rest = whole[:room], whole[room:]
            self._drop_buffer()
            if rest:
                self._buffer.append(rest)
                self._buffer_size = len(rest)
            self.outgoing.send(packet)
        if self._paused_protocol and self._buffer_size <= self._low:
            self._paused_protocol = False
            self._tell("resume_writing")
        if self._closing and not self._buffer:
            self.outgoing.send(b"")
            self.lose(None)

    @property
    def waits_for_room(self) -> bool:
        """Whether there is something to do when the receiver has taken more."""
        return bool(self._buffer) or self._paused_protocol or self._closing

    def pump_soon(self) -> None:
        # One packet for all that is written in one turn of the loop.
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump, context=self.context)

    def _drop_buffer(self) -> None:
        self._buffer.clear()
        self._buffer_size = 0

    def _tell(self, callback: str) -> None:
        if self._protocol is not None:
            try:
                getattr(self._protocol, callback)()
            except Exception as error:
                self._report(error)

    def _fail(self, error: Exception) -> None:
        self._report(error)
        self.lose(error)
        self.outgoing.send_reset()

    def _report(self, error: Exception) -> None:
        context: dict[str, Any] = {"message": "a protocol failed", "exception": error, "transport": self}
        self._loop.call_exception_handler(context)


class Stream:
    """One connection between two hosts."""

    def __init__(
        self,
        network: SimNetwork,
        number: int,
        client: Address,
        server: Address,
        server_context: contextvars.Context,
    ) -> None:
        self.network = network
        self.number = number
        self.client = StreamTransport(self, client, server, contextvars.copy_context())
        self.server = StreamTransport(self, server, client, server_context.copy())
        there = Pipe(self, self.client, self.server)
        back = Pipe(self, self.server, self.client)
        self.client.outgoing = self.server.incoming = there
        self.server.outgoing = self.client.incoming = back

    def accept(self, factory: ProtocolFactory) -> None:
        """The listening side's part. It is called on its own, so its errors are not the client's."""
        if not self.server.dead:
            self.server.attach(factory())

    def between(self, a: str, b: str) -> bool:
        return (self.client.host, self.server.host) in ((a, b), (b, a))

    def reset(self) -> None:
        self.network.note(f"reset {self.number}")
        self.client.outgoing.drop()
        self.server.outgoing.drop()
        self.client.lose(ConnectionResetError("connection reset by peer"))
        self.server.lose(ConnectionResetError("connection reset by peer"))

    def kill(self, host: str, *, silent: bool) -> None:
        for end in (self.client, self.server):
            if end.host == host and not end.dead:
                end.die(silent=silent)
                if silent:
                    continue
                end.outgoing.send_reset()

    def heal(self) -> None:
        self.client.outgoing.heal()
        self.server.outgoing.heal()

    def ended(self) -> None:
        if self.client.dead and self.server.dead:
            self.client.outgoing.stop_waiting()
            self.server.outgoing.stop_waiting()
            self.network.forget(self)
