"""P3: a replica whose own process knows that it had more is in doubt, however clean its log ends."""

from __future__ import annotations

from tests.replicas_sim.small import World, play


def test_a_living_follower_whose_log_became_shorter_than_what_it_answered_for_is_in_doubt() -> None:
    async def script(world: World) -> tuple[int, object]:
        leader, (a, b) = await world.make_topic()
        await world.elect(a)
        async with world.at(leader) as log:
            await world.send(log, "t", b"1")
            await world.until(lambda: all(world.end_on(one, world.segment()) == 1 for one in (a, b)))
            segment = world.segment()
            copy = world.nodes[a].running.replication.copies.follower(segment.uid)
            assert copy is not None
            position = copy.position
            world.cut(leader, b)
            await world.send(log, "t", b"2")  # acknowledged by the leader and a
        world.nodes[leader].lose_power()  # before it has told a that this is committed
        assert copy.durable_end == 2 and copy.known_commit < 2
        world.nodes[a].disk.tear(world.path(segment) + ".log", position)  # the last frame, and nothing else
        try:
            await world.until(lambda: world.segment(number=1, seen_by=a).is_sealed, seconds=30)
        except TimeoutError:
            return 2, "waits"
        end = world.segment(number=1, seen_by=a).end_offset
        assert end is not None
        return end, "sealed"

    end, what = play(script)
    assert end >= 2, f"offset 1 was acknowledged, a knew that it had it, and the segment was {what} at {end}"
