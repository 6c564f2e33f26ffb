"""What no descriptor names goes out of the store; what one names, or will name, never does."""

from __future__ import annotations

from ister.history.names import parse_name
from ister.testing.cluster import World, read_all, run_story
from tests.history.test_export import all_exported, published
from tests.history.test_hybrid_reading import OLD, all_released, pass_seconds
from tests.replication.repair_helpers import fill, numbers, sealed, until


def stored(world: World) -> set[str]:
    assert world.store is not None
    return {name for name in world.store.stored() if parse_name(name) is not None}


def named(world: World, topic: str = "t") -> set[str]:
    return {one.history.name for one in published(world, topic) if one.history is not None}


def test_retention_of_all_of_a_topic_trims_what_is_released_and_its_objects_go() -> None:
    async def story(world: World) -> None:
        await fill(world, 18)
        await until(lambda: all_released(world, 3))
        before = stored(world)
        assert before == named(world)
        async with world.connect() as log:
            await log.alter_topic("t", retention_ms=600_000)
            await until(lambda: len(world.leader_of("t").topic("t").state.segments) == 1, seconds=2000)
            start = world.leader_of("t").topic("t").state.start_offset
            assert start > 0
            await until(lambda: not stored(world), seconds=3000)
            assert [one.offset async for one in log.read("t")] == list(range(start, 18))

    run_story(story, has_store=True, **OLD)


def test_a_pin_holds_what_is_in_the_history() -> None:
    async def story(world: World) -> None:
        await fill(world, 18)
        await until(lambda: all_released(world, 3))
        async with world.connect() as log:
            await log.pin("t", "reader", 6, ttl_s=3000)
            await log.alter_topic("t", retention_ms=600_000)
            await pass_seconds(world, 1000)
            start = world.leader_of("t").topic("t").state.start_offset
            assert 0 < start <= 6
            assert [one.offset async for one in log.read("t", start=6)] == list(range(6, 18))

    run_story(story, has_store=True, **OLD)


def test_the_objects_of_a_deleted_topic_go_and_those_of_its_successor_stay() -> None:
    async def story(world: World) -> None:
        await fill(world, 5)
        await until(lambda: all_exported(world, 1))
        old = stored(world)
        async with world.connect() as log:
            await log.delete_topic("t")
            await world.settle()
            await fill(world, 5)
            await until(lambda: all_exported(world, 1))
            deleted = await log.sweep_history("t")
            assert set(deleted) == old
            assert stored(world) == named(world)
            assert await read_all(log, "t") == numbers(5)
            assert await log.sweep_history("t") == []

    run_story(story, has_store=True, segment_records=4)


def test_what_waits_for_its_export_and_what_is_anothers_is_left_alone() -> None:
    async def story(world: World) -> None:
        assert world.store is not None
        await fill(world, 5)
        await until(lambda: all_exported(world, 1))
        (segment,) = sealed(world)
        assert segment.history is not None
        mine = parse_name(segment.history.name)
        assert mine is not None
        later = mine._replace(attempt=7)
        waiting = mine._replace(segment_uid=newest_uid(world), start_offset=5, end_offset=9)
        foreign = mine._replace(cluster_id="another")
        unborn = mine._replace(segment_uid=10**9)
        for name in (later, waiting, foreign, unborn):
            world.store.put(str(name), b"x")
        world.store.put("what-a-person-put-here", b"x")
        async with world.connect() as log:
            assert await log.sweep_history("t") == [str(later)]
        for name in (mine, waiting, foreign, unborn):
            assert world.store.peek(str(name))
        await pass_seconds(world, 2000)
        for name in (mine, waiting, foreign, unborn):
            assert world.store.peek(str(name))
        assert world.store.peek("what-a-person-put-here")

    run_story(story, has_store=True, segment_records=4, export_after_ms=0)


def newest_uid(world: World) -> int:
    return world.leader_of("t").topic("t").state.open_segment.uid


def test_an_upload_that_was_swept_is_made_again_under_another_name() -> None:
    async def story(world: World) -> None:
        """A late publish of what the sweeper has abandoned: the metadata refuses it."""
        from ister.metadata.commands import AbandonObject

        assert world.store is not None
        slow = world.store.faults.add("get", delay=20.0)
        await fill(world, 5)
        await until(lambda: bool(stored(world)))
        (segment,) = sealed(world)
        (name,) = stored(world)
        topic = world.leader_of("t").topic("t").state
        outcome = await world.leader_of("t").broker.metadata.propose(AbandonObject(topic.uid, segment.uid, 0))
        assert outcome.ok
        world.store.lose(name)
        world.store.faults.remove(slow)
        await until(lambda: all_exported(world, 1))
        assert stored(world) == named(world)
        assert name not in stored(world)

    run_story(story, has_store=True, segment_records=4)
