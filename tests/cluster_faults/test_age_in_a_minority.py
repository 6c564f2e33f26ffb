"""A8: admission closes when a metadata leader has answered; until then the segment grows."""

from __future__ import annotations

import asyncio

from ister.testing.cluster import World, run_story


def test_a_segment_past_its_age_goes_on_while_no_metadata_leader_answers() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            for name in "abcdefgh":
                await log.append(name, [b"x"])
        name = next(name for name in "abcdefgh" if world.leader_of(name).node_id == 2)
        world.network.partition("node-2", "node-1")
        world.network.partition("node-2", "node-3")
        await asyncio.sleep(30)
        async with world.connect(2, retry_deadline_s=5) as log:
            began = world.loop.time()
            for number in range(20):
                await log.append(name, [b"%d" % number])
                await asyncio.sleep(0.5)
            assert world.loop.time() - began < 15

    run_story(story, segment_age_ms=5000, monitor_check_ms=1000)
