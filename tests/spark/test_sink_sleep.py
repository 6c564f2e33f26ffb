"""Queries that sleep for a month, with a batch cut short or without, and wake up to a log that has forgotten
who they are: each record once."""

from __future__ import annotations

import asyncio

import pytest
from tests.spark.sink_world import (
    QUERY,
    Died,
    commit,
    dies_at,
    flat,
    forget_producers,
    lines,
    records_of,
    stage,
)

import ister
from ister.client.sequencer import Identity
from ister.errors import UnknownProducer
from ister.spark.sink.ledger import read_ledger
from ister.spark.sink.records import producer_id
from ister.testing.cluster import World, run_story

MONTH_S = 31 * 24 * 3600.0
FRAMES = 500


async def sleep_a_month(world: World) -> None:
    """The machine is off: what is old when it comes up again is dropped, as it would have been."""
    node = world.nodes[1]
    await node.stop()
    await asyncio.sleep(MONTH_S)
    await node.start()
    await world.settle()


async def let_the_log_forget(log: ister.Log) -> None:
    """Others write again, a segment is sealed, and whoever was silent for long is dropped."""
    for _ in range(12):
        await log.append("t", [b"other"] * 100)
    await asyncio.sleep(120)  # upkeep drops what is past its retention


async def is_forgotten(log: ister.Log) -> bool:
    """Whether the log knows nothing of the identity of the last batch that was decided."""
    ledger = await read_ledger(log, QUERY.ledger)
    assert ledger.newest is not None
    (target,) = ledger.newest.manifest.targets
    mine = Identity(producer_id(ledger.uid, target.uid, target.epoch), 1 << 40)
    sequencer = log.sequencer("t", mine)
    try:
        await sequencer.put([b"never"], None, None, None, ister.frame.Codec.NONE).wait(0)
    except UnknownProducer:
        return True
    except ister.errors.IsterError:
        return False
    finally:
        sequencer.close(ister.errors.IsterError("done"))
    raise AssertionError("it was appended")


@pytest.mark.parametrize("step", ["manifest", "half-appended", "appended"])
def test_a_batch_cut_short_is_finished_once_after_a_month(step: str) -> None:
    """Its staged frames are kept for so long, and the headers in the topic say how many of them are there."""

    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await commit(log, 0, await stage(log, *lines(0, 5)))
            with pytest.raises(Died):
                await commit(log, 1, await stage(log, *lines(1, FRAMES)), reach=dies_at(step))
        await sleep_a_month(world)
        async with world.connect(1) as log, world.connect(1) as other:
            await let_the_log_forget(log)
            assert await is_forgotten(log)
            again = await stage(log, *lines(1, FRAMES)[::-1])
            done = await asyncio.gather(commit(log, 1, again), commit(other, 1))
            assert [each.counts for each in done] == [{"default/t": FRAMES}] * 2
            await commit(log, 2, await stage(log, *lines(2, 5)))
            assert await records_of(log) == flat([*lines(0, 5), *lines(1, FRAMES), *lines(2, 5)])

    run_story(story, nodes=1, seconds=2 * MONTH_S, segment_records=600)


def test_a_query_that_slept_for_a_month_goes_on_and_its_last_batch_may_come_again() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await commit(log, 0, await stage(log, *lines(0, FRAMES)))
        await sleep_a_month(world)
        async with world.connect(1) as log:
            await let_the_log_forget(log)
            assert await is_forgotten(log)
            assert (await commit(log, 0, await stage(log, *lines(0, FRAMES)))).is_repeated
            await commit(log, 1, await stage(log, *lines(1, FRAMES)))
            assert (await commit(log, 1)).is_repeated
            assert await records_of(log) == flat([*lines(0, FRAMES), *lines(1, FRAMES)])

    run_story(story, nodes=1, seconds=2 * MONTH_S, segment_records=600)


@pytest.mark.parametrize("step", ["manifest", "half-appended", "appended"])
def test_500_frames_of_a_forgotten_query_committed_by_two_drivers_at_once_are_there_once(step: str) -> None:
    """1,000 others have written since, and a table keeps 8 frames of each that it knows."""

    async def story(world: World) -> None:
        async with world.connect(1) as log, world.connect(1) as other:
            with pytest.raises(Died):
                await commit(log, 0, await stage(log, *lines(0, FRAMES)), reach=dies_at(step))
            await log.create_topic("t", if_absent=True)
            await forget_producers(log, "t", 300)
            await asyncio.gather(commit(log, 0), commit(other, 0))
            assert await records_of(log) == flat(lines(0, FRAMES))

    run_story(story, nodes=1, segment_records=300)
