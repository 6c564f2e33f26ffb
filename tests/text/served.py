"""A small cluster behind real sockets, in a thread, and a client as Walrus's documents have it."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from random import Random
from types import TracebackType
from typing import Any, TypeVar, cast

from ister.broker.text.session import TextSession
from tests.text.fakes import FakeCluster, FakeNode

T = TypeVar("T")
PATIENCE_S = 30


class Clients:
    """How many are connected."""

    def __init__(self) -> None:
        self.count = 0
        self.transports: list[asyncio.Transport] = []
        self.changed = asyncio.Condition()

    async def change(self, by: int) -> None:
        async with self.changed:
            self.count += by
            self.changed.notify_all()

    async def become(self, count: int) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.count == count)


class Connection(asyncio.Protocol):
    """A text session on a socket."""

    def __init__(self, node: FakeNode, clients: Clients) -> None:
        self._node = node
        self._clients = clients
        self._left = asyncio.Event()
        self._left.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)
        self._clients.transports.append(self._transport)
        self._count(1)
        self._session = TextSession(
            self._node.text, self._transport.write, self._flushed, self._transport.close, on_full=self._steer
        )

    def data_received(self, data: bytes) -> None:
        self._session.feed(data)

    def eof_received(self) -> bool:
        self._session.eof()
        return True  # the replies still go out

    def connection_lost(self, exc: Exception | None) -> None:
        self._session.lost()
        self._left.set()
        self._count(-1)

    def _count(self, by: int) -> None:
        asyncio.get_running_loop().create_task(self._clients.change(by))

    def pause_writing(self) -> None:
        self._left.clear()

    def resume_writing(self) -> None:
        self._left.set()

    async def _flushed(self) -> None:
        await self._left.wait()
        if self._transport.is_closing():
            raise ConnectionResetError("the client is gone")

    def _steer(self, is_full: bool) -> None:
        if self._transport.is_closing():
            return
        self._transport.pause_reading() if is_full else self._transport.resume_reading()


class Served:
    """The cluster, from outside its thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        cluster: FakeCluster,
        ports: dict[int, int],
        clients: Clients,
    ) -> None:
        self._loop = loop
        self._clients = clients
        self.cluster = cluster
        self.ports = ports

    def address(self, number: int = 1) -> str:
        return f"127.0.0.1:{self.ports[number]}"

    def call(self, work: Callable[[FakeCluster], Coroutine[Any, Any, T]]) -> T:
        """Run something in the cluster's thread, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work(self.cluster), self._loop).result(PATIENCE_S)

    def disconnect(self) -> None:
        """Break every connection that there is."""

        async def abort(cluster: FakeCluster) -> None:
            for transport in self._clients.transports:
                transport.abort()

        self.call(abort)
        self.wait_for_clients(0)

    def wait_for_clients(self, count: int) -> None:
        """Until the cluster knows that so many are connected, and has let go of what the others left."""
        asyncio.run_coroutine_threadsafe(self._clients.become(count), self._loop).result(PATIENCE_S)


@contextmanager
def serve(nodes: int = 1) -> Iterator[Served]:
    ready = threading.Event()
    made: list[Served] = []
    stopping: list[asyncio.Event] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        cluster, clients = FakeCluster(Random(1), delay=0), Clients()
        ports: dict[int, int] = {}
        servers = []
        for number in range(1, nodes + 1):
            node = await cluster.start(number)
            server = await loop.create_server(lambda node=node: Connection(node, clients), "127.0.0.1", 0)
            servers.append(server)
            ports[number] = server.sockets[0].getsockname()[1]
        stopping.append(asyncio.Event())
        made.append(Served(loop, cluster, ports, clients))
        ready.set()
        await stopping[0].wait()
        for server in servers:
            server.close()
        for node in cluster.nodes.values():
            await node.gets.stop()
        mine = asyncio.current_task()
        left = [task for task in asyncio.all_tasks() if task is not mine]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="served", daemon=True)
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield made[0]
    finally:
        made[0]._loop.call_soon_threadsafe(stopping[0].set)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


class WalrusClient:
    """Length and text, there and back: all that a client of Walrus knows."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), PATIENCE_S)

    def __enter__(self) -> WalrusClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def ask(self, line: bytes) -> bytes:
        self.send(line)
        return self.receive()

    def send(self, line: bytes) -> None:
        self.socket.sendall(struct.pack("<I", len(line)) + line)

    def receive(self) -> bytes:
        (length,) = struct.unpack("<I", self._exactly(4))
        return self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            data += piece
        return data

    def vanish(self) -> None:
        """Gone without a word: what is on its way to it is lost."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()
