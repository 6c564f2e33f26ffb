"""Two of three disks were not mounted: what they alone have is not given up without a word (I2)."""

from __future__ import annotations

import asyncio

import pytest

from ister.errors import JoinFailed
from ister.testing.cluster import World, run_story
from tests.losses.stories import numbers
from tests.losses.test_several_replicas import SETTINGS, Split, left_behind


async def check_the_second_is_asked_for(world: World, found: Split) -> None:
    """Both come up on empty directories, one after the other; then the second has its disk again."""
    mounts = [node.disk for node in found.ahead]
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


def test_i2_the_second_of_three_disks_does_not_give_its_place_away_without_a_word() -> None:
    async def story(world: World) -> None:
        found = await left_behind(world)  # 0 to 9 acknowledged; the third replica has 0 to 3
        await check_the_second_is_asked_for(world, found)

    run_story(story, **SETTINGS)


def test_c3_neither_disk_of_a_sealed_segment_is_given_away_while_the_third_ends_short() -> None:
    """Two have all of it, and two are needed: neither may come up empty before the third has it too."""

    async def story(world: World) -> None:
        found = await left_behind(world, more=8)  # 0 to 11 acknowledged, 0 to 9 sealed; the third has 0 to 3
        first = found.spare[0].topic("t").state.segments[0]
        assert first.end_offset is not None and first.end_offset >= 10
        assert set(first.replicas) == {node.member for node in (*found.ahead, found.behind)}
        mounts = [node.disk for node in found.ahead]
        for node in found.ahead:
            node.wipe()
            with pytest.raises(JoinFailed):
                await node.start(join=f"{found.spare[0].host}:6001")
        for node, disk in zip(found.ahead, mounts, strict=True):
            node.disk = disk
            await node.start()
        world.network.heal()
        await asyncio.sleep(20)
        async with world.connect() as log:
            assert [one.value async for one in log.read("t")][:10] == numbers(10)

    run_story(story, nodes=5, replicas=3, replica_lost_ms=60_000, segment_records=10)
