"""C1, C2: the metadata knows who has all of a sealed segment, by the seal and by what the nodes report."""

from __future__ import annotations

import asyncio
from unittest import mock

from ister.errors import RequestTimeout
from ister.metadata.commands import Command, Outcome, ReportCopies, Reported, SealSegment
from ister.metadata.state import SegmentState
from ister.testing.cluster import World, WorldNode, run_story
from tests.replication.repair_helpers import fill, newest, path_of, sealed, until


def known(world: World) -> list[bool]:
    """Of each sealed segment: whether all in its list are known to have all of it."""
    return [all(map(segment.is_whole_at, segment.replicas)) for segment in sealed(world)]


def is_known(world: World) -> bool:
    return bool(known(world)) and all(known(world))


def of(world: World, uid: int) -> SegmentState:
    return next(one for one in sealed(world) if one.uid == uid)


def test_c1_all_replicas_of_what_is_sealed_are_known_to_have_it_within_moments() -> None:
    async def story(world: World) -> None:
        await fill(world, 7)
        await until(lambda: len(sealed(world)) >= 3 and is_known(world), 5)

    run_story(story, replicas=3, segment_records=2)


def test_c1_under_a_weak_fsync_mode_the_seal_says_nothing_and_each_reports_what_it_has_synced() -> None:
    async def story(world: World) -> list[list[int] | None]:
        seen: list[list[int] | None] = []

        def watch(command: Command | None, outcome: Outcome) -> None:
            if isinstance(command, SealSegment) and outcome.ok:
                seen.append(command.holders)

        async with world.connect() as log:
            await log.create_topic("t", fsync="none")
        newest(world).broker.metadata.watch(watch)
        await fill(world, 5)
        await until(lambda: is_known(world), 5)
        return seen

    found = run_story(story, replicas=1, segment_records=2)
    assert found and not any(found)


def test_c2_one_that_was_away_counts_once_it_has_completed_its_copies() -> None:
    async def story(world: World) -> tuple[bool, bool]:
        away = await one_away(world)
        await asyncio.sleep(3)
        counted = any(away.member in one.whole for one in sealed(world))
        await away.start()
        await until(lambda: is_known(world), 60)
        return counted, True

    assert run_story(story, replicas=3, segment_records=3, replica_lost_ms=600_000) == (False, True)


async def one_away(world: World) -> WorldNode:
    """It is a replica of segments that were sealed without it."""
    await fill(world, 1)
    opened = world.leader_of("t").topic("t").state.open_segment
    away = next(node for node in world.up if node.member in opened.replicas and node.member != opened.leader)
    away.kill()
    await fill(world, 3, 1)
    await until(lambda: bool(sealed(world)))
    return away


def test_c2_damage_is_told_at_once_and_what_was_mended_too() -> None:
    async def story(world: World) -> None:
        await fill(world, 4)
        await until(lambda: is_known(world))
        segment = sealed(world)[0]
        rotten = next(node for node in world.up if node.member in segment.replicas)
        rotten.disk.rot(path_of(world, segment) + ".log", 60)
        seen: list[int] = []

        def watch(command: Command | None, outcome: Outcome) -> None:
            if isinstance(command, ReportCopies) and outcome.ok:
                told = of(world, segment.uid).told_by(rotten.member)
                seen.append(told.state if told is not None else 0)

        newest(world).broker.metadata.watch(watch)
        await rotten.broker.replication.scrubbing.round()
        await until(lambda: Reported.DAMAGED in seen, 5)
        await until(lambda: rotten.member in of(world, segment.uid).whole, 30)
        assert seen[-1] == 0

    run_story(story, replicas=3, segment_records=2)


def test_c2_a_report_that_is_lost_is_repeated() -> None:
    """Nobody can say whether it was applied; what is still different is told again."""

    async def story(world: World) -> int:
        away = await one_away(world)
        lost: list[Command] = []
        await away.start()
        metadata, propose = away.broker.metadata, away.broker.metadata.propose

        async def lose(command: Command, *rest: float) -> Outcome:
            if isinstance(command, ReportCopies) and len(lost) < 2:
                lost.append(command)
                raise RequestTimeout("nobody answered")
            return await propose(command, *rest)

        with mock.patch.object(metadata, "propose", lose):
            await until(lambda: is_known(world), 60)
        return len(lost)

    assert run_story(story, replicas=3, segment_records=3, replica_lost_ms=600_000) == 2


def test_c2_nothing_is_told_of_what_the_metadata_has_already() -> None:
    async def story(world: World) -> int:
        await fill(world, 7)
        await until(lambda: is_known(world))
        before = newest(world).broker.metadata.state.applied_index
        await asyncio.sleep(30)
        return newest(world).broker.metadata.state.applied_index - before

    assert run_story(story, replicas=3, segment_records=2) == 0
