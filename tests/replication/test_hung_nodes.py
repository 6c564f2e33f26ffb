"""A process that hangs keeps its connections, and its system takes more; it says nothing on any of them."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest

from ister.client.connection import Connection
from ister.testing.cluster import World, WorldNode, run_story
from tests.replication.test_three_replicas import agree, numbers

WITHIN_SECONDS = 7.0
"""It says nothing for three seconds, and does not greet for three; the rest is the way to another node."""


def hang(node: WorldNode) -> None:
    assert node.process is not None
    node.process.freeze()


def go_on(node: WorldNode) -> None:
    assert node.process is not None
    node.process.thaw()


async def hung_leader(world: World) -> tuple[WorldNode, list[int], list[int]]:
    """Who leads a topic with one record; and all nodes, with the leader first and last."""
    async with world.connect() as log:
        await log.append("t", numbers(1))
    await agree(world, "t", 1)
    leader = world.leader_of("t")
    others = [node.node_id for node in world.up if node is not leader]
    return leader, [leader.node_id, *others], [*others, leader.node_id]


@pytest.mark.parametrize("first", [True, False], ids=["named first", "named last"])
@pytest.mark.parametrize("waited_s", [0.1, 5.0])
def test_a_reader_that_waits_at_a_leader_that_hangs_goes_on_within_seconds(
    first: bool, waited_s: float
) -> None:
    async def story(world: World) -> float:
        leader, leader_first, leader_last = await hung_leader(world)
        async with world.connect(*(leader_first if first else leader_last)) as log:
            records = aiter(log.read("t", start=0, follow=True))
            await anext(records)
            await asyncio.sleep(1)  # the way to the leader is learned in the background
            async with world.connect(leader.node_id) as other:
                await other.append("t", numbers(1, 1))
            await anext(records)
            waiting = asyncio.ensure_future(anext(records))
            await asyncio.sleep(waited_s)
            hang(leader)
            began = world.loop.time()
            async with asyncio.timeout(60), world.connect(*leader_last[:-1]) as other:
                await asyncio.sleep(4)
                await other.append("t", numbers(1, 2))
                assert (await waiting).value == b"2"
            return world.loop.time() - began

    took_s = run_story(story, replicas=3)
    assert took_s < WITHIN_SECONDS, f"the reader has waited for {took_s:.1f} s"


@pytest.mark.parametrize("first", [True, False], ids=["named first", "named last"])
def test_a_producer_at_a_leader_that_hangs_goes_on_within_seconds(first: bool) -> None:
    async def story(world: World) -> float:
        leader, leader_first, leader_last = await hung_leader(world)
        async with (
            asyncio.timeout(60),
            world.connect(*(leader_first if first else leader_last)) as log,
            log.producer("t", linger_ms=0) as producer,
        ):
            for _ in range(3):
                await producer.send(b"before")
                await asyncio.sleep(0.5)
            hang(leader)
            began = world.loop.time()
            receipts = []
            for number in range(5):  # in as many frames, all of them on the way to the leader
                receipts.append(await producer.submit(b"%d" % number))
                await asyncio.sleep(0.01)
            offsets = [await receipt for receipt in receipts]
            assert offsets == list(range(4, 9))
            return world.loop.time() - began

    took_s = run_story(story, replicas=3)
    assert took_s < WITHIN_SECONDS, f"the producer has waited for {took_s:.1f} s"


def test_a_broker_that_is_two_seconds_late_again_and_again_is_not_taken_for_hung() -> None:
    async def story(world: World) -> list[str]:
        node = world.nodes[1]
        async with world.connect() as log:
            await log.append("t", numbers(1))
        broken: list[str] = []
        real = Connection._break

        def note(self: Connection, error: Any) -> None:
            broken.append(error.message)
            real(self, error)

        async with world.connect() as log:
            records = aiter(log.read("t", start=0, follow=True))
            await anext(records)
            waiting = asyncio.ensure_future(anext(records))
            with mock.patch.object(Connection, "_break", note):
                for _ in range(30):
                    hang(node)
                    await asyncio.sleep(2)
                    go_on(node)
                    await asyncio.sleep(0.05)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        return [why for why in broken if "silent" in why]

    assert run_story(story, nodes=1) == []


def test_a_node_that_hung_is_asked_again_once_it_is_the_only_one_left() -> None:
    async def story(world: World) -> None:
        leader, leader_first, _ = await hung_leader(world)
        async with asyncio.timeout(60), world.connect(*leader_first) as log:
            await log.append("t", numbers(1, 1))
            hang(leader)
            await log.append("t", numbers(1, 2))
            go_on(leader)
            await asyncio.sleep(1)
            for node in world.up:
                if node is not leader:
                    world.network.partition("client-3", node.host)
                    world.network.reset("client-3", node.host)
            assert [topic.topic for topic in await log.list_topics()] == ["default/t"]

    run_story(story, replicas=3)


def test_the_others_keep_no_connections_that_it_does_not_greet() -> None:
    """Each attempt to reach it left one open behind it, for as long as it hung."""

    async def story(world: World) -> None:
        leader, (_, *others), _ = await hung_leader(world)
        hang(leader)
        await asyncio.sleep(120)
        assert leader.process is not None
        kept = [
            stream
            for stream in world.network._streams.values()
            if stream.server.host == f"node-{leader.node_id}" and not stream.client.is_closing()
        ]
        assert len(kept) <= 3 * len(others), "one for the metadata, one for frames, one for requests, each"
        go_on(leader)
        await agree(world, "t", 1)

    run_story(story, replicas=3)
