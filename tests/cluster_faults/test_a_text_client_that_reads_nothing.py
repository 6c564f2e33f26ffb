"""A text client that sends on and takes no reply is let go, as any other client that does not."""

from __future__ import annotations

import asyncio

import pytest

from ister.protocol.text import encode_frame
from ister.testing.cluster import CLIENT_PORT, World, run_story
from tests.broker.broker_helpers import ENOUGH_SECONDS  # noqa: F401


class Mute(asyncio.BufferedProtocol):
    """Sends; its receive side is never read."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self._buffer = memoryview(bytearray(65536))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.transport.pause_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


@pytest.mark.slow
def test_a_text_client_with_a_full_queue_that_takes_no_replies_is_closed() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            for _ in range(20):
                await log.append("t", [b"x" * 1_000_000])
        mute = await world.network.host("mute").connect(Mute, "node-1", CLIENT_PORT)
        assert isinstance(mute, Mute)
        mute.transport.write(encode_frame(b"GET t") * 40_000)
        await asyncio.sleep(300)
        server = world.nodes[1].server
        assert not server._texts, f"still there after 300 s, {server.answers.used} bytes of answers held"

    run_story(story, request_timeout_ms=5000)


@pytest.mark.slow
def test_a_text_client_whose_commands_take_long_is_not_closed_for_it() -> None:
    """Every frame gets exactly one reply."""

    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            for name in "abcdefgh":
                await log.append(name, [b"x"])
        name = next(name for name in "abcdefgh" if world.leader_of(name).node_id == 2)
        replies = bytearray()

        class Client(Mute):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                self.transport = transport  # type: ignore[assignment]

            def buffer_updated(self, nbytes: int) -> None:
                replies.extend(self._buffer[:nbytes])

        world.network.partition("node-1", "node-2")
        await asyncio.sleep(3)
        client = await world.network.host("slow").connect(Client, "node-1", CLIENT_PORT)
        assert isinstance(client, Client)
        client.transport.write(encode_frame(b"PUT %s y" % name.encode()) * 6)
        await asyncio.sleep(200)
        assert bytes(replies).count(b"ERR") == 6, f"{bytes(replies).count(b'ERR')} of 6 replies"

    run_story(story, request_timeout_ms=5000)
