"""Who asks for the last records has named no offset, and gets those behind a loss; no gap is passed (F6)."""

from __future__ import annotations

import asyncio

import pytest

import ister
from ister.errors import RecordsLost
from ister.testing.cluster import World, run_story
from tests.losses.stories import give_up, killed_leader, numbers, others, settled_leader


async def last(log: ister.Log, count: int) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) async for record in log.read("t", last=count)]


def test_the_last_records_begin_behind_a_loss_that_some_of_them_would_be_in() -> None:
    async def story(world: World) -> None:
        leader = await killed_leader(world, 4)
        async with others(world, leader) as log:
            end = (await give_up(log)).lost_end
            assert await last(log, 100) == [], "there is nothing behind it yet"
            for number in range(3):
                await log.append("t", [b"after %d" % number])
            after = [(end + number, b"after %d" % number) for number in range(3)]
            assert await last(log, 2) == after[1:], "the loss lies before them"
            assert await last(log, 4) == after
            assert await last(log, 100) == after

    run_story(story)


def test_a_loss_in_the_middle_of_the_last_records_is_told_and_not_passed_over() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            for number in range(6):
                await log.append("t", numbers(1, number))
        leader = await settled_leader(world)
        base = leader.topic("t").state.open_segment.base_offset
        assert base > 0
        leader.kill()
        async with others(world, leader) as log:
            end = (await give_up(log)).lost_end
            await log.append("t", [b"after"])
            assert await last(log, 100) == [(end, b"after")], "offsets before it were to be skipped"
            seen: list[bytes | None] = []
            with pytest.raises(RecordsLost) as caught:
                async for record in log.read("t", last=end + 1):
                    seen.append(record.value)  # noqa: PERF401 (it is looked at after the error)
            assert (seen, caught.value.offsets) == (numbers(base), (base, end))

    run_story(story, segment_records=4)


def test_who_follows_from_the_last_records_goes_on_from_them() -> None:
    async def story(world: World) -> None:
        leader = await killed_leader(world, 4)
        async with asyncio.timeout(60), others(world, leader) as log:
            end = (await give_up(log)).lost_end
            records = aiter(log.read("t", last=3, follow=True))
            waiting = asyncio.ensure_future(anext(records))
            await asyncio.sleep(1)
            await log.append("t", [b"after"])
            found = await waiting
            assert (found.offset, found.value) == (end, b"after")

    run_story(story)


@pytest.mark.parametrize("waited_s", [1, 15])
def test_who_waits_behind_the_last_records_is_told_of_what_was_lost_there(waited_s: float) -> None:
    """What was appended after the reading began is not among the last records: it would have come."""

    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(4))
            leader = world.leader_of("t")
            waiting = asyncio.ensure_future(anext(aiter(log.read("t", last=0, follow=True))))
            await asyncio.sleep(waited_s)
            leader.kill(power=True)
            async with others(world, leader) as operator:
                end = (await give_up(operator)).lost_end
            with pytest.raises(RecordsLost) as caught:
                await waiting
            assert caught.value.offsets == (0, end)

    run_story(story)
