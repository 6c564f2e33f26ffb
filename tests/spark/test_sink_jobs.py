"""Jobs whose drivers died: finished if they were decided, dropped if not, each in its time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.spark.sink_world import Died, commit, dies_at, flat, lines, records_of, stage

import ister
from ister.errors import StagedRecordsGone, StaleBatch, UnknownTopic
from ister.spark.sink.committing import Committer
from ister.spark.sink.origin import Origin, make_stage
from ister.spark.sink.sweeping import FORGOTTEN_AFTER, UNFINISHED_AFTER, sweep
from ister.testing.cluster import World, run_story

LITTLE = timedelta(seconds=5)


def now(world: World) -> datetime:
    return datetime.fromtimestamp(world.nodes[1].clock.now_us() / 1_000_000, UTC)


async def system_topics(log: ister.Log) -> list[str]:
    return sorted(found.topic.rpartition(".")[2] for found in await log.list_topics("_spark/"))


async def begin(log: ister.Log, world: World) -> Origin:
    origin = Origin.of_job(now(world))
    await make_stage(log, origin.stage)
    return origin


def test_a_job_leaves_nothing_behind() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            origin = await begin(log, world)
            await commit(log, 0, await stage(log, *lines(0, 5), origin=origin), origin=origin)
            await Committer(log, origin).drop()
            assert await records_of(log) == flat(lines(0, 5))
            assert await system_topics(log) == []

    run_story(story, nodes=1)


def test_a_task_that_outlives_its_job_does_not_bring_its_stage_back() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            origin = await begin(log, world)
            staged = await stage(log, *lines(0, 5), origin=origin)
            await Committer(log, origin).drop()
            with pytest.raises(UnknownTopic):
                await stage(log, *lines(0, 5), origin=origin)
            with pytest.raises(StagedRecordsGone):
                await commit(log, 0, staged, origin=origin)
            with pytest.raises(UnknownTopic):
                await log.describe_topic("t")

    run_story(story, nodes=1)


def test_a_job_that_was_never_decided_is_dropped_a_day_later() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            origin = await begin(log, world)
            await stage(log, *lines(0, 5), origin=origin)
            began = now(world)
            await sweep(log, began + FORGOTTEN_AFTER - LITTLE)
            assert await system_topics(log) == ["staged"]
            await sweep(log, began + FORGOTTEN_AFTER + LITTLE)
            assert await system_topics(log) == []
            with pytest.raises(UnknownTopic):
                await log.describe_topic("t")

    run_story(story, nodes=1)


def test_a_job_that_is_older_than_a_day_and_still_stages_is_left_alone() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            origin = Origin.of_job(now(world) - 2 * FORGOTTEN_AFTER)
            await make_stage(log, origin.stage)
            await stage(log, *lines(0, 5), origin=origin)
            await sweep(log, now(world) + LITTLE)
            assert await system_topics(log) == ["staged"]

    run_story(story, nodes=1)


@pytest.mark.parametrize("step", ["manifest", "half-appended", "appended", "done"])
def test_a_job_that_was_decided_is_finished_by_whoever_comes_later(step: str) -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            origin = await begin(log, world)
            staged = await stage(log, *lines(0, 30), origin=origin)
            with pytest.raises(Died):
                await commit(log, 0, staged, origin=origin, reach=dies_at(step))
            began = now(world)
            for passed in (UNFINISHED_AFTER + LITTLE, UNFINISHED_AFTER + 2 * LITTLE):
                await sweep(log, began + passed)
                assert await records_of(log) == flat(lines(0, 30))
            await sweep(log, began + FORGOTTEN_AFTER + LITTLE)
            assert await system_topics(log) == []
            assert await records_of(log) == flat(lines(0, 30))

    run_story(story, nodes=1)


def test_an_applications_version_is_written_once_and_an_older_one_not_at_all() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            for version in (3, 3, 5):
                origin = Origin.of_application("nightly")
                await make_stage(log, origin.stage)
                frames = lines(version, 4)
                await commit(log, version, await stage(log, *frames, origin=origin), origin=origin)
                await Committer(log, origin).drop()
            origin = Origin.of_application("nightly")
            with pytest.raises(StaleBatch):
                await commit(log, 4, origin=origin)
            assert await records_of(log) == flat([*lines(3, 4), *lines(5, 4)])
            assert await system_topics(log) == ["ledger"]

    run_story(story, nodes=1)


def test_an_applications_version_whose_driver_died_is_finished_from_its_own_stage() -> None:
    """By the same version run again, and by whoever sweeps: its stage is not taken for a stranger's."""

    async def story(world: World) -> None:
        async with world.connect(1) as log:
            first, again = (Origin.of_application("a", now(world)) for _ in range(2))
            for origin in (first, again):
                await make_stage(log, origin.stage)
            staged = await stage(log, *lines(0, 20), origin=first)
            with pytest.raises(Died):
                await commit(log, 0, staged, origin=first, reach=dies_at("half-appended"))
            await sweep(log, now(world) + UNFINISHED_AFTER + LITTLE)
            assert await records_of(log) == flat(lines(0, 20))
            staged = await stage(log, *lines(0, 20)[::-1], origin=again)
            assert (await commit(log, 0, staged, origin=again)).is_repeated
            assert await records_of(log) == flat(lines(0, 20))

    run_story(story, nodes=1)


def test_a_job_that_was_decided_and_cannot_be_finished_is_kept_for_a_person() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            origin = await begin(log, world)
            staged = await stage(log, *lines(0, 30), origin=origin)
            with pytest.raises(Died):
                await commit(log, 0, staged, origin=origin, reach=dies_at("half-appended"))
            await log.delete_topic("t")
            await sweep(log, now(world) + FORGOTTEN_AFTER + LITTLE)
            assert await system_topics(log) == ["ledger", "staged"]

    run_story(story, nodes=1)
