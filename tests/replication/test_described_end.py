"""A leader that others have replaced, and that has not heard of it, does not say that it knows the end."""

from __future__ import annotations

from ister.protocol.messages import TopicDescription
from tests.replicas_sim.small import World, play


def test_a_replaced_leader_does_not_say_that_it_knows_the_end() -> None:
    async def script(world: World) -> TopicDescription:
        leader, followers = await world.make_topic()
        async with world.at(leader) as log:
            await world.send(log, "t", b"1")
            assert (await log.describe_topic("t")).end_is_known
        for follower in followers:
            world.cut(leader, follower)
        async with world.at(followers[0]) as log:
            await world.send(log, "t", b"2", session="y")
            assert await log.offsets_at("t", "latest") == 2
        async with world.at(leader, "client-2.reader") as log:
            return await log.describe_topic("t")

    found = play(script)
    assert (found.end_offset, found.end_is_known) == (1, False)
