"""Two of three disks were not mounted: what they alone have is not given up without a word (I2)."""

from __future__ import annotations

import pytest

from ister.errors import JoinFailed
from tests.cluster_world import World, run_story
from tests.losses.stories import numbers
from tests.losses.test_several_replicas import SETTINGS, left_behind


def test_i2_the_second_of_three_disks_does_not_give_its_place_away_without_a_word() -> None:
    async def story(world: World) -> None:
        found = await left_behind(world)  # 0 to 9 acknowledged; the third replica has 0 to 3
        mounts = [node.disk for node in found.ahead]
        join = f"{found.spare[0].host}:6001"
        for node in found.ahead:
            node.wipe()  # the directory is there, its disk is not mounted
        await found.ahead[0].start(join=join)
        with pytest.raises(JoinFailed):
            await found.ahead[1].start(join=join)
        found.ahead[1].disk = mounts[1]
        await found.ahead[1].start()
        world.network.heal(found.behind.host, found.ahead[1].host)
        async with world.connect() as log:
            assert [one.value async for one in log.read("t")] == numbers(10)

    run_story(story, **SETTINGS)
