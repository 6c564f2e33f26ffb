"""F3: a replica told to cut below an end that it knows committed stops and reports instead.

A seal below what was acknowledged comes only of a defect or of a disk that lied. Those who were not heard by
the recovery are the last who have the records: they must not be the ones to cut them.
"""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest

from ister.metadata.commands import BeginRecovery
from ister.raft import driver
from ister.replication.recovery.failover_events import ProposeSeal
from ister.wal.followed import FollowedSegment
from tests.replicas_sim.small import World, play


async def acknowledge_one(world: World) -> tuple[int, int, int]:
    """Leader, who is to recover, and a follower that knows that the record is committed."""
    leader, (coordinator, other) = await world.make_topic()
    await world.elect(coordinator)
    async with world.at(leader) as log:
        await world.send(log, "t", b"acknowledged")
    await world.until(lambda: (found := followed(world, other)) is not None and found.known_commit == 1)
    return leader, coordinator, other


def followed(world: World, number: int) -> FollowedSegment | None:
    return world.nodes[number].running.replication.copies.follower(world.segment(number=1).uid)


async def seal_below(world: World, coordinator: int) -> None:
    """The segment is sealed as an empty one, by nobody's answer."""
    broker, topic = world.nodes[coordinator].running, world.topic(coordinator).state
    metadata, replicas = broker.metadata, tuple(world.segment(number=1).replicas)
    with mock.patch.object(broker.replication.recoveries, "begin"):
        begun = await metadata.propose(BeginRecovery(topic.uid, 1, metadata.member, metadata.starts))
        found = ProposeSeal(begun.index, 0, 0, (), replicas)
        await metadata.propose(broker.replication.make_recovery_seal(topic, found, [], 0))


def size_on(world: World, number: int) -> int:
    file = world.nodes[number].disk.mount().open(world.path(world.segment(number=1)) + ".log")
    return len(file.read(file.size(), 0).rstrip(b"\0"))


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_replica_that_no_recovery_fenced_does_not_cut_below_what_it_knows_committed(who: str) -> None:
    async def script(world: World) -> int:
        leader, coordinator, other = await acknowledge_one(world)
        await seal_below(world, coordinator)
        await asyncio.sleep(5)
        return size_on(world, leader if who == "leader" else other)

    assert play(script) > 0, f"the {who} knew that offset 0 is committed, and cut it"


@pytest.mark.parametrize("who", ["leader", "follower", "follower that is writing"])
def test_nor_does_one_that_hears_of_the_seal_by_a_snapshot(who: str) -> None:
    async def script(world: World) -> int:
        leader, coordinator, other = await acknowledge_one(world)
        away = leader if who == "leader" else other
        others = [number for number in world.nodes if number != away]
        for number in others:
            world.cut(away, number)
        await seal_below(world, coordinator)
        async with world.at(coordinator) as log:
            for number in range(30):
                await log.create_topic(f"other-{number}")
        log_there = followed(world, other) if "writing" in who else None
        if log_there is not None:
            log_there.hold(writes=True)  # a worker is in the middle of a write to it
        for number in others:
            world.forget_what_is_on_the_wire(away, number)
        world.network.heal()
        await world.agree()
        await asyncio.sleep(2)
        if log_there is not None:
            log_there.release(writes=True)
        await asyncio.sleep(3)
        return size_on(world, away)

    with mock.patch.object(driver, "KEPT_BEHIND_SNAPSHOT", 0):
        size = play(script, snapshot_entries=10)
    assert size > 0, f"the {who} knew that offset 0 is committed, and cut it"
