"""GET of the text protocol over records that were given up: told once, with their range, then passed (F6)."""

from __future__ import annotations

import asyncio

from ister.testing.cluster import World, run_story
from tests.losses.stories import give_up, others
from tests.text.test_text_on_a_cluster import talk


def test_get_says_once_what_is_lost_and_goes_on_behind_it() -> None:
    async def story(world: World) -> None:
        first = await talk(world, 1)
        assert await first.ask(b"REGISTER t") == b"OK"
        leader = world.leader_of("t")
        asked, other = (node.node_id for node in world.up if node is not leader)
        client = await talk(world, asked)
        for number in range(6):
            assert await client.ask(b"PUT t %d" % number) == b"OK"
        assert await client.ask(b"GET t") == b"OK 0"
        assert await client.ask(b"GET t") == b"OK 1"
        await asyncio.sleep(1)
        leader.kill()
        async with others(world, leader) as log:
            end = (await give_up(log)).lost_end
        assert await client.ask(b"PUT t after") == b"OK"
        second = await talk(world, other)
        told = await second.ask(b"GET t")
        assert told.startswith(b"ERR records-lost: offset 2 of topic default/t is lost, with all from 0 to ")
        assert f"Read on from offset {end}.".encode() in told
        assert await client.ask(b"GET t") == b"OK after", "the cursor is shared, and so is what it was told"
        assert await second.ask(b"GET t") == b"EMPTY"
        assert await client.ask(b"PUT t more") == b"OK"
        assert await second.ask(b"GET t") == b"OK more"
        await asyncio.sleep(1)
        assert world.nodes[asked].topic("t").state.get_offset == end + 2, "it is stored so"

    run_story(story)
