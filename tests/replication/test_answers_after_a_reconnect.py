"""A follower whose connection breaks while it writes what came on it."""

from __future__ import annotations

import asyncio

from tests.replicas_sim.small import World, play


def test_what_a_follower_syncs_after_a_reconnect_is_told_on_the_new_connection() -> None:
    """The frames came on a connection that broke while they were written. On the next one they are sent again
    and skipped, as they are queued: the answer is where the log was durable at that moment. When the write is
    done, only the broken connection is told. The leader waits for what the follower has."""

    async def script(world: World) -> tuple[int, int]:
        leader, (follower,) = await world.make_topic()
        async with world.at(leader) as log:
            await world.send(log, "t", b"1")
            world.write_in_a_worker(follower)
            slow = world.nodes[follower].disk.slow(2.0)
            sending = asyncio.ensure_future(world.send(log, "t", b"2"))
            await asyncio.sleep(0.5)
            world.network.reset(world.nodes[leader].name, world.nodes[follower].name)
            await asyncio.sleep(1.0)
            world.nodes[follower].disk.faults.clear()
            del slow
            segment = world.segment(number=1)
            await world.until(lambda: world.end_on(follower, segment) == 2)  # both disks have it
            done, _ = await asyncio.wait([sending], timeout=20)
            return len(done), world.segment(seen_by=follower).recovery

    answered, recovery = play(script, replicas=2, quorum_timeout_ms=600_000)
    assert answered, f"20 s after both replicas have synced it nobody was told (recovery {recovery})"
