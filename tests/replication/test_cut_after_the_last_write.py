"""The old leader's copy is cut at the seal while its last write is still under way."""

from __future__ import annotations

import asyncio

from tests.replicas_sim.small import World, play


def test_a_leader_cuts_its_copy_after_its_last_write_has_ended() -> None:
    """It was cut off, and hears of the recovery and of the seal while a slow disk still writes what nobody
    else has: written after the cut, that lies behind the sealed end for good (F3)."""

    async def script(world: World) -> tuple[int, int]:
        leader, followers = await world.make_topic()
        async with asyncio.timeout(300), world.at(leader) as log:
            await world.send(log, "t", b"1")
            await asyncio.sleep(0.5)
            for follower in followers:
                world.cut(leader, follower)
            world.write_in_a_worker(leader)
            world.nodes[leader].disk.slow(8.0, count=1)
            tail = asyncio.ensure_future(world.send(log, "t", b"nobody else has it"))
            await world.until(lambda: world.segment(seen_by=followers[0]).segment == 2)
            for follower in followers:
                world.forget_what_is_on_the_wire(leader, follower)
            world.network.heal()
            await world.until(lambda: world.segment(seen_by=leader).segment == 2)
            await tail
            await asyncio.sleep(20)
        sealed = world.segment(number=1)
        file = world.nodes[leader].disk.mount().open(world.path(sealed) + ".log")
        return len(file.read(file.size(), 0).rstrip(b"\0")), sealed.end_position

    found, wanted = play(script)
    assert found <= wanted  # zeros at the end of the last frame look like what was never written
