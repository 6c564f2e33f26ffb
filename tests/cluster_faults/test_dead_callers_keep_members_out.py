"""Connections of peers that vanished without a word are let go, and keep no living member out."""

from __future__ import annotations

import asyncio

from ister.testing.cluster import World, run_story


def test_the_connections_of_a_node_that_lost_power_are_let_go() -> None:
    async def story(world: World) -> None:
        callers = world.nodes[1].broker.metadata.peers._callers
        before = len(callers)
        for _ in range(4):
            world.nodes[3].kill(power=True)
            await asyncio.sleep(5)
            await world.nodes[3].start()
            await world.settle()
        await asyncio.sleep(60)
        assert len(callers) <= before, f"{len(callers)} callers, {before} before four power cuts"

    run_story(story)


def test_a_member_gets_in_though_256_dead_ones_are_remembered() -> None:
    async def story(world: World) -> None:
        import ister.callers

        ister.callers.MAX_CALLERS = 6
        try:
            for _ in range(6):
                world.nodes[3].kill(power=True)
                await asyncio.sleep(5)
                await world.nodes[3].start()
                await world.settle()
        finally:
            ister.callers.MAX_CALLERS = 256

    run_story(story)
