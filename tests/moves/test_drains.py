"""A node is drained: nothing new comes, all that it has goes, and only then it is taken out (C1 to C5)."""

from __future__ import annotations

import asyncio

import pytest

import ister
from ister.errors import BadRequest
from ister.protocol.moves import DrainDescription
from ister.testing.cluster import World, read_all, run_story
from tests.moves.moving_helpers import written
from tests.replication.repair_helpers import is_healed, sealed, until


async def drained(log: ister.Log, node_id: int, seconds: float = 300) -> DrainDescription:
    async with asyncio.timeout(seconds):
        while True:
            found = await log.drain_node(node_id)
            if not (found.leads or found.follows or found.copies):
                return found
            await asyncio.sleep(0.5)


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_drained_node_holds_nothing_is_removed_and_nothing_is_lost(replicas: int) -> None:
    async def story(world: World) -> None:
        async with world.connect() as log, world.connect() as asking:
            for topic in ("t", "u", "v", "w"):
                for number in range(12):
                    await log.append(topic, [b"%d" % number])
            leaving = world.leader_of("u")
            for topic in ("u", "v"):
                if world.leader_of(topic) is not leaving:
                    await asking.move_topic(topic, leaving.node_id)
            with pytest.raises(BadRequest) as caught:
                await asking.remove_node(leaving.node_id)
            assert f"`ister node drain {leaving.node_id}`" in caught.value.hint
            async with written(log, "t") as offsets:
                await drained(asking, leaving.node_id)
                await asyncio.sleep(20)
                found = await asking.drain_node(leaving.node_id, dry_run=True)
                assert (found.leads, found.follows, found.copies) == (0, 0, 0), "nothing new comes"
                shown = {node.node_id: node.drained for node in (await asking.cluster()).nodes}
                assert [one for one, is_drained in shown.items() if is_drained] == [leaving.node_id]
                segments = (await asking.describe_topic("t")).segments
                assert segments[-1].segment > segments[0].segment + 5
            assert offsets == list(range(12, 12 + len(offsets)))
            assert (await asking.remove_node(leaving.node_id)).detail == "removed"
            leaving.kill()
            leaving.wipe()
            rest = [node.node_id for node in world.up]
            async with world.connect(*rest) as other:
                for topic in ("u", "v", "w"):
                    assert await read_all(other, topic) == [b"%d" % number for number in range(12)]
                values = await read_all(other, "t")
            assert values[: 12 + len(offsets)] == [
                *(b"%d" % number for number in range(12)),
                *(b"%d" % number for number in range(len(offsets))),
            ]

    run_story(story, nodes=4 if replicas == 3 else 3, replicas=replicas, segment_records=5)


def test_a_drain_says_what_there_is_changes_nothing_when_dry_and_is_ended_by_activate() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            for number in range(40):
                await log.append("t", [b"%d" % number])
            await until(lambda: is_healed(world))
            before = world.nodes[1].broker.metadata.state.applied_index
            dry = await log.drain_node(2, dry_run=True)
            assert not dry.is_drained
            assert dry.copies > 0
            assert world.nodes[1].broker.metadata.state.applied_index == before
            assert (await log.drain_node(2)).is_drained
            found = await log.activate_node(2)
            assert not found.is_drained
            for number in range(40):
                await log.append("t", [b"%d" % number])
            await until(lambda: is_healed(world))
            leaders = {segment.leader for segment in (await log.describe_topic("t")).segments}
            assert leaders == {1, 2, 3}

    run_story(story, replicas=3, segment_records=5)


def test_the_last_active_node_is_not_drained() -> None:
    """D4."""

    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.drain_node(1)
            await log.drain_node(2)
            with pytest.raises(BadRequest, match="no other node is left"):
                await log.drain_node(3)
            with pytest.raises(BadRequest, match="there is no node 7"):
                await log.drain_node(7)
            await log.append("t", [b"x"])
            assert world.leader_of("t").node_id == 3

    run_story(story)


def test_a_drain_waits_for_a_node_that_is_down_rather_than_leave_fewer_copies() -> None:
    """D1: the copy that stays may have rotted, and nobody knows of it yet (simulation of moves, seed 29)."""

    async def story(world: World) -> None:
        async with world.connect() as log, world.connect() as asking:
            for number in range(12):
                await log.append("t", [b"%d" % number])
            await until(lambda: is_healed(world, copies=2))
            leaving, down = (node for node in world.up if node is not world.metadata_leader())
            down.kill()
            await asking.drain_node(leaving.node_id)
            await asyncio.sleep(60)
            assert all(len(segment.replicas) == 2 for segment in sealed(world))
            await down.start()
            await drained(asking, leaving.node_id)
            assert all(len(segment.replicas) == 2 for segment in sealed(world))

    run_story(story, replicas=2, segment_records=2, repair_after_ms=1_000_000)


def test_a_drain_goes_on_when_the_metadata_leader_dies() -> None:
    """D2."""

    async def story(world: World) -> None:
        async with world.connect() as log:
            for topic in range(12):
                await log.append(f"t{topic}", [b"x"] * 3)
            dies = world.metadata_leader()
            leaving = next(node.node_id for node in world.up if node is not dies)
            await log.drain_node(leaving, max_parallel=1)
            await asyncio.sleep(1)
            dies.kill()
            await asyncio.sleep(3)
            await dies.start()
            await drained(log, leaving)
            for topic in range(12):
                assert await read_all(log, f"t{topic}") == [b"x"] * 3

    run_story(story, replicas=2)
