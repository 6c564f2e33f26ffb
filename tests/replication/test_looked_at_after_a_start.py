"""After a start every copy of a sealed segment is looked at, the one of its leader too."""

from __future__ import annotations

import asyncio

import pytest

from ister.metadata.state import SegmentState
from tests.replicas_sim.small import World, play


async def lose_a_file(world: World, who: str) -> tuple[int, int, SegmentState]:
    """A sealed segment of ten records, whose log is gone from one replica's disk when that is started again:
    by its number, another one's, and the segment."""
    leader, (a, b) = await world.make_topic(segment_records=10)
    async with world.at(leader) as log:
        for number in range(10):
            await log.append("t", [b"%d" % number * 50])
    await world.until(lambda: world.segment(number=1).is_sealed)
    await world.agree()
    await asyncio.sleep(10)
    segment = world.segment(number=1)
    assert not segment.recovery and segment.end_offset == 10
    number = leader if who == "leader" else a
    path, node = world.path(segment), world.nodes[number]
    await node.stop()
    for suffix in (".log", ".side"):
        node.disk.remove(path + suffix)
    node.disk.sync_directory(path.rpartition("/")[0])
    await node.start()
    await node.running.metadata.announced.wait()
    return number, b, segment


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_short_copy_is_found_by_a_start_and_nobody_is_told_before_that_it_is_whole(who: str) -> None:
    async def script(world: World) -> tuple[bool, bool]:
        number, _, segment = await lose_a_file(world, who)
        await world.agree()
        await asyncio.sleep(20)
        node = world.nodes[number]
        is_whole = node.running.replication.completions.is_whole(segment.uid)
        return is_whole, node.disk.exists(world.path(segment) + ".log")

    says_whole, is_there = play(script)
    assert is_there or not says_whole, f"the {who} says that its copy is whole, and has none"
    assert is_there


def test_fewer_replicas_are_wanted_and_the_good_copies_are_kept() -> None:
    """By that word of its own the leader has the others drop theirs."""

    async def script(world: World) -> int:
        _, other, _ = await lose_a_file(world, "leader")
        async with world.at(other) as log:
            await log.alter_topic("t", replicas=1)
            await asyncio.sleep(40)
            return len([record async for record in log.read("t", end=10)])

    assert play(script) == 10
