"""The load manager in a cluster: off unless told, bounded, and a rebalance is a move like any other (D14)."""

from __future__ import annotations

import asyncio

from ister.testing.cluster import World, read_all, run_story
from tests.moves.moving_helpers import ended, moved

QUICK = {"balance_threshold_percent": 10, "balance_min_topic_age_ms": 0, "balance_cooldown_ms": 0}


async def pile_up(world: World, count: int, node_id: int = 1) -> None:
    """So many topics, all led by one node, as if nobody had put them there."""
    async with world.connect() as log:
        for number in range(count):
            name = f"t{number}"
            await log.append(name, [b"%d" % number])
            if world.leader_of(name).node_id != node_id:
                await moved(log, name, node_id)
            await log.release_topic(name)


def led(world: World) -> list[int]:
    names = [name.partition("/")[2] for name in world.up[0].broker.topics]
    return sorted(sum(world.leader_of(name).node_id == node_id for name in names) for node_id in world.nodes)


def test_asked_for_it_moves_what_is_too_much_and_a_dry_run_moves_nothing() -> None:
    async def story(world: World) -> None:
        await pile_up(world, 9)
        async with world.connect() as log:
            await asyncio.sleep(35)  # each node has reported since
            dry = await log.balance(dry_run=True)
            assert (dry.strategy, len(dry.moves), led(world)) == ("fair", 6, [0, 0, 9])
            found = await log.balance()
            assert [move.topic for move in found.moves] == [move.topic for move in dry.moves]
            for move in found.moves:
                assert (await ended(log, move.move)).reason == "balance"
            assert led(world) == [3, 3, 3]
            for number in range(9):
                assert await read_all(log, f"t{number}") == [b"%d" % number]

    run_story(story, **QUICK)


def test_off_by_default_and_by_itself_within_moves_an_hour_where_it_is_on() -> None:
    async def quiet(world: World) -> None:
        await pile_up(world, 9)
        await asyncio.sleep(600)
        assert led(world) == [0, 0, 9]

    run_story(quiet, **QUICK)

    async def story(world: World) -> None:
        await pile_up(world, 9)
        await asyncio.sleep(600)
        assert led(world) == [2, 2, 5], "four moves an hour, and no more"
        await asyncio.sleep(3600)
        assert led(world) == [3, 3, 3]
        async with world.connect() as log:
            reasons = {move.reason for move in await log.moves() if move.target != 1}
        assert reasons == {"balance"}

    run_story(story, balance="fair", balance_moves_per_hour=4, seconds=9000, **QUICK)


def test_what_is_excluded_young_or_was_moved_by_hand_stays() -> None:
    async def story(world: World) -> None:
        await pile_up(world, 3)
        async with world.connect() as log:
            await log.move_topic("t0", 1)
            await asyncio.sleep(35)
            found = await log.balance()
            assert [move.topic for move in found.moves] == []

    run_story(story, **{**QUICK, "balance_exclude": "default/t1, */t2"})

    async def young(world: World) -> None:
        await pile_up(world, 3)
        async with world.connect() as log:
            assert (await log.balance()).moves == []
            await asyncio.sleep(400)
            assert (await log.balance()).moves != []

    run_story(young, **{**QUICK, "balance_min_topic_age_ms": 300_000})
