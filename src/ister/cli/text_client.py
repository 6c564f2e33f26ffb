"""A client of the text protocol on a plain, blocking socket: one command, one reply."""

from __future__ import annotations

import os
import select
import socket
import struct
from typing import Final

from ister.errors import BadRequest, ConnectionFailed, IsterError, RequestTimeout
from ister.protocol.text import (
    EMPTY,
    ERR,
    LENGTH,
    LENGTH_SIZE,
    MAX_FRAME_BYTES,
    OK,
    encode_frame,
    error_reply,
)

CONNECT_SECONDS: Final = 5.0
REPLY_SECONDS: Final = 30.0
DOUBT_SECONDS: Final = 2.0
"""Who has not answered a first command for so long may be no broker: it is looked at what else it is."""
MAX_REPLY_BYTES: Final = 512 << 20
"""Whoever announces more does not speak this protocol."""


_WHERE_TO: Final = (
    "Give a broker's port for clients with --bootstrap: 9091 unless it was set; `ister cluster status` shows "
    "every node's."
)


class TextClient:
    """Connects when asked something, and again after the connection broke."""

    def __init__(self, bootstrap: str) -> None:
        from ister.client.routing import parse_bootstrap

        self._addresses = parse_bootstrap(bootstrap)
        self._socket: socket.socket | None = None
        self.peer = bootstrap
        self._is_known = False
        """Whether what is there has answered as a broker does."""

    def connect(self) -> None:
        """To the first address that answers; raises `ConnectionFailed` if none does."""
        failures = []
        for address in self._addresses:
            try:
                self._socket = socket.create_connection((address.host, address.port), CONNECT_SECONDS)
            except OSError as error:
                failures.append(f"{address.host}:{address.port}: {_reason(error)}")
                continue
            self._socket.settimeout(REPLY_SECONDS)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.peer = f"{address.host}:{address.port}"
            return
        raise ConnectionFailed(f"cannot connect to {'; '.join(failures)}")

    def ask(self, command: bytes) -> bytes:
        """The reply to one command. After an error nobody knows whether the command was carried out."""
        if len(command) > MAX_FRAME_BYTES:
            return error_reply(
                f"invalid frame length: {len(command)} bytes, allowed are 1 to {MAX_FRAME_BYTES}. "
                "`ister put` takes larger records"
            )
        if self._socket is None:
            self.connect()
        assert self._socket is not None
        try:
            return self._exchange(self._socket, command)
        except TimeoutError as error:
            self.close()
            raise RequestTimeout(f"{self.peer} did not answer within {REPLY_SECONDS:.0f} s") from error
        except OSError as error:
            self.close()
            raise ConnectionFailed(f"the connection to {self.peer} broke: {_reason(error)}") from error
        except BaseException:
            self.close()  # a reply that comes later must not be taken for the next command's
            raise

    def _exchange(self, connection: socket.socket, command: bytes) -> bytes:
        connection.sendall(encode_frame(command))
        if not self._is_known:
            self._doubt(connection)
        (size,) = LENGTH.unpack(self._exactly(connection, LENGTH_SIZE))
        if size > MAX_REPLY_BYTES:
            raise BadRequest(
                f"{self.peer} does not speak the text protocol: it announced a reply of {size} bytes",
                hint=_WHERE_TO,
            )
        reply = self._exactly(connection, size)
        if not reply.startswith((OK, EMPTY, ERR, b"{")):
            raise self._other_language(reply)
        self._is_known = True
        return reply

    def _doubt(self, connection: socket.socket) -> None:
        """Wait a little for the first answer; raises if what is there turns out to be something else."""
        readable, _, _ = select.select([connection], [], [], DOUBT_SECONDS)
        host, port = connection.getpeername()[:2]
        if not readable and _speaks_http(host, port):
            raise ConnectionFailed(
                f"{self.peer} speaks HTTP, as the port for metrics does, and is no broker's port for clients",
                hint=_WHERE_TO,
            )

    def _other_language(self, reply: bytes) -> IsterError:
        """The reason that a broker's other port gives, or that there is none."""
        from ister.protocol.codec import PREFIX, PREFIX_SIZE, decode_failure

        try:
            _, _, kind, header_size = PREFIX.unpack_from(LENGTH.pack(len(reply)) + reply)
            error = decode_failure(kind, reply[PREFIX_SIZE - LENGTH_SIZE :][:header_size])
        except (IsterError, struct.error):
            return BadRequest(
                f"{self.peer} does not speak the text protocol: its reply begins with {reply[:20]!r}",
                hint=_WHERE_TO,
            )
        return type(error)(f"{self.peer} refused the connection: {error.message}", hint=error.hint)

    def _exactly(self, connection: socket.socket, count: int) -> bytes:
        pieces, missing = [], count
        while missing:
            piece = connection.recv(min(missing, 1 << 20))
            if not piece:
                raise ConnectionFailed(f"{self.peer} closed the connection")
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _speaks_http(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), DOUBT_SECONDS) as connection:
            connection.settimeout(DOUBT_SECONDS)
            connection.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
            return connection.recv(5) == b"HTTP/"
    except OSError:
        return False


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
