"""What is read around offsets that were given up, and of the tail that comes back after all (F6)."""

from __future__ import annotations

import asyncio

import pytest

from ister.errors import RecordsLost
from ister.testing.cluster import World, run_story
from tests.losses.stories import (
    aside,
    give_up,
    killed_leader,
    numbers,
    others,
    settled_leader,
    up_to_the_loss,
    values_from,
)


def test_every_node_tells_every_reader_of_a_lost_offset_which_they_are() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            for number in range(6):
                await log.append("t", numbers(1, number))
        leader = await settled_leader(world)
        base = leader.topic("t").state.open_segment.base_offset
        leader.kill()
        async with others(world, leader) as log:
            end = (await give_up(log)).lost_end
            await log.append("t", [b"after"])
        await leader.start()
        await world.settle()
        for node in world.up:
            async with world.connect(node.node_id) as log:
                for offset in (base, base + 1, end - 1):
                    with pytest.raises(RecordsLost) as caught:
                        await anext(aiter(log.read("t", start=offset)))
                    assert caught.value.offsets == (base, end)
                    assert caught.value.hint == f"Read on from offset {end}."
                    assert f"offset {offset} of topic default/t is lost" in caught.value.message
                seen, told = await up_to_the_loss(log)
                assert (seen, told.offsets) == (numbers(base), (base, end)), "what lies before is read first"
                assert await values_from(log, end) == [b"after"]

    run_story(story, segment_records=4)


def test_a_reader_that_follows_is_told_too() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
            leader = world.leader_of("t")
            seen: list[bytes | None] = []

            async def follow() -> None:
                async for record in log.read("t", follow=True):
                    seen.append(record.value)  # noqa: PERF401 (it is looked at while it grows)

            following = asyncio.ensure_future(follow())
            await asyncio.sleep(1)
            leader.kill(power=True)
            async with others(world, leader) as operator:
                end = (await give_up(operator)).lost_end
            with pytest.raises(RecordsLost) as caught:
                await following
            assert (seen, caught.value.offsets) == (numbers(3), (0, end))

    run_story(story)


def test_a_time_within_the_loss_leads_behind_it() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            first = await log.append("t", numbers(4))
            await asyncio.sleep(10)
            last = await log.append("t", numbers(2, 4))
        leader = await settled_leader(world)
        base = leader.topic("t").state.open_segment.base_offset
        assert base == 4
        leader.kill(power=True)
        async with others(world, leader) as log:
            end = (await give_up(log)).lost_end
            assert await log.offsets_at("t", last.append_time_us) == end, "nothing is there yet"
            after = await log.append("t", [b"after"])
            assert after.append_time_us > last.append_time_us
            for time_us, offset in (
                (first.append_time_us, 0),
                (first.append_time_us + 1, end),
                (last.append_time_us, end),
                (after.append_time_us, end),
                (after.append_time_us + 1, end + 1),
            ):
                assert await log.offsets_at("t", time_us) == offset

    run_story(story, segment_records=4)


def test_a_time_before_everything_leads_behind_a_loss_that_is_the_topics_beginning() -> None:
    async def story(world: World) -> None:
        leader = await killed_leader(world, 4, power=True)
        async with others(world, leader) as log:
            end = (await give_up(log)).lost_end
            await log.append("t", [b"after"])
            assert await log.offsets_at("t", 0) == end
            assert await log.offsets_at("t", "earliest") == 0, "the offsets are there, and lost"

    run_story(story)


def test_f6_a_tail_that_comes_back_is_set_aside_and_reported_and_never_served() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(5))
            await log.append("t", numbers(5, 5))
        leader = world.leader_of("t")
        state = leader.topic("t").state
        path = f"segments/{state.uid:016d}/{1:08d}-{state.open_segment.uid:016d}"
        before = leader.disk.durable_bytes(path + ".log").rstrip(b"\0")
        leader.kill()
        async with others(world, leader) as log:
            end = (await give_up(log)).lost_end
            await log.append("t", [b"after"])
        for _ in range(2):
            await leader.start()
            await world.settle()
            assert await aside(leader) == [f"{path.rpartition('/')[2]}.lost-0-10.log"]
            assert leader.disk.durable_bytes(f"{path}.lost-0-10.log").rstrip(b"\0") == before
            assert not leader.disk.exists(path + ".log")
            for node in world.up:
                async with world.connect(node.node_id) as log:
                    with pytest.raises(RecordsLost):
                        await anext(aiter(log.read("t", start=9)))
                    notes = (await log.describe_topic("t")).notes
                    assert any("offsets 0 to 9" in one and "set aside" in one for one in notes), notes
                    assert (await log.recovery_of("t")).notes == [one for one in notes if "set aside" in one]
            leader.kill()
        async with others(world, leader) as log:
            assert await values_from(log, end) == [b"after"]

    run_story(story)
