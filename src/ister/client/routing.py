"""Which address serves a topic, and the connection to it. The one place in the client that knows.

With one broker the answer is the bootstrap addresses, tried in turn from the one that last worked; a
`NotLeader` moves on to the next. A cluster's map of leaders will be kept here and nowhere else.
"""

from __future__ import annotations

import asyncio

from ister.client.connection import Address, Connection, open_connection
from ister.errors import ConfigError, ConnectionFailed, IsterError, LogClosed, NotLeader
from ister.io.network import Network
from ister.protocol.messages import Hello

DEFAULT_PORT = 9091


def parse_bootstrap(bootstrap: str) -> list[Address]:
    """`host:port[,host:port...]`; a port that is not given is the default one."""
    addresses = [_parse_address(part.strip()) for part in bootstrap.split(",") if part.strip()]
    if not addresses:
        raise ConfigError(f"no address in {bootstrap!r}", hint="Give host:port, or several with commas.")
    return addresses


def _parse_address(text: str) -> Address:
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        port = rest.removeprefix(":") if closed else "?"
    elif text.count(":") > 1:
        raise ConfigError(f"{text!r} is no address", hint="Write an IPv6 address as [host]:port.")
    else:
        host, _, port = text.partition(":")
    number = int(port) if port.isdecimal() else -1 if port else DEFAULT_PORT
    if not host or not 0 < number < 65536:
        raise ConfigError(f"{text!r} is no address", hint="Give host:port, for example 127.0.0.1:9091.")
    return Address(host, number)


class Routes:
    """Connections by topic, opened when needed and shared by all that go the same way."""

    def __init__(self, bootstrap: str, network: Network, *, client: str, connect_timeout_s: float) -> None:
        self._addresses = parse_bootstrap(bootstrap)
        self._network = network
        self._client = client
        self._connect_timeout_s = connect_timeout_s
        self._preferred = 0
        self._cluster_id = ""
        self._connection: Connection | None = None
        self._opening: asyncio.Task[Connection] | None = None
        self._closed = False

    def ready(self, topic: str | None) -> Connection | None:
        """The open connection that serves the topic, if there is one right now."""
        connection = self._connection
        return connection if connection is not None and connection.is_open else None

    async def connection(self, topic: str | None) -> Connection:
        """The connection that serves the topic; raises the last error when no address answers."""
        ready = self.ready(topic)
        if ready is not None:
            return ready
        if self._closed:
            raise LogClosed("this log is closed")
        opening = self._opening
        if opening is None:
            opening = self._opening = asyncio.get_running_loop().create_task(self._open())
            opening.add_done_callback(self._opened)
        # Others may be waiting for the same attempt: one that is cancelled must not take it along.
        await asyncio.wait([opening])
        if opening.cancelled():
            raise ConnectionFailed("the log was closed while it connected", hint="Call ister.connect again.")
        error = opening.exception()
        if isinstance(error, IsterError):
            raise error.again()
        return opening.result()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def failed(self, topic: str | None, error: IsterError) -> None:
        """Learn from a failed request where not to go next."""
        if isinstance(error, NotLeader) and len(self._addresses) > 1:
            self._preferred = (self._preferred + 1) % len(self._addresses)
            if self._connection is not None:
                self._connection.close()

    async def close(self) -> None:
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            self._connection.close()
        await asyncio.sleep(0)  # the transport tells the protocol in the next turn

    def _opened(self, task: asyncio.Task[Connection]) -> None:
        self._opening = None
        if not task.cancelled():
            task.exception()  # those who await it are told; with none of them left, nobody needs to be

    async def _open(self) -> Connection:
        last: IsterError = ConnectionFailed("no address was tried")
        for turn in range(len(self._addresses)):
            at = (self._preferred + turn) % len(self._addresses)
            hello = Hello(self._client, self._cluster_id)
            try:
                connection = await open_connection(
                    self._network, self._addresses[at], hello, timeout_s=self._connect_timeout_s
                )
            except IsterError as error:
                last = error
                continue
            self._preferred, self._connection = at, connection
            if connection.hello is not None:
                self._cluster_id = connection.hello.cluster_id
            return connection
        if len(self._addresses) > 1 and isinstance(last, ConnectionFailed):
            tried = ", ".join(map(str, self._addresses))
            raise ConnectionFailed(
                f"none of {tried} can be reached; the last error: {last.message}"
            ) from last
        raise last
