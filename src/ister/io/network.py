"""The network seam: listening and connecting, in asyncio's own terms.

Both sides hand out asyncio transports and drive `asyncio.BufferedProtocol`s, so that the protocol
code is the same in production and in simulation and pays nothing for the seam.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from typing import Protocol

from ister.errors import AddressInUse, ConfigError, ConnectionFailed

ProtocolFactory = Callable[[], asyncio.BufferedProtocol]

PATIENCE_SECONDS = 8.0
"""So long it may take to make a connection. An idle one to a machine that is gone breaks after it, too."""


class Listener(Protocol):
    @property
    def address(self) -> tuple[str, int]:
        """Where it listens; the port is the real one when 0 was asked for."""
        ...

    def close(self) -> None:
        """Stop accepting. Connections that exist go on."""
        ...


class Network(Protocol):
    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listener:
        """Accept connections; raises `AddressInUse`."""
        ...

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.BufferedProtocol:
        """Open one connection and return its protocol; raises `ConnectionFailed`."""
        ...


class _TcpListener:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        name = server.sockets[0].getsockname()
        self._address = (str(name[0]), int(name[1]))

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    def close(self) -> None:
        self._server.close()


class TcpNetwork:
    """Real sockets on the running loop. Nagle's delay is off (asyncio's default for TCP)."""

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listener:
        try:
            server = await asyncio.get_running_loop().create_server(factory, host, port, backlog=1024)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise AddressInUse(f"{host}:{port} is already in use by another process") from error
            raise ConfigError(
                f"cannot listen on {host}:{port}: {_reason(error)}",
                hint="Choose an address of this machine with --client-host and a port that you may use.",
            ) from error
        return _TcpListener(server)

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.BufferedProtocol:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                transport, protocol = await asyncio.get_running_loop().create_connection(factory, host, port)
        except TimeoutError as error:
            raise ConnectionFailed(
                f"cannot connect to {host}:{port}: it did not answer in {PATIENCE_SECONDS:g} s"
            ) from error
        except OSError as error:
            raise ConnectionFailed(f"cannot connect to {host}:{port}: {_reason(error)}") from error
        _set_patience(transport.get_extra_info("socket"))
        return protocol


def _set_patience(sock: socket.socket) -> None:
    """Where the system can: silence ends a connection on which nothing is under way. (Not bytes that nobody
    acknowledges: a broker that reads nothing for a while looks the same to the system.)"""
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, int(PATIENCE_SECONDS / 2))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, int(PATIENCE_SECONDS / 2))


def _reason(error: OSError) -> str:
    """The system's own words; asyncio puts others, with addresses in them, over those."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror or error)
