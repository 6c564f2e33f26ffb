"""A leader that is draining its segment when it hears, by a snapshot, that another has sealed it."""

from __future__ import annotations

import asyncio
from unittest import mock

from ister.broker.topic.life import Stage
from ister.raft import driver
from tests.replicas_sim.small import World, play


def test_a_leader_that_drains_and_learns_of_its_successor_by_a_snapshot_goes_on() -> None:
    """It waits for enough replicas to have what it admitted. They are sealed, and refuse; the snapshot
    brought the recovery and the seal at once, and a handoff is under way here: nobody ends the drain. What
    was admitted is never answered, and the topic is stuck as soon as this node is to lead it again."""

    async def script(world: World) -> None:
        leader, followers = await world.make_topic(segment_records=2)
        await world.elect(followers[0])
        async with world.at(leader) as log, world.at(followers[0], "client-2.y") as elsewhere:
            await world.send(log, "t", b"first")
            for follower in followers:
                world.cut(leader, follower)
            # One frame that fills the segment past its hard cap: the handoff begins at once (A8), and drains.
            values = [b"held %d" % number for number in range(8)]
            held = asyncio.ensure_future(world.send(log, "t", *values))
            await world.until(lambda: world.topic(leader).led.stage is Stage.ENDING)
            for number in range(30):
                await world.send(elsewhere, "t", b"%d" % number, session="y")
            stale = world.topic(leader).led.leading
            assert stale is not None
            # No follower comes to tell it before the metadata does.
            with mock.patch.object(stale, "answered"):
                for follower in followers:
                    world.forget_what_is_on_the_wire(leader, follower)
                world.network.heal()
                await world.agree()
            async with asyncio.timeout(600):
                for number in range(6):  # every node has its turn to lead
                    await world.send(elsewhere, "t", b"later %d" % number, session="y")
                await held
        assert [send.values for send in world.history.sends if not send.offsets] == []
        await world.judge("t")

    with mock.patch.object(driver, "KEPT_BEHIND_SNAPSHOT", 0):
        play(script, snapshot_entries=10)
