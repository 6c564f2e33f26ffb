"""The text protocol on a cluster of real brokers: one shared cursor, whichever node is asked (S5, W6)."""

from __future__ import annotations

import asyncio
import json
import struct

from ister.testing.cluster import CLIENT_PORT, World, read_all, run_story


class TextClient(asyncio.BufferedProtocol):
    """Length and bytes, there and back."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(64 * 1024))
        self._data = bytearray()
        self._replies: asyncio.Queue[bytes] = asyncio.Queue()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._data += self._buffer[:nbytes]
        while len(self._data) >= 4:
            (length,) = struct.unpack_from("<I", self._data)
            if len(self._data) < 4 + length:
                return
            self._replies.put_nowait(bytes(self._data[4 : 4 + length]))
            del self._data[: 4 + length]

    async def ask(self, line: bytes) -> bytes:
        self.transport.write(struct.pack("<I", len(line)) + line)
        return await self.reply(60)

    async def reply(self, seconds: float) -> bytes:
        async with asyncio.timeout(seconds):
            return await self._replies.get()


async def talk(world: World, node_id: int, name: str = "walrus") -> TextClient:
    host = world.network.host(f"{name}-{node_id}")
    client = await host.connect(TextClient, world.nodes[node_id].host, CLIENT_PORT)
    assert isinstance(client, TextClient)
    return client


def test_w6_the_cursor_is_shared_by_all_nodes_over_rollovers() -> None:
    async def story(world: World) -> None:
        clients = [await talk(world, node_id) for node_id in (1, 2, 3)]
        assert await clients[0].ask(b"REGISTER logs") == b"OK"
        for number in range(60):
            assert await clients[number % 3].ask(b"PUT logs %d\0\n" % number) == b"OK"
        got = [await clients[number % 3].ask(b"GET logs") for number in range(60)]
        assert got == [b"OK %d\0\n" % number for number in range(60)]
        assert await clients[1].ask(b"GET logs") == b"EMPTY"
        state = json.loads(await clients[2].ask(b"STATE logs"))
        assert state["current_segment"] > 3
        assert set(state["segment_leaders"].values()) == {1, 2, 3}
        assert (await clients[0].ask(b"GET nothing")).startswith(b"ERR unknown topic")

    run_story(story, segment_records=10)


def test_s5_after_the_owners_death_records_repeat_at_most_and_none_is_skipped() -> None:
    async def story(world: World) -> None:
        first = await talk(world, 1)
        for number in range(30):
            assert await first.ask(b"PUT logs %d" % number) == b"OK"
        leader = world.leader_of("logs")
        asker = next(node for node in world.up if node is not leader)
        last = next(node for node in world.up if node not in (leader, asker))
        owner = await talk(world, asker.node_id, "owner")
        got = [await owner.ask(b"GET logs") for _ in range(10)]
        assert got == [b"OK %d" % number for number in range(10)]
        await asyncio.sleep(1)  # the cursor is flushed
        got += [await owner.ask(b"GET logs") for _ in range(3)]
        asker.kill()
        other = await talk(world, last.node_id, "other")
        rest: list[bytes] = []
        while (reply := await other.ask(b"GET logs")) != b"EMPTY":
            if not reply.startswith(b"ERR"):
                rest.append(reply)
        assert rest[-1] == b"OK 29"
        begin = int(rest[0].removeprefix(b"OK "))
        assert 10 <= begin <= 13, "what was flushed is not repeated, what was handed out may be"
        assert rest == [b"OK %d" % number for number in range(begin, 30)]

    run_story(story)


def test_a_reply_that_never_left_is_handed_out_again() -> None:
    async def story(world: World) -> None:
        client = await talk(world, 1)
        for number in range(5):
            assert await client.ask(b"PUT logs %d" % number) == b"OK"
        gone = await talk(world, 2, "gone")
        world.network.partition("gone-2", world.nodes[2].host, one_way=False)
        gone.transport.write(struct.pack("<I", 8) + b"GET logs")
        await asyncio.sleep(0.5)
        gone.transport.abort()
        world.network.heal()
        await asyncio.sleep(1)
        got = [await client.ask(b"GET logs") for _ in range(5)]
        assert got == [b"OK %d" % number for number in range(5)]

    run_story(story)


def test_a_first_get_without_a_majority_says_that_handing_out_takes_one() -> None:
    async def story(world: World) -> None:
        first = await talk(world, 1)
        for name in "abcdefgh":
            assert await first.ask(b"PUT %s x" % name.encode()) == b"OK"
        name = next(name for name in "abcdefgh" if world.leader_of(name).node_id == 2)
        client = await talk(world, 2)
        for node_id in (1, 3):
            world.nodes[node_id].kill(power=True)
        assert await client.ask(b"PUT %s y" % name.encode()) == b"OK", "its only replica is here"
        reply = (await client.ask(b"GET %s" % name.encode())).decode()
        assert reply.startswith(f"ERR timeout: no record of default/{name} was handed out: its GET cursor")
        assert f"`ister get default/{name}` reads by offset" in reply
        async with world.connect(2) as log:
            assert await read_all(log, name) == [b"x", b"y"]

    run_story(story)
