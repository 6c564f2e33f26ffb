"""Many sealed segments that lost a replica: the next repair begins when one is done."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest

from ister.metadata.commands import Command, RemoveNode, Result
from ister.replication.copies import repair
from ister.replication.copies.completing import Completions
from ister.replication.places import Place
from ister.testing.cluster import PEER_PORT, World, WorldNode, run_story
from tests.replication.repair_helpers import come_back_wiped, fill, is_healed, sealed, until


@pytest.mark.slow
def test_one_look_is_enough_for_many_segments() -> None:
    async def story(world: World) -> None:
        await fill(world, 60)
        assert len(sealed(world)) > 5 * repair.MAX_REPAIRS
        lost = world.nodes[3]
        # The second look is late: whatever has not begun by then was waiting for it.
        await come_back_wiped(world, lost)
        await until(lambda: is_healed(world), seconds=180)

    with mock.patch.object(repair, "CHECK_SECONDS", 100.0):
        run_story(story, replicas=3, segment_records=2)


def test_a_node_that_was_just_started_is_asked_again_soon() -> None:
    """It does not know yet what it has. Taken for a failure, that cost the segment a long rest."""

    async def story(world: World) -> None:
        await fill(world, 5)
        await come_back_wiped(world, world.nodes[3])
        guests = world.nodes[3].broker.replication.guests
        is_ready, not_yet = guests._is_ready, iter(range(3))
        guests._is_ready = lambda: next(not_yet, None) is None and is_ready()
        await until(lambda: is_healed(world), seconds=180)
        assert next(not_yet, None) is None, "it was asked before it was ready"

    with mock.patch.object(repair, "REST_SECONDS", 10_000.0):
        run_story(story, replicas=3, segment_records=2)


def test_a_repair_whose_reason_changed_is_looked_at_again_soon() -> None:
    """Its node came back, or another one went, while it was copied: no failure, and nothing to rest for."""

    async def story(world: World) -> None:
        await fill(world, 5)
        still_holds, others = repair.Repairs._still_holds, iter(range(8))

        def changed_at_first(repairs: repair.Repairs, place: Place, change: repair.Change) -> bool:
            return next(others, None) is None and still_holds(repairs, place, change)

        with mock.patch.object(repair.Repairs, "_still_holds", changed_at_first):
            await come_back_wiped(world, world.nodes[3])
            await until(lambda: is_healed(world), seconds=180)
        assert next(others, None) is None, "no repair was looked at before it was done"

    with mock.patch.object(repair, "REST_SECONDS", 10_000.0):
        run_story(story, replicas=3, segment_records=2)


def test_one_that_comes_is_not_kept_waiting_by_who_was_not_whole_when_a_list_was_to_be_shorter() -> None:
    """While the disk that was lost has no successor, the list is to lose it: those who stay are asked, and
    one is not whole yet. Then there is a node that can have a copy."""

    async def story(world: World) -> None:
        await fill(world, 5)
        lost, number = world.nodes[3], 3
        others = [node for node in world.up if node is not lost]
        whole, asked = Completions.is_whole, list[int]()

        def not_yet(completions: Completions, uid: int) -> bool:
            if completions is others[0].broker.replication.completions:
                return whole(completions, uid)
            asked.append(uid)
            return False

        lost.kill(power=True)
        await until(lambda: all(lost.member not in open_replicas(node) for node in others), 60)
        with mock.patch.object(Completions, "is_whole", not_yet):
            removal = RemoveNode(number, disk_gone=True)
            await until_applied(others[0], removal)
            await until(lambda: bool(asked), 60)
            await asyncio.sleep(10)
        lost.wipe()
        await lost.start(join=f"{others[0].host}:{PEER_PORT}", join_timeout_ms=60_000)
        await until(lambda: is_healed(world), seconds=repair.TURN_SECONDS - 10)  # before the next one's turn

    run_story(story, replicas=3, segment_records=2, replica_lost_ms=2000)


def open_replicas(node: WorldNode) -> set[int]:
    """Who has a replica of the open segment."""
    return set(node.topic("t").state.open_segment.replicas)


async def until_applied(node: WorldNode, command: Command) -> None:
    for _ in range(30):
        if (await node.broker.metadata.propose(command)).result is Result.APPLIED:
            return
        await asyncio.sleep(2)
    raise AssertionError(f"{command} was not applied")


def test_i2_a_disk_that_is_lost_can_be_replaced_as_soon_as_the_others_have_said_that_they_are_whole() -> None:
    """Too few were known to be whole, and they were asked only while all answered. So the node whose disk was
    lost was never let in again: simulation, seed 1637. Now nobody waits for who does not answer."""

    async def story(world: World) -> None:
        await fill(world, 8)
        await until(lambda: is_healed(world))
        lost = world.nodes[3]
        others = [node for node in world.up if node is not lost]
        for node in others:
            node.broker.replication.completions.on_change = lambda *told: None  # they say nothing for now
        lost.kill(power=True)
        await fill(world, 8, 8)
        await asyncio.sleep(10)
        for node in others:
            await node.stop()
            await node.start()
        await come_back_wiped(world, lost)
        await until(lambda: is_healed(world), seconds=300)

    run_story(story, replicas=3, segment_records=2, repair_after_ms=600_000)
