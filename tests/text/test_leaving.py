"""How a text connection ends: its client hears why, in the protocol that it speaks.

Sockets are real where it matters what a kernel does with bytes that nobody read.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path

import pytest

from ister.broker.node.process import start
from ister.config import BrokerConfig
from ister.protocol.text import DRAIN_BYTES, LENGTH, encode_frame
from ister.testing.cluster import CLIENT_PORT, World, run_story
from tests.text.test_text_on_a_cluster import TextClient, talk


def send_and_read(port: int, sent: list[bytes]) -> list[bytes]:
    """A client that sends all that it has before it reads; what it was answered until the end."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        for data in sent:
            client.sendall(data)
        replies = []
        while head := client.recv(4, socket.MSG_WAITALL):
            (length,) = struct.unpack("<I", head)
            replies.append(client.recv(length, socket.MSG_WAITALL))
        return replies


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])
def test_the_answer_to_a_frame_that_is_not_read_past_reaches_its_client(
    is_first: bool, tmp_path: Path
) -> None:
    async def main() -> None:
        running = await start(BrokerConfig(data_dir=str(tmp_path), client_port=0, admin_port=-1, replicas=1))
        try:
            before = [] if is_first else [encode_frame(b"PUT logs x")]
            too_long = LENGTH.pack(DRAIN_BYTES + 1) + bytes(DRAIN_BYTES + 1)
            replies = await asyncio.to_thread(send_and_read, running.info.client_port, [*before, too_long])
        finally:
            await running.stop()
        assert replies[:-1] == [b"OK"] * len(before)
        assert replies[-1].startswith(b"ERR invalid frame length: 16777217 bytes")
        assert b"The connection is closed" in replies[-1]

    asyncio.run(main())


async def closed(client: TextClient) -> None:
    async with asyncio.timeout(100):
        while not client.transport.is_closing():  # noqa: ASYNC110 (there is no event for it)
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("sent", [b"", b"\x08", encode_frame(b"GET logs")[:7]], ids=["none", "bit", "half"])
def test_who_sends_nothing_or_half_a_command_for_long_is_told_so_in_text(sent: bytes) -> None:
    async def story(world: World) -> None:
        host = world.network.host("person")
        client = await host.connect(TextClient, world.nodes[1].host, CLIENT_PORT)
        assert isinstance(client, TextClient)
        client.transport.write(sent)
        reply = await client.reply(40)
        assert reply.startswith(b"ERR timeout: nothing came for 30 s"), reply

    run_story(story, nodes=1)


def test_a_client_between_two_commands_may_take_its_time() -> None:
    async def story(world: World) -> None:
        client = await talk(world, 1)
        assert await client.ask(b"PUT logs x") == b"OK"
        await asyncio.sleep(600)
        assert await client.ask(b"GET logs") == b"OK x"

    run_story(story, nodes=1)


def test_a_client_that_was_told_to_go_and_stays_is_let_go_of_in_the_end() -> None:
    async def story(world: World) -> None:
        client = await talk(world, 1)
        client.transport.write(LENGTH.pack(DRAIN_BYTES + 1))
        assert (await client.reply(5)).startswith(b"ERR invalid frame length")
        assert len(world.nodes[1].server._texts) == 1, "it may still be sending"
        await closed(client)
        assert not world.nodes[1].server._texts

    run_story(story, nodes=1)
