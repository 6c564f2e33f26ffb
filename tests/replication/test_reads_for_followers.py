"""What a follower lacks is read from the leader's file. That may fail, and is no reason to forget it."""

from __future__ import annotations

import asyncio
import errno

import pytest

from ister.testing.cluster import World, WorldNode, run_story
from tests.replication.test_three_replicas import agree, numbers

SETTINGS = {"replicas": 3, "hot_tail_bytes": 2000, "replica_lost_ms": 3_600_000, "segment_records": 100_000}


async def one_is_behind(world: World) -> tuple[WorldNode, WorldNode]:
    """The leader, and a follower that was down while more was appended than the hot tail has."""
    async with world.connect() as log:
        await log.append("t", numbers(1))
        await agree(world, "t", 1)
        leader = world.leader_of("t")
        behind = next(node for node in world.up if node is not leader)
        behind.kill()
        for number in range(1, 60):
            await log.append("t", [b"%d" % number * 500])
    return leader, behind


@pytest.mark.parametrize(("times", "error"), [(1, errno.EIO), (5, errno.ENOMEM)])
def test_a_follower_of_a_quiet_topic_catches_up_after_reads_for_it_have_failed(
    times: int, error: int
) -> None:
    async def story(world: World) -> tuple[int, list[str], list[int]]:
        leader, behind = await one_is_behind(world)
        rule = leader.disk.faults.add("read", suffix=".log", error=error, count=times)
        await behind.start()
        await asyncio.sleep(2)
        told = [one.why for one in leader.topic("t").facts.followers_behind()]
        await asyncio.sleep(60)
        return rule.struck, told, [one.lacks for one in leader.topic("t").facts.followers_behind()]

    struck, told, lacks = run_story(story, **SETTINGS)
    assert struck == times
    assert lacks == []
    assert told == ([] if times == 1 else ["its leader cannot read what it lacks"])


def test_reads_that_fail_are_repeated_at_a_pace_however_much_is_appended() -> None:
    async def story(world: World) -> int:
        leader, behind = await one_is_behind(world)
        rule = leader.disk.faults.add("read", suffix=".log", error=errno.ENOMEM)
        await behind.start()
        async with world.connect() as log:
            for number in range(200):
                await log.append("t", numbers(1, number))
                await asyncio.sleep(0.05)
        return rule.struck

    assert run_story(story, **SETTINGS) <= 6


def test_what_the_disk_could_not_read_is_counted_by_its_place() -> None:
    """Errors that pass, and one of the disk after them, or one here and one there, are no damage."""

    async def story(world: World) -> tuple[int, int]:
        leader, behind = await one_is_behind(world)
        segment = leader.topic("t").state.open_segment
        leader.disk.faults.add("read", suffix=".log", error=errno.ENOMEM, count=2)
        leader.disk.faults.add("read", suffix=".log", error=errno.EIO, count=1)
        await behind.start()
        await asyncio.sleep(60)
        return segment.uid, leader.topic("t").state.open_segment.uid

    before, after = run_story(story, **SETTINGS)
    assert before == after
