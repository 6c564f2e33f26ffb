"""A broker that holds its clients back is alive: its connections must not break for it (real sockets)."""

from __future__ import annotations

import asyncio

import pytest

from ister.io.network import PATIENCE_SECONDS, TcpNetwork


class _End(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.lost: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._buffer = bytearray(65536)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(error)


class _HeldUp(_End):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()


@pytest.mark.slow
def test_a_connection_to_a_broker_that_reads_nothing_for_a_while_stays() -> None:
    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(_HeldUp, "127.0.0.1", 0)
        made = await TcpNetwork().connect(_End, "127.0.0.1", server.sockets[0].getsockname()[1])
        assert isinstance(made, _End) and isinstance(made.transport, asyncio.Transport)
        made.transport.write(bytes(32 << 20))
        done, _ = await asyncio.wait([made.lost], timeout=2 * PATIENCE_SECONDS)
        made.transport.abort()
        assert not done, f"the machine answers, and the connection broke: {made.lost.result()!r}"

    asyncio.run(main())
