"""Several drivers, several queries, and brokers that die: each record once, whatever the seed."""

from __future__ import annotations

import asyncio

import pytest
from tests.spark.sink_world import QUERY, Died, commit, flat, frame_of, lines, records_of, stage

from ister.errors import IsterError
from ister.spark.sink.ledger import read_ledger
from ister.spark.sink.origin import Origin
from ister.spark.sink.records import Manifest
from ister.spark.sink.staging import open_stager
from ister.testing.cluster import World, run_story

BATCHES = 6
STEPS = ("before-manifest", "manifest", "half-appended", "rebased", "appended", "done")


@pytest.mark.parametrize("seed", range(12))
def test_three_drivers_of_one_query_that_die_at_random_write_each_record_once(seed: int) -> None:
    """They stage each batch in orders of their own, at once; brokers are killed meanwhile."""

    async def story(world: World) -> None:
        random = world.loop.fork("drivers")
        finished: set[int] = set()

        async def drive(through: int) -> None:
            batch = 0
            while batch < BATCHES:
                dies = random.choice(STEPS) if random.random() < 0.5 else ""

                async def reach(step: str, dies: str = dies) -> None:
                    if step == dies:
                        raise Died(step)
                    await asyncio.sleep(random.random() * 0.05)

                frames = lines(batch, 12)
                random.shuffle(frames)
                try:
                    async with world.connect(through, 1 + through % 3, retry_deadline_s=20) as log:
                        cut = random.randrange(13)
                        parts = [await stage(log, *part) for part in (frames[:cut], frames[cut:])]
                        await commit(log, batch, *parts, reach=reach)
                except (Died, IsterError):
                    await asyncio.sleep(random.random())
                    continue
                finished.add(batch)
                batch += 1

        async with world.connect(1, 2, 3) as log:
            await log.create_topic("t")
        drivers = asyncio.gather(*(drive(through) for through in (1, 2, 3)))
        while not drivers.done():
            await asyncio.sleep(1 + 3 * random.random())
            victim = random.choice(world.up)
            victim.kill()
            await asyncio.sleep(random.random() * 2)
            await victim.start()
        await drivers
        assert finished == set(range(BATCHES))
        async with world.connect(1, 2, 3) as log:
            found = await records_of(log)
            assert sorted(found) == sorted(flat([frame for at in range(BATCHES) for frame in lines(at, 12)]))
            assert [int(value.split(b"-")[0]) for value in found] == sorted(list(range(BATCHES)) * 12)

    run_story(story, seed=seed, segment_records=9, replicas=3)


def test_two_queries_and_a_producer_write_to_one_topic_and_do_not_disturb_each_other() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log, world.connect(2) as other:

            async def query(name: str, through: object) -> None:
                origin = Origin.of_query(name)
                for batch in range(5):
                    frames = [[f"{name}{batch}-{number}".encode()] for number in range(10)]
                    staged = await stage(log, *frames, origin=origin)
                    await commit(log, batch, staged, origin=origin)
                    await commit(other, batch, origin=origin)

            async def produce() -> None:
                for number in range(50):
                    await other.append("t", [b"p0-%d" % number])

            await asyncio.gather(query("a", log), query("b", other), produce())
            found = await records_of(log)
            for name, batches, count in ((b"a", 5, 10), (b"b", 5, 10), (b"p", 1, 50)):
                expected = [b"%s%d-%d" % (name, batch, at) for batch in range(batches) for at in range(count)]
                assert [value for value in found if value.startswith(name)] == expected
            assert len(found) == 150

    run_story(story, segment_records=20)


def test_one_batch_goes_to_many_topics_each_in_its_order_and_tells_the_places() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await log.append("t1", [b"here before"])
            stager = await open_stager(log, QUERY.stage)
            for number in range(60):
                await stager.put_frame(f"t{number % 12}", frame_of([b"%d" % number] * 2))
            done = await commit(log, 0, await stager.finish(), note="of mine")
            stager.close()
            assert done.counts == {f"default/t{at}": 10 for at in range(12)}
            for at in range(12):
                expected = [b"%d" % number for number in range(at, 60, 12) for _ in range(2)]
                assert await records_of(log, f"t{at}") == ([b"here before"] if at == 1 else []) + expected
            places = dict(done.places)
            assert [(place.record, place.offset, place.count) for place in places.values()] == [
                (0, int(topic == "default/t1"), 10) for topic in places
            ]
            assert (await commit(log, 0)).places == done.places
            assert (await commit(log, 0)).note == "of mine"

    run_story(story, nodes=1)


def test_an_identity_goes_on_behind_batches_that_did_not_have_its_topic() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            for batch in range(20):
                topic = "rare" if batch in (0, 19) else "often"
                await commit(log, batch, await stage(log, *lines(batch, 2), topic=topic))
            rare = {frame.header.producer_id async for frame in log.read("rare").frames()}
            assert len(rare) == 1
            assert await records_of(log, "rare") == flat([*lines(0, 2), *lines(19, 2)])

    run_story(story, nodes=1)


def test_a_ledger_that_is_made_again_is_never_taken_for_the_one_before() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await commit(log, 0, await stage(log, *lines(0, 3)))
            await log.delete_topic(QUERY.ledger)
            await commit(log, 0, await stage(log, *lines(1, 3)))
            assert await records_of(log) == flat([*lines(0, 3), *lines(1, 3)])

    run_story(story, nodes=1)


def test_what_was_staged_is_trimmed_when_it_is_done_and_the_ledger_stays_short() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await stage(log, [b"never named"])
            for batch in range(1100):
                await commit(log, batch, await stage(log, *lines(batch, 1)))
            staged = await log.describe_topic(QUERY.stage)
            assert staged.end_offset == 1101 and len(staged.segments) == 1
            ledger = await log.describe_topic(QUERY.ledger)
            assert ledger.end_offset == 2200 and 900 <= ledger.start_offset <= 1200
            found = await read_ledger(log, QUERY.ledger, 800)
            assert found.of(800) is not None and isinstance(found.decided[-1].manifest, Manifest)

    run_story(story, nodes=1)
