"""PUT when nodes go: every one is answered, in time, with what is known and what to do."""

from __future__ import annotations

import asyncio

import pytest

from ister.testing.cluster import World, read_all, run_story
from tests.text.test_text_on_a_cluster import talk


def test_a_put_taken_just_as_the_quorum_disappears_is_answered() -> None:
    async def story(world: World) -> None:
        loop = asyncio.get_running_loop()
        first = await talk(world, 1)
        assert await first.ask(b"PUT logs before") == b"OK"
        leader = world.leader_of("logs")
        client = await talk(world, leader.node_id, "at-the-leader")
        for node in world.up:
            if node is not leader:
                node.kill(power=True)
        began = loop.time()
        reply = await client.ask(b"PUT logs x")
        assert reply.startswith(b"ERR timeout: "), reply
        assert b"may or may not be stored" in reply
        assert loop.time() - began < 5 + 10 + 1, "max_held_ms and quorum_timeout_ms"
        began = loop.time()
        reply = await client.ask(b"PUT logs y")
        assert reply.startswith((b"ERR NotLeaderForPartition: ", b"ERR overloaded: ")), reply
        assert loop.time() - began < 5 + 1, "nobody took it: max_held_ms"

    run_story(story, replicas=3)


@pytest.mark.parametrize("power", [False, True], ids=["killed", "silent"])
def test_a_put_through_another_node_waits_for_the_failover(power: bool) -> None:
    async def story(world: World) -> None:
        names = "abcdefgh"
        first = await talk(world, 1)
        for name in names:
            assert await first.ask(b"PUT %s before" % name.encode()) == b"OK"
        name = next(name for name in names if world.leader_of(name).node_id == 2)
        await asyncio.sleep(1)
        world.nodes[2].kill(power=power)
        replies = [await first.ask(b"PUT %s %d" % (name.encode(), number)) for number in range(20)]
        assert replies[1:] == [b"OK"] * 19, "the one on its way to the killed node is in doubt"
        if replies[0] != b"OK":
            assert b"If it is sent again it may be stored twice." in replies[0], "no producer that is known"
        async with world.connect(1, 3) as log:
            got = await read_all(log, name)
        assert [value for value in got if value != b"before"][-19:] == [b"%d" % n for n in range(1, 20)]

    run_story(story, replicas=3)


def test_a_put_that_nobody_takes_says_after_a_while_what_is_missing() -> None:
    async def story(world: World) -> None:
        names = "abcdefgh"
        first = await talk(world, 1)
        for name in names:
            assert await first.ask(b"PUT %s before" % name.encode()) == b"OK"
        name = next(name for name in names if world.leader_of(name).node_id == 2)
        world.nodes[2].kill()
        await asyncio.sleep(5)
        began = asyncio.get_running_loop().time()
        reply = await first.ask(b"PUT %s x" % name.encode())
        assert reply.startswith(b"ERR NotLeaderForPartition: no node took a record for default/"), reply
        assert b"node 2 cannot be reached" in reply
        assert f"ister topic describe default/{name}".encode() in reply
        assert 4.9 < asyncio.get_running_loop().time() - began < 6

    run_story(story, replicas=1)


def test_the_first_put_makes_no_topic_where_first_appends_make_none() -> None:
    async def story(world: World) -> None:
        for node in (1, 2):
            client = await talk(world, node)
            reply = await client.ask(b"PUT logs x")
            assert reply.startswith(b"ERR unknown topic logs: REGISTER logs makes it"), reply
        assert not world.nodes[1].broker.topics
        assert await client.ask(b"REGISTER logs") == b"OK"
        assert await client.ask(b"PUT logs x") == b"OK"

    run_story(story, nodes=2, auto_create_topics=False)
