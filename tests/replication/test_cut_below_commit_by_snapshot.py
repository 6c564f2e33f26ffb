"""F3, where the seal comes with a snapshot."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest

from ister.metadata.commands import BeginRecovery
from ister.raft import driver
from ister.replication.failover_events import ProposeSeal
from tests.replicas_sim.small import World, play


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_replica_that_hears_of_a_seal_by_a_snapshot_does_not_cut_below_what_it_knows_committed(
    who: str,
) -> None:
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
        away = leader if who == "leader" else other
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
        for one in world.nodes:
            if one != away:
                world.forget_what_is_on_the_wire(away, one)
        world.network.heal()
        await world.agree()
        await asyncio.sleep(5)
        file = world.nodes[away].disk.mount().open(world.path(world.segment(number=1)) + ".log")
        return away, len(file.read(file.size(), 0).rstrip(b"\0"))

    with mock.patch.object(driver, "KEPT_BEHIND_SNAPSHOT", 0):
        number, size = play(script, snapshot_entries=10)
    assert size > 0, f"node {number} knew that offset 0 is committed, and cut it"
