"""A segment was released while a node that has it was down, and its object has rotted since: what the node
brings back may be all there is (C4)."""

from __future__ import annotations

import pytest

from ister.errors import CorruptSegment
from ister.metadata.commands import ReportObject, Result
from ister.metadata.state import SegmentState
from ister.replication.copies.copying import ASIDE
from ister.testing.cluster import World, WorldNode, read_all, run_story
from tests.history.test_export import all_exported, published
from tests.history.test_hybrid_reading import OLD, all_released, files_are_gone
from tests.replication.repair_helpers import (
    durable,
    fill,
    has_files,
    is_healed,
    is_whole,
    numbers,
    path_of,
    sealed,
    until,
)

SETTINGS = {"has_store": True, "replicas": 3, **OLD}


async def away_at_the_release(world: World) -> tuple[WorldNode, SegmentState]:
    """A node that is down with a whole copy of a segment that nobody else has: it is in the history."""
    await fill(world, 5)
    await until(lambda: all_exported(world, 1) and is_healed(world))
    leaders = (world.leader_of("t"), world.metadata_leader())
    away = next(node for node in world.up if node not in leaders)
    away.kill()
    await until(lambda: all_released(world, 1) and files_are_gone(world))
    segment = published(world)[0]
    assert is_whole(world, away, segment)
    return away, segment


def is_damaged(world: World) -> bool:
    return any(one.history is not None and one.history.damaged for one in published(world))


async def is_had_again(world: World, away: WorldNode, segment: SegmentState) -> None:
    """It is listed, its object is made anew of it, and only then it goes."""
    assert segment.history is not None
    name = segment.history.name
    await until(lambda: sealed(world)[0].replicas == [away.member] or not durable(world, away, segment), 60)
    assert is_whole(world, away, segment), "the last good copy there was is gone"
    await until(lambda: not is_damaged(world))
    await until(lambda: sealed(world)[0].is_released and not durable(world, away, segment))
    now = published(world)[0]
    assert now.history is not None and (now.history.name != name, now.history.attempt) == (True, 1)
    for node in world.up:
        async with world.connect(node.node_id) as log:
            assert await read_all(log, "t") == numbers(5)


def test_c4_the_last_copy_of_a_released_segment_stays_while_its_object_is_known_to_be_damaged() -> None:
    """The object is there, of the right size and with the right footer; a frame of it has rotted."""

    async def story(world: World) -> None:
        away, segment = await away_at_the_release(world)
        assert world.store is not None and segment.history is not None
        world.store.rot(segment.history.name, 100)
        async with world.connect() as log:
            with pytest.raises(CorruptSegment):
                await read_all(log, "t")
        await until(lambda: is_damaged(world))
        await away.start()
        await is_had_again(world, away, segment)

    run_story(story, **SETTINGS)


def test_c4_the_last_copy_of_a_released_segment_stays_while_its_object_has_rotted_and_nobody_knows() -> None:
    """Who was down at the release reads the object to its end before it lets its copy go."""

    async def story(world: World) -> None:
        away, segment = await away_at_the_release(world)
        assert world.store is not None and segment.history is not None
        world.store.rot(segment.history.name, 100)
        assert not is_damaged(world)
        await away.start()
        await is_had_again(world, away, segment)

    run_story(story, **SETTINGS)


def test_c4_what_is_said_of_an_object_while_it_is_looked_at_keeps_the_copy() -> None:
    async def story(world: World) -> None:
        away, segment = await away_at_the_release(world)
        assert world.store is not None and segment.history is not None
        late = world.store.faults.add("head", delay=5.0)
        await away.start()
        await until(lambda: late.struck > 0, 60)
        topic = world.leader_of("t")
        said = ReportObject(topic.topic("t").state.uid, segment.uid, segment.history.name, True)
        assert (await topic.broker.metadata.propose(said)).result is Result.APPLIED
        world.store.faults.remove(late)
        await is_had_again(world, away, segment)

    run_story(story, **SETTINGS)


def test_what_is_left_without_a_log_goes_whatever_the_object_is() -> None:
    async def story(world: World) -> None:
        _, segment = await away_at_the_release(world)
        assert segment.history is not None
        topic = world.leader_of("t")
        said = ReportObject(topic.topic("t").state.uid, segment.uid, segment.history.name, True)
        assert (await topic.broker.metadata.propose(said)).result is Result.APPLIED
        path, node = path_of(world, segment), next(one for one in world.up if one is not topic)
        node.kill()
        node.disk.open(path + ASIDE + ".log", create=True).close()
        node.disk.sync_directory(path.rpartition("/")[0])
        assert has_files(world, node, segment)
        await node.start()
        await until(lambda: not has_files(world, node, segment), 60)
        assert is_damaged(world)

    run_story(story, **SETTINGS)
