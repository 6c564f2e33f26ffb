"""Messages over one connection, for both ends: `size, correlation, kind, header_size, header, payload`.

A subclass says what to do with a message. Bytes in are gathered into whole messages within a bound; messages
out that are sent in one turn of the event loop leave in one write. A peer that does not take what it is sent
is felt by `is_congested`; what to drop or hold back then is the subclass's decision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from ister.errors import BadRequest, IsterError, MessageTooLarge
from ister.protocol.codec import PREFIX, PREFIX_SIZE, SIZE_FIELD, Bytes, encode_message

_READ_BYTES = 64 * 1024


class MessageStream(asyncio.BufferedProtocol):
    """One connection. `preamble` is what the other side sends first, if it does; checked by the subclass."""

    def __init__(self, max_bytes: int, preamble_size: int = 0) -> None:
        self.max_bytes = max_bytes
        """The largest message that is taken; a subclass may change it when it knows who is there."""
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._preamble_size = preamble_size
        self._buffer = bytearray(_READ_BYTES)
        self._filled = 0
        self._out: list[Bytes] = []
        self._flush_due = False
        self.is_congested = False
        self.is_closed = False
        self._is_closing = False
        self.peer = "?"

    # For the subclass to say.

    def opened(self) -> None: ...

    def preamble(self, data: bytes) -> None:
        """The first bytes; raises if they are not what is spoken here."""

    def message(self, correlation: int, kind: int, header: bytes, payload: bytes) -> None:
        raise NotImplementedError

    def refused(self, error: IsterError) -> None:
        """What came was no message; the connection is about to close."""

    def lost(self) -> None: ...

    # Sending.

    def send(self, correlation: int, kind: int, header: bytes, payload: Bytes = b"") -> None:
        self.send_raw(encode_message(correlation, kind, header, len(payload)))
        if payload:
            self._out.append(payload)

    def send_raw(self, data: bytes) -> None:
        if self.is_closed:
            return
        self._out.append(data)
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def send_at_once(self, prefix: bytes, parts: Sequence[Bytes]) -> None:
        """Hand it to the transport now, with what was gathered before it."""
        if not self.is_closed:
            self._out.append(prefix)
            self._out += parts
            self._flush()

    def _flush(self) -> None:
        self._flush_due = False
        out, self._out = self._out, []
        if out and not self.is_closed:
            self._transport.write(b"".join(out))

    def abort(self) -> None:
        """Close without a word: the other side does not take any."""
        if not self.is_closed and self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """What was sent still leaves; what came and was not looked at is dropped."""
        if not self.is_closed and self._transport is not None:
            self._is_closing = True
            self._flush()
            self._transport.close()

    # Reading.

    def pause_reading(self) -> None:
        if not self.is_closed and not self._is_closing:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.is_closed and not self._is_closing:
            self._transport.resume_reading()

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)
        self.opened()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self.lost()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.is_congested = True

    def resume_writing(self) -> None:
        self.is_congested = False

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._filled == len(self._buffer):
            self._buffer = self._buffer + bytes(len(self._buffer))  # a new one: views of the old may be about
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_closing:
            return
        self._filled += nbytes
        try:
            self._deliver()
        except IsterError as error:
            self.refused(error)
            self.close()

    def _deliver(self) -> None:
        position = 0
        if self._preamble_size:
            if self._filled < self._preamble_size:
                return
            position, self._preamble_size = self._preamble_size, 0
            self.preamble(bytes(self._buffer[:position]))
        while not self._is_closing and self._filled - position >= PREFIX_SIZE:
            size, correlation, kind, header_size = PREFIX.unpack_from(self._buffer, position)
            total = size + SIZE_FIELD
            if total > self.max_bytes:
                raise MessageTooLarge(f"a message of {total} bytes from {self.peer}, over {self.max_bytes}")
            if total < PREFIX_SIZE + header_size:
                raise BadRequest(
                    f"a message of {total} bytes with a header of {header_size} from {self.peer}"
                )
            if self._filled - position < total:
                break
            start = position + PREFIX_SIZE
            with memoryview(self._buffer) as view:
                header = bytes(view[start : start + header_size])
                payload = bytes(view[start + header_size : position + total])
            position += total
            self.message(correlation, kind, header, payload)
        rest = self._filled - position
        if position:
            self._buffer[:rest] = self._buffer[position : self._filled]
            self._filled = rest
            if len(self._buffer) > _READ_BYTES and rest < _READ_BYTES:
                self._buffer = self._buffer[:_READ_BYTES]
