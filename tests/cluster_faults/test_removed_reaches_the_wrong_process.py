"""I2: a node that lost power and comes back on an empty disk, at its old address."""

from __future__ import annotations

import asyncio

from ister.testing.cluster import PEER_PORT, World, run_story


def test_a_node_wiped_after_a_power_cut_comes_back_and_stays() -> None:
    async def story(world: World) -> None:
        node = world.nodes[3]
        node.kill(power=True)  # nobody hears the end of its connections
        await asyncio.sleep(5)
        node.wipe()
        await node.start(join=f"node-1:{PEER_PORT}")
        await asyncio.sleep(20)
        assert not node.fatal, node.fatal
        await world.settle()

    run_story(story)
