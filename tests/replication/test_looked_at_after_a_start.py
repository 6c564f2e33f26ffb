"""After a start every copy of a sealed segment is looked at, the one of its leader too."""

from __future__ import annotations

import asyncio

import pytest

from tests.replicas_sim.small import World, play


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_short_copy_is_found_by_a_start_and_nobody_is_told_before_that_it_is_whole(who: str) -> None:
    async def script(world: World) -> tuple[bool, bool]:
        leader, (a, _) = await world.make_topic(segment_records=10)
        async with world.at(leader) as log:
            for number in range(10):
                await log.append("t", [b"%d" % number * 50])
        await world.until(lambda: world.segment(number=1).is_sealed)
        await world.agree()
        await asyncio.sleep(10)
        segment = world.segment(number=1)
        assert not segment.recovery and segment.end_offset == 10
        path, number = world.path(segment), leader if who == "leader" else a
        node = world.nodes[number]
        await node.stop()
        for suffix in (".log", ".side"):  # the disk lost it; or a crash came while it was put in place
            node.disk.remove(path + suffix)
        node.disk.sync_directory(path.rpartition("/")[0])
        await node.start()
        await node.running.metadata.announced.wait()
        await world.agree()
        await asyncio.sleep(20)
        completions = node.running.replication.completions
        return completions.is_whole(segment.uid), node.disk.exists(path + ".log")

    says_whole, is_there = play(script)
    assert is_there or not says_whole, f"the {who} says that its copy is whole, and has none"
    assert is_there


def test_fewer_replicas_are_wanted_and_the_good_copies_are_kept() -> None:
    """By that word of its own the leader has the others drop theirs."""

    async def script(world: World) -> int:
        leader, (a, _) = await world.make_topic(segment_records=10)
        async with world.at(leader) as log:
            for number in range(10):
                await log.append("t", [b"%d" % number * 50])
        await world.until(lambda: world.segment(number=1).is_sealed)
        await world.agree()
        await asyncio.sleep(10)
        path, node = world.path(world.segment(number=1)), world.nodes[leader]
        await node.stop()
        for suffix in (".log", ".side"):
            node.disk.remove(path + suffix)
        node.disk.sync_directory(path.rpartition("/")[0])
        await node.start()
        await node.running.metadata.announced.wait()
        async with world.at(a) as log:
            await log.alter_topic("t", replicas=1)
            await asyncio.sleep(40)
            return len([record async for record in log.read("t", end=10)])

    assert play(script) == 10
