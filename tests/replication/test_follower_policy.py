"""A follower's fsync policy is the topic's of the moment at which its copy is opened, not the segment's."""

from __future__ import annotations

import asyncio

from tests.replicas_sim.small import World, play


def test_a_follower_syncs_as_the_segments_leader_does_whatever_the_topic_was_set_to_meanwhile() -> None:
    """The topic is set to `none`, and back to `fsync`, while the leader does not hear of the metadata. Its
    segment has `fsync` all the time, and it goes on with it. The follower has opened its copy in between: it
    answers for what it never syncs, for as long as the segment lives (P6, invariant 1)."""

    async def script(world: World) -> tuple[int, str]:
        leader, (follower,) = await world.make_topic()
        third = next(number for number in world.nodes if number not in (leader, follower))
        await world.elect(third)
        world.cut(leader, third)
        async with world.at(third, "client-2.y") as elsewhere, world.at(leader) as log:
            await elsewhere.alter_topic("t", fsync="none")
            await world.until(lambda: world.topic(follower).state.settings.fsync == "none")
            await log.append("t", [b"1"])  # the copy is opened by the first frame that comes
            await elsewhere.alter_topic("t", fsync="fsync")
            world.network.heal()
            await world.agree()
            await asyncio.sleep(5)
            segment = world.segment()
            assert segment.segment == 1 and world.topic(leader).state.settings.fsync == "fsync"
            await log.append("t", [b"2"])  # acknowledged by both
        return world.end_on(follower, segment), "; ".join(world.history.violations)

    end, violations = play(script, replicas=2)
    assert end == 2, f"two records were acknowledged, and the follower's disk has {end}: {violations}"
