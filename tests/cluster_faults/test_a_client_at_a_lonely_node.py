"""A client that was told of three nodes and is at one that is cut off from the others."""

from __future__ import annotations

import asyncio

import pytest

from ister.testing.cluster import World, run_story


@pytest.mark.parametrize("what", ["append", "read", "create", "create2"])
def test_a_client_leaves_a_node_that_cannot_help_it(what: str) -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            for name in "abcdefgh":
                await log.append(name, [b"x"])
        name = next(name for name in "abcdefgh" if world.leader_of(name).node_id == 2)
        if what == "create2":
            async with world.connect(1, 2, 3) as log:
                await log.append(name, [b"z"])
                world.network.partition("node-1", "node-2")
                world.network.partition("node-1", "node-3")
                await asyncio.sleep(5)
                await log.create_topic("fresh")
                return
        world.network.partition("node-1", "node-2")
        world.network.partition("node-1", "node-3")
        await asyncio.sleep(5)
        async with world.connect(1, 2, 3) as log:
            if what == "append":
                await log.append(name, [b"y"])
            elif what == "read":
                assert len([record async for record in log.read(name)]) == 1
            else:
                await log.create_topic("fresh")

    run_story(story)
