"""A follower that is up and refuses: its data disk takes no writes of segments."""

from __future__ import annotations

import asyncio
import errno

from tests.replicas_sim.small import World, play


def test_a_follower_whose_disk_is_full_costs_nothing_but_its_catch_up() -> None:
    """It answers, so each next segment is placed on it again, it is lost again, and each `replica_lost_ms`
    the topic is handed off anew, for as long as the disk is full: to that very node too, in its turn."""

    async def script(world: World) -> tuple[int, int]:
        leader, (follower, _) = await world.make_topic()
        async with asyncio.timeout(3000), world.at(leader) as log:
            await world.send(log, "t", b"1")
            disk = world.nodes[follower].disk
            disk.faults.add("write", suffix=".log", prefix="segments/", error=errno.ENOSPC)
            for number in range(12):
                await world.send(log, "t", b"%d" % number)
                await asyncio.sleep(5)
        segments = world.topic(leader).state.segments
        return len(segments), sum(segment.recovery > 0 for segment in segments)

    handoffs, failovers = play(script, replica_lost_ms=2_000)
    assert (handoffs < 6, failovers) == (True, 0), (
        f"{handoffs} segments for 13 records, {failovers} failovers"
    )
