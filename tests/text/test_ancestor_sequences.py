"""The message sequences of Walrus's own integration scripts, on a cluster of three, in its own words.

Each begins as they do: by asking every node for METRICS until a leader is known, and all have what it has.
Topics have three replicas here, as a cluster's have by default: so that what those scripts had to wait for, a
node's return, is a failover.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ister.testing.cluster import World, WorldNode, read_all, run_story
from tests.text.test_metrics_command import wait_for_node
from tests.text.test_text_on_a_cluster import TextClient, talk

SECONDS_TO_RETRY = 30


class Script:
    """A script's connections, one to each node."""

    def __init__(self, world: World, clients: dict[int, TextClient]) -> None:
        self.world = world
        self.clients = clients

    async def ask(self, node_id: int, line: str) -> str:
        return (await self.clients[node_id].ask(line.encode())).decode()

    async def state(self, topic: str, node_id: int = 1) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(await self.ask(node_id, f"STATE {topic}"))
        return shown

    async def register(self, topic: str) -> None:
        """At the first node; the others hear of it a moment later."""
        assert await self.ask(1, f"REGISTER {topic}") == "OK"

    async def put_until_ok(self, node_id: int, line: str) -> None:
        """As those scripts do when a node is down: again and again, for a while."""
        async with asyncio.timeout(SECONDS_TO_RETRY):
            while await self.ask(node_id, line) != "OK":  # noqa: ASYNC110 (there is no event for it)
                await asyncio.sleep(0.5)

    async def get_all(self, topic: str, node_ids: list[int]) -> list[str]:
        """What the nodes hand out in turn, until each of them says that there is no more."""
        got: list[str] = []
        empty = 0
        while empty < len(node_ids):
            reply = await self.ask(node_ids[(len(got) + empty) % len(node_ids)], f"GET {topic}")
            assert reply == "EMPTY" or reply.startswith("OK "), reply
            empty = empty + 1 if reply == "EMPTY" else 0
            if reply != "EMPTY":
                got.append(reply.removeprefix("OK "))
        return got

    async def come_back(self, node: WorldNode) -> None:
        await node.start()
        await self.world.settle()
        self.clients[node.node_id] = await talk(self.world, node.node_id, "again")


@asynccontextmanager
async def script(world: World) -> AsyncIterator[Script]:
    for node_id in world.nodes:
        await wait_for_node(world, node_id)
    yield Script(world, {node_id: await talk(world, node_id) for node_id in world.nodes})


def test_logs_register_at_one_node_put_and_get_over_all() -> None:
    async def story(world: World) -> None:
        async with script(world) as nodes:
            await nodes.register("logs")
            await nodes.register("logs")
            values = [f"hello world {number}" for number in range(30)]
            for number, value in enumerate(values):
                assert await nodes.ask(1 + number % 3, f"PUT logs {value}") == "OK"
            assert await nodes.get_all("logs", [1, 2, 3]) == values
            assert (await nodes.ask(2, "GET nothing")).startswith("ERR unknown topic nothing")
            assert (await nodes.ask(3, "FROB logs")).startswith("ERR unknown command FROB")
            state = await nodes.state("logs", 2)
            assert state["leader_node"] in (1, 2, 3)
            assert state["current_segment"] == 1

    run_story(story, replicas=3)


def test_rollover_after_ten_entries_goes_round_the_nodes_and_every_entry_is_read() -> None:
    async def story(world: World) -> None:
        async with script(world) as nodes:
            await nodes.register("rolling")
            values = [f"entry-{number}" for number in range(65)]
            for number, value in enumerate(values):
                assert await nodes.ask(1 + number % 3, f"PUT rolling {value}") == "OK", "no rollover shows"
            async with asyncio.timeout(10):
                while (state := await nodes.state("rolling"))["current_segment"] < 7:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            sealed = state["sealed_segments"]
            assert sum(sealed.values()) == state["last_sealed_entry_offset"] >= 60
            assert all(count >= 10 for count in sealed.values())
            assert set(state["segment_leaders"].values()) == {1, 2, 3}
            assert state["segment_leaders"][str(state["current_segment"])] == state["leader_node"]
            assert await nodes.get_all("rolling", [3, 1, 2]) == values

    run_story(story, replicas=3, segment_records=10, monitor_check_ms=200)


def test_resilience_a_leader_is_stopped_writes_go_on_and_it_starts_again() -> None:
    async def story(world: World) -> None:
        async with script(world) as nodes:
            await nodes.register("survivor")
            for number in range(10):
                assert await nodes.ask(1, f"PUT survivor before-{number}") == "OK"
            leader = world.nodes[(await nodes.state("survivor"))["leader_node"]]
            others = [node.node_id for node in world.up if node is not leader]
            await leader.stop()
            for number in range(10):
                await nodes.put_until_ok(others[number % 2], f"PUT survivor during-{number}")
            assert (await nodes.state("survivor", others[0]))["leader_node"] in others
            await nodes.come_back(leader)
            for number in range(10):
                assert await nodes.ask(leader.node_id, f"PUT survivor after-{number}") == "OK"
            wanted = [f"{when}-{number}" for when in ("before", "during", "after") for number in range(10)]
            assert await nodes.get_all("survivor", [leader.node_id, *others]) == wanted

    run_story(story, replicas=3)


def test_recovery_all_nodes_are_killed_and_what_was_ok_is_there_afterwards() -> None:
    async def story(world: World) -> None:
        async with script(world) as nodes:
            await nodes.register("kept")
            values = [f"value-{number}" for number in range(25)]
            for number, value in enumerate(values):
                assert await nodes.ask(1 + number % 3, f"PUT kept {value}") == "OK"
            for node in world.up:
                node.kill(power=True)
            for node in world.nodes.values():
                await node.start()
            await world.settle()
        async with script(world) as nodes:
            await nodes.put_until_ok(2, "PUT kept once more")
            assert await nodes.get_all("kept", [1, 2, 3]) == [*values, "once more"]

    run_story(story, replicas=3, segment_records=10, monitor_check_ms=200)


def test_stress_sixteen_writers_on_one_topic_lose_and_double_nothing() -> None:
    async def story(world: World) -> None:
        async with script(world) as nodes:
            await nodes.register("stress")

            async def write(writer: int) -> None:
                client = await talk(world, 1 + writer % 3, f"writer-{writer}")
                for number in range(20):
                    line = b"PUT stress %d:%d:" % (writer, number) + bytes(1024)
                    assert await client.ask(line) == b"OK"

            await asyncio.gather(*map(write, range(16)))
            got = [value.rstrip("\0") for value in await nodes.get_all("stress", [1, 2, 3])]
            for writer in range(16):
                mine = [value for value in got if value.startswith(f"{writer}:")]
                assert mine == [f"{writer}:{number}:" for number in range(20)], "each once, in its order"
            assert len(got) == 16 * 20

    run_story(story, replicas=3, segment_records=50, monitor_check_ms=200)


def test_a_hundred_topics_are_written_and_read_side_by_side() -> None:
    async def story(world: World) -> None:
        async with script(world) as nodes:

            async def use(number: int) -> None:
                topic = f"topic-{number}"
                client = await talk(world, 1 + number % 3, f"user-{number}")
                assert await client.ask(b"REGISTER %s" % topic.encode()) == b"OK"
                for entry in range(3):
                    assert await client.ask(f"PUT {topic} {topic}/{entry}".encode()) == b"OK"

            await asyncio.gather(*map(use, range(100)))
            for number in range(100):
                topic = f"topic-{number}"
                for entry in range(3):
                    assert await nodes.ask(1 + (number + entry) % 3, f"GET {topic}") == f"OK {topic}/{entry}"
                assert await nodes.ask(1, f"GET {topic}") == "EMPTY"
            leaders = [(await nodes.state(f"topic-{number}"))["leader_node"] for number in range(100)]
            assert {leaders.count(node_id) > 10 for node_id in (1, 2, 3)} == {True}, "spread over the nodes"

    run_story(story, replicas=3)


def test_partition_a_cut_off_node_takes_nothing_that_others_do_not_have_and_comes_back() -> None:
    async def story(world: World) -> None:
        async with script(world) as nodes:
            await nodes.register("split")
            for number in range(5):
                assert await nodes.ask(1, f"PUT split before-{number}") == "OK"
            leader = world.nodes[(await nodes.state("split"))["leader_node"]]
            others = [node for node in world.up if node is not leader]
            for other in others:
                world.network.partition(leader.host, other.host, one_way=False)
            alone = asyncio.ensure_future(nodes.ask(leader.node_id, "PUT split alone"))
            for number in range(5):
                await nodes.put_until_ok(others[number % 2].node_id, f"PUT split during-{number}")
            assert (await alone).startswith("ERR "), "no quorum, no OK"
            world.network.heal()
            await world.settle()
            await nodes.put_until_ok(leader.node_id, "PUT split after")
            async with world.connect() as log:
                got = [(value or b"").decode() for value in await read_all(log, "split")]
            wanted = [f"{when}-{number}" for when in ("before", "during") for number in range(5)]
            assert [value for value in got if value != "alone"] == [*wanted, "after"]
            assert got.count("alone") <= 1, "in doubt, as its client was told"

    run_story(story, replicas=3)
