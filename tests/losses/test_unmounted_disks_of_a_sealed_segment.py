"""Two of three disks of a sealed segment were not mounted, and the third ends short of its seal (I2)."""

from __future__ import annotations

import asyncio

import pytest

from ister.errors import JoinFailed
from tests.cluster_world import World, run_story
from tests.losses.stories import numbers
from tests.losses.test_several_replicas import left_behind


def test_i2_the_second_disk_of_a_sealed_segment_is_not_given_away_while_the_third_ends_short() -> None:
    async def story(world: World) -> None:
        found = await left_behind(world, more=8)  # 0 to 11 acknowledged, 0 to 9 sealed; the third has 0 to 3
        mounts = [node.disk for node in found.ahead]
        topic = found.spare[0].topic("t").state
        first = topic.segments[0]
        assert first.is_sealed and first.end_offset >= 10
        assert set(first.replicas) == {node.member for node in (*found.ahead, found.behind)}
        join = f"{found.spare[0].host}:6001"
        for node in found.ahead:
            node.wipe()  # the directory is there, its disk is not mounted
        await found.ahead[0].start(join=join)
        with pytest.raises(JoinFailed):
            await found.ahead[1].start(join=join)
        found.ahead[1].disk = mounts[1]
        await found.ahead[1].start()
        world.network.heal()
        await asyncio.sleep(20)
        async with world.connect() as log:
            assert [one.value async for one in log.read("t")][:10] == numbers(10)

    run_story(story, nodes=5, replicas=3, replica_lost_ms=60_000, segment_records=10)
