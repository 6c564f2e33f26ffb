"""Drivers that die at any line of a commit, or wake up late: each record once, by the first manifest."""

from __future__ import annotations

import asyncio

import pytest
from tests.spark.sink_world import (
    QUERY,
    Died,
    Pause,
    commit,
    dies_at,
    flat,
    forget_producers,
    frame_of,
    lines,
    records_of,
    stage,
)

from ister.client.sequencer import Identity
from ister.errors import IsterError
from ister.spark.sink.ledger import read_ledger
from ister.spark.sink.records import producer_id
from ister.testing.cluster import World, run_story

STEPS = ("before-manifest", "manifest", "half-appended", "appended", "done")


@pytest.mark.parametrize("step", STEPS)
def test_a_batch_whose_driver_died_is_there_once_though_planned_anew(step: str) -> None:
    async def story(world: World) -> None:
        first, again = lines(1, 20), lines(1, 20)[::-1]
        async with world.connect(1) as log:
            await commit(log, 0, await stage(log, *lines(0, 3)))
            staged = [await stage(log, *first[:10]), await stage(log, *first[10:])]
            with pytest.raises(Died):
                await commit(log, 1, *staged, reach=dies_at(step))
        async with world.connect(1) as log:
            # Another number of tasks, and another order of rows.
            replanned = [await stage(log, *again[start : start + 7]) for start in range(0, 20, 7)]
            done = await commit(log, 1, *replanned)
            assert done.is_repeated == (step != "before-manifest")
            holds = again if step == "before-manifest" else first
            assert await records_of(log) == flat(lines(0, 3)) + flat(holds)
            await commit(log, 2, await stage(log, *lines(2, 3)))
            assert (await records_of(log))[23:] == flat(lines(2, 3))

    run_story(story, nodes=1)


def test_a_batch_that_is_done_is_done_whoever_commits_it_again() -> None:
    """A lost commit log: Spark runs the last batch once more."""

    async def story(world: World) -> None:
        async with world.connect(1) as log:
            for batch in range(3):
                await commit(log, batch, await stage(log, *lines(batch, 4)))
            before = await records_of(log)
            for batch in (2, 1, 0, 2):
                done = await commit(log, batch, await stage(log, *lines(batch, 4)))
                assert done.is_repeated and done.counts == {"default/t": 4}
            assert await records_of(log) == before == flat([*lines(0, 4), *lines(1, 4), *lines(2, 4)])

    run_story(story, nodes=1)


@pytest.mark.parametrize("step", ["manifest", "half-appended", "appended"])
def test_a_batch_of_500_frames_committed_twice_is_there_once(step: str) -> None:
    """A producer's table keeps 8 frames; the headers in the topic tell the rest."""

    async def story(world: World) -> None:
        async with world.connect(1) as log:
            with pytest.raises(Died):
                await commit(log, 0, await stage(log, *lines(0, 500)), reach=dies_at(step))
            await commit(log, 0)
            assert await records_of(log) == flat(lines(0, 500))

    run_story(story, nodes=1, segment_records=300)


@pytest.mark.parametrize("step", ["manifest", "half-appended", "appended"])
def test_a_driver_that_wakes_up_late_appends_nothing_twice(step: str) -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log, world.connect(1) as other:
            pause = Pause(step)
            sleeper = asyncio.create_task(commit(log, 0, await stage(log, *lines(0, 100)), reach=pause))
            await pause.reached.wait()
            await commit(other, 0, await stage(other, *lines(0, 100)[::-1]))
            await commit(other, 1, await stage(other, *lines(1, 100)))
            pause.go_on.set()
            assert (await sleeper).counts == {"default/t": 100}
            assert await records_of(log) == flat([*lines(0, 100), *lines(1, 100)])

    run_story(story, nodes=1)


def test_a_query_that_slept_until_it_was_forgotten_goes_on_under_another_identity() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await commit(log, 0, await stage(log, *lines(0, 5)))
            await forget_producers(log, "t", 50)
            await commit(log, 1, await stage(log, *lines(1, 5)))
            await commit(log, 2, await stage(log, *lines(2, 5)))
            assert await records_of(log) == flat([*lines(0, 5), *lines(1, 5), *lines(2, 5)])
            ledger = await read_ledger(log, QUERY.ledger, 0)
            assert [len(decided.rebases) for decided in ledger.decided] == [0, 1, 0]

    run_story(story, nodes=1, segment_records=50)


@pytest.mark.parametrize("step", ["manifest", "half-appended", "appended"])
@pytest.mark.parametrize("batches_before", [0, 1])
def test_a_batch_cut_short_and_then_forgotten_is_finished_once(step: str, batches_before: int) -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            for batch in range(batches_before):
                await commit(log, batch, await stage(log, *lines(batch, 5)))
            last = batches_before
            with pytest.raises(Died):
                await commit(log, last, await stage(log, *lines(last, 40)), reach=dies_at(step))
            await log.create_topic("t", if_absent=True)
            await forget_producers(log, "t", 50)
            await commit(log, last)
            await commit(log, last + 1, await stage(log, *lines(last + 1, 5)))
            expected = [frame for batch in range(batches_before) for frame in lines(batch, 5)]
            assert await records_of(log) == flat([*expected, *lines(last, 40), *lines(last + 1, 5)])

    run_story(story, nodes=1, segment_records=50)


def test_a_driver_that_dies_behind_its_rebase_is_followed_by_one_that_goes_on_from_it() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await commit(log, 0, await stage(log, *lines(0, 5)))
            with pytest.raises(Died):
                await commit(log, 1, await stage(log, *lines(1, 40)), reach=dies_at("half-appended"))
            await forget_producers(log, "t", 50)
            with pytest.raises(Died):
                await commit(log, 1, reach=dies_at("rebased"))
            await forget_producers(log, "t", 50)
            await commit(log, 1)
            await commit(log, 2, await stage(log, *lines(2, 5)))
            assert await records_of(log) == flat([*lines(0, 5), *lines(1, 40), *lines(2, 5)])

    run_story(story, nodes=1, segment_records=50)


def test_a_driver_that_wakes_up_after_it_was_forgotten_sends_its_first_frame_to_no_effect() -> None:
    """A5: sequence 0 of an unknown producer is taken only from who knows enough to say that it is new."""

    async def story(world: World) -> None:
        async with world.connect(1) as log, world.connect(1) as other:
            await log.create_topic("t")
            pause = Pause("manifest")
            sleeper = asyncio.create_task(commit(log, 0, await stage(log, *lines(0, 30)), reach=pause))
            await pause.reached.wait()
            await commit(other, 0)
            await forget_producers(other, "t", 50)
            pause.go_on.set()
            assert (await sleeper).counts == {"default/t": 30}
            assert await records_of(log) == flat(lines(0, 30))

    run_story(story, nodes=1, segment_records=50)


def test_a_batch_that_nobody_finished_is_finished_before_the_next_is_decided() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            with pytest.raises(Died):
                await commit(log, 0, await stage(log, *lines(0, 10)), reach=dies_at("half-appended"))
            await commit(log, 1, await stage(log, *lines(1, 10)))
            assert await records_of(log) == flat([*lines(0, 10), *lines(1, 10)])

    run_story(story, nodes=1)


def test_of_two_drivers_that_decide_at_once_one_decides() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log, world.connect(1) as other:
            pauses = Pause("before-manifest"), Pause("before-manifest")
            frames = lines(0, 10), lines(0, 10)[::-1]
            drivers = [
                asyncio.create_task(commit(through, 0, await stage(through, *ours), reach=pause))
                for through, ours, pause in zip((log, other), frames, pauses, strict=True)
            ]
            for pause in pauses:
                await pause.reached.wait()
            for pause in pauses:
                pause.go_on.set()
            done = await asyncio.gather(*drivers)
            assert sorted(one.is_repeated for one in done) == [False, True]
            assert await records_of(log) in map(flat, frames)
            assert len((await read_ledger(log, QUERY.ledger, 0)).decided) == 1

    run_story(story, nodes=1)


@pytest.mark.parametrize("hidden", [False, True])
def test_a_rebase_holds_only_behind_what_was_seen(hidden: bool) -> None:
    """Its first frame is appended where the look ended or nowhere: what a leader that was replaced did not
    show is found then."""

    async def story(world: World) -> None:
        async with world.connect(1) as log, world.connect(1) as other:
            with pytest.raises(Died):
                await commit(log, 0, await stage(log, *lines(0, 40)), reach=dies_at("half-appended"))
            await asyncio.sleep(1)
            there = len(await records_of(log))
            await forget_producers(log, "t", 50)
            pause = Pause("rebased")
            driver = asyncio.create_task(commit(log, 0, reach=pause))
            await pause.reached.wait()
            ledger = await read_ledger(log, QUERY.ledger, 0)
            target = ledger.decided[0].manifest.targets[0]
            mine = producer_id(ledger.uid, target.uid, target.epoch)
            sequencer = other.sequencer("t", Identity(mine if hidden else 5, 0))
            for values in ([b"other"] * there, lines(0, 40)[there] if hidden else [b"other"]):
                await sequencer.put_frame(frame_of(values)).wait(0)
            sequencer.close(IsterError("done"))
            pause.go_on.set()
            await driver
            assert await records_of(log) == flat(lines(0, 40))
            assert len((await read_ledger(log, QUERY.ledger, 0)).decided[0].rebases) == 1 + hidden

    run_story(story, nodes=1, segment_records=50)


def test_a_rebase_gets_through_to_a_topic_that_is_never_quiet() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log, world.connect(1) as other:
            await commit(log, 0, await stage(log, *lines(0, 5)))
            await forget_producers(log, "t", 400)
            is_over = False

            async def write() -> None:
                while not is_over:
                    await other.append("t", [b"other"])
                    await asyncio.sleep(0.002)

            writers = [asyncio.create_task(write()) for _ in range(3)]
            await commit(log, 1, await stage(log, *lines(1, 5)))
            is_over = True
            await asyncio.gather(*writers)
            assert await records_of(log) == flat([*lines(0, 5), *lines(1, 5)])

    run_story(story, nodes=1, segment_records=400)
