"""F3: a replica told to cut below an end that it knows committed stops and reports instead."""

from __future__ import annotations

import asyncio

import pytest

from ister.metadata.commands import BeginRecovery
from ister.replication.failover_events import ProposeSeal
from tests.replicas_sim.small import World, play


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_replica_that_no_recovery_fenced_does_not_cut_below_what_it_knows_committed(who: str) -> None:
    """A seal below what was acknowledged comes only of a defect or of a disk that lied. Those who were not
    heard by the recovery are the last who have the records: they must not be the ones to cut them."""

    async def script(world: World) -> tuple[int, int]:
        leader, (coordinator, other) = await world.make_topic()
        async with world.at(leader) as log:
            await world.send(log, "t", b"acknowledged")
        segment = world.segment()
        copies = world.nodes[other].running.replication.copies

        def knows() -> bool:
            followed = copies.follower(segment.uid)
            return followed is not None and followed.known_commit == 1

        await world.until(knows)
        broker = world.nodes[coordinator].running
        metadata, topic = broker.metadata, world.topic(coordinator).state
        begun = await metadata.propose(BeginRecovery(topic.uid, 1, metadata.member, metadata.starts))
        found = ProposeSeal(begun.index, 0, 0, (), tuple(segment.replicas))  # below the record
        await metadata.propose(broker.replication.make_recovery_seal(topic, found, [], 0))
        await asyncio.sleep(5)
        number = leader if who == "leader" else other
        file = world.nodes[number].disk.mount().open(world.path(world.segment(number=1)) + ".log")
        return number, len(file.read(file.size(), 0).rstrip(b"\0"))

    number, size = play(script)
    assert size > 0, f"node {number} knew that offset 0 is committed, and cut it"
