"""I2, promise 4: a copied directory is started while the original is cut off; then the network heals."""

from __future__ import annotations

import asyncio
from copy import deepcopy

from ister.testing.cluster import World, run_story


def test_the_older_of_two_starts_stops_once_it_hears_from_the_others() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            for name in "abcdefgh":
                await log.append(name, [b"x"])
        name = next(name for name in "abcdefgh" if world.leader_of(name).node_id == 2)
        original = world.nodes[2]
        world.network.partition("node-2", "node-1")
        world.network.partition("node-2", "node-3")
        await asyncio.sleep(5)
        copy = world.make(7)
        copy.node_id = 2
        copy.disk._tree = deepcopy(original.disk._tree)
        await copy.start()
        await asyncio.sleep(10)
        world.network.heal()
        await asyncio.sleep(30)
        acknowledged = {}
        for through in (7, 2):
            if through == 2 and original.fatal:
                continue
            async with world.connect(through, retry_deadline_s=3) as log:
                appended = await log.append(name, [b"through node %d" % through])
                assert appended.base_offset not in acknowledged, (
                    f"offset {appended.base_offset} was given to two records"
                )
                acknowledged[appended.base_offset] = through
        assert original.fatal or copy.fatal

    run_story(story)
