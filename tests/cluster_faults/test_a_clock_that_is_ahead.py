"""A6: a node whose clock disagrees with most others beyond a bound neither leads nor proposes trims."""

from __future__ import annotations

import asyncio

from ister.testing.cluster import World, read_all, run_story

DAY = 24 * 3600


def test_a_clock_that_is_ahead_of_all_others_does_not_trim_what_is_young() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            await log.create_topic("t", retention_ms=7 * DAY * 1000, segment_records=10)
            for number in range(45):
                await log.append("t", [b"%d" % number])
            await asyncio.sleep(2)
            world.leader_of("t").clock.jump(30 * DAY)
            await asyncio.sleep(30)
            assert await read_all(log, "t") == [b"%d" % number for number in range(45)]

    run_story(story, monitor_check_ms=1000)
