"""A follower whose connection breaks while it writes what came on it, and whose write then fails."""

from __future__ import annotations

import asyncio
import errno

from tests.replicas_sim.small import World, play


def test_a_write_that_fails_after_a_reconnect_is_told_on_the_new_connection() -> None:
    async def script(world: World) -> tuple[int, int]:
        leader, (follower,) = await world.make_topic()
        async with world.at(leader) as log:
            await world.send(log, "t", b"1")
            world.write_in_a_worker(follower)
            disk = world.nodes[follower].disk
            disk.slow(2.0)
            disk.faults.add("write", suffix=".log", prefix="segments/", error=errno.EIO, count=1)
            sending = asyncio.ensure_future(world.send(log, "t", b"2"))
            await asyncio.sleep(0.5)
            world.network.reset(world.nodes[leader].name, world.nodes[follower].name)
            await asyncio.sleep(3.0)
            disk.faults.clear()
            segment = world.segment(number=1)
            for _ in range(60):
                await asyncio.sleep(0.5)
                if world.end_on(follower, segment) == 2:
                    break
            sending.cancel()
            return world.end_on(follower, segment), segment.recovery

    end, recovery = play(script, replicas=2, quorum_timeout_ms=600_000)
    assert end == 2, f"30 s after the follower's disk works again nobody has sent it again ({recovery})"
