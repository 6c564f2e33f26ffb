"""F3 by a snapshot, while the follower is in the middle of a write."""

from __future__ import annotations

import asyncio
from unittest import mock

from ister.metadata.commands import BeginRecovery
from ister.raft import driver
from ister.replication.failover_events import ProposeSeal
from tests.replicas_sim.small import World, play


def test_a_follower_that_writes_when_the_snapshot_comes_does_not_cut_below_what_it_knows_committed() -> None:
    async def script(world: World) -> tuple[int, int]:
        leader, (coordinator, other) = await world.make_topic()
        await world.elect(coordinator)
        async with world.at(leader) as log:
            await world.send(log, "t", b"acknowledged")
        segment = world.segment()
        copies = world.nodes[other].running.replication.copies

        def knows() -> bool:
            followed = copies.follower(segment.uid)
            return followed is not None and followed.known_commit == 1

        await world.until(knows)
        away = other
        for one in world.nodes:
            if one != away:
                world.cut(away, one)
        broker = world.nodes[coordinator].running
        metadata, topic = broker.metadata, world.topic(coordinator).state
        with mock.patch.object(broker.replication.recoveries, "begin"):
            begun = await metadata.propose(BeginRecovery(topic.uid, 1, metadata.member, metadata.starts))
            found = ProposeSeal(begun.index, 0, 0, (), tuple(segment.replicas))  # below the record
            await metadata.propose(broker.replication.make_recovery_seal(topic, found, [], 0))
        async with world.at(coordinator) as log:
            for number in range(30):
                await log.create_topic(f"other-{number}")
        followed = copies.follower(segment.uid)
        assert followed is not None
        followed.hold(writes=True)  # a worker is in the middle of a write to it
        for one in world.nodes:
            if one != away:
                world.forget_what_is_on_the_wire(away, one)
        world.network.heal()
        await world.agree()
        await asyncio.sleep(2)
        followed.release(writes=True)
        await asyncio.sleep(3)
        file = world.nodes[away].disk.mount().open(world.path(world.segment(number=1)) + ".log")
        return away, len(file.read(file.size(), 0).rstrip(b"\0"))

    with mock.patch.object(driver, "KEPT_BEHIND_SNAPSHOT", 0):
        number, size = play(script, snapshot_entries=10)
    assert size > 0, f"node {number} knew that offset 0 is committed, and cut it"
