"""A node that a repair has replaced comes back with what nobody else has any more."""

from __future__ import annotations

import asyncio
import errno
from typing import NamedTuple
from unittest import mock

import pytest

from ister.errors import RecordsLost
from ister.frame import HEADER_SIZE
from ister.metadata.state import SegmentState
from ister.replication.copies import sealed_copies
from ister.testing.cluster import PEER_PORT, World, WorldNode, run_story
from tests.losses.stories import aside
from tests.replication.repair_helpers import (
    fill,
    has_files,
    is_healed,
    is_whole,
    numbers,
    path_of,
    replicas_of,
    sealed,
    until,
)

pytestmark = pytest.mark.slow


SETTINGS = {"nodes": 7, "replicas": 2, "segment_records": 2, "repair_after_ms": 10_000}


class Left(NamedTuple):
    away: WorldNode
    """Down, with a whole copy of the segment, and no replica of it any more."""
    segment: SegmentState


async def left_with_others(world: World) -> Left:
    """Those who have the segment now have lost their disks, and the operator has said so."""
    await fill(world, 6)
    await until(lambda: is_healed(world, copies=2))
    segment = sealed(world)[0]
    nodes = {node.member: node for node in world.up}
    first, away = (nodes[member] for member in segment.replicas)
    away.kill()
    await until(lambda: is_healed(world, copies=2))  # repair: another has it in its place
    now = next(one for one in sealed(world) if one.uid == segment.uid)
    second = nodes[next(member for member in now.replicas if member != first.member)]
    assert away.member not in now.replicas and is_whole(world, away, segment)
    for node in (first, second):  # both disks are lost, and the operator says so
        node.kill(power=True)
        node.wipe()
    rest = world.up[0]
    for node in (first, second):
        await node.start(join=f"{rest.host}:{PEER_PORT}", join_timeout_ms=60_000, replace_disk=True)
    return Left(away, segment)


def test_a_copy_that_is_the_last_one_is_offered_by_the_node_that_brings_it_back_and_repaired() -> None:
    async def story(world: World) -> None:
        away, segment = await left_with_others(world)
        async with world.connect() as log:
            with pytest.raises(RecordsLost):
                await anext(aiter(log.read("t", start=segment.base_offset)))
        await away.start()
        await asyncio.sleep(30)
        assert is_whole(world, away, segment), "the last copy there is was removed"
        now = next(one for one in sealed(world) if one.uid == segment.uid)
        assert away.member in now.replicas
        await until(lambda: any(one.uid == segment.uid and len(one.replicas) == 2 for one in sealed(world)))
        for node in world.up:
            async with world.connect(node.node_id) as log:
                there = [
                    record
                    async for record in log.read("t", start=segment.base_offset, end=segment.end_offset)
                ]
                assert [one.value for one in there] == numbers(len(there), segment.base_offset)
                assert len(there) == (segment.end_offset or 0) - segment.base_offset

    run_story(story, **SETTINGS)


def test_c4_a_copy_beside_a_damaged_one_is_listed_again_and_the_damaged_one_does_not_count() -> None:
    """The disk of one in the list is gone; the other's copy has rotted."""

    async def story(world: World) -> None:
        await fill(world, 6)
        await until(lambda: is_healed(world, copies=2))
        segment = sealed(world)[0]
        nodes = {node.member: node for node in world.up}
        rotten, away = (nodes[member] for member in segment.replicas)
        away.kill()
        await until(lambda: is_healed(world, copies=2))
        gone = nodes[next(one for one in replicas_of(world, segment.uid) if one != rotten.member)]
        rotten.disk.rot(path_of(world, segment) + ".log", HEADER_SIZE + 5)
        gone.kill(power=True)
        gone.wipe()
        await gone.start(join=f"{rotten.host}:{PEER_PORT}", join_timeout_ms=60_000, replace_disk=True)
        await rotten.broker.replication.scrubbing.round()
        assert rotten.broker.replication.completions.is_damaged(segment.uid)
        await away.start()
        await until(lambda: away.member in replicas_of(world, segment.uid), 60)
        now = next(one for one in sealed(world) if one.uid == segment.uid)
        assert rotten.member not in now.whole
        await until(lambda: is_healed(world, copies=2), 1500)

    run_story(story, **SETTINGS, scrub_bytes_per_second=1 << 20)


def test_f6_a_last_copy_that_comes_back_after_it_was_given_up_is_set_aside() -> None:
    async def story(world: World) -> None:
        away, segment = await left_with_others(world)
        async with world.connect() as log:
            shown = await log.recovery_of("t")
            assert segment.uid in shown.gone_segments
            assert (await log.accept_loss(shown, node_stopped=False)).accepted
        await away.start()
        await asyncio.sleep(30)
        kept = [name for name in await aside(away) if f"-{segment.uid:016d}." in name]
        end = f".lost-{segment.base_offset}-{segment.end_offset}.log"
        assert [name.partition(".")[2] for name in kept] == [end[1:]]
        now = next(one for one in sealed(world) if one.uid == segment.uid)
        assert away.member not in now.replicas and now.is_empty

    run_story(story, **SETTINGS)


def test_a_last_copy_that_is_damaged_is_neither_offered_nor_removed() -> None:
    async def story(world: World) -> None:
        away, segment = await left_with_others(world)
        away.disk.rot(path_of(world, segment) + ".log", 40)
        await away.start()
        await asyncio.sleep(30)
        now = next(one for one in sealed(world) if one.uid == segment.uid)
        assert away.member not in now.replicas
        assert has_files(world, away, segment)

    run_story(story, **SETTINGS)


@pytest.mark.parametrize(
    ("operation", "error"), [("open", errno.EMFILE), ("read", errno.ENOMEM), ("read", errno.EIO)]
)
def test_a_last_copy_that_could_not_be_read_at_first_is_offered_when_it_can(
    operation: str, error: int
) -> None:
    async def story(world: World) -> None:
        away, segment = await left_with_others(world)
        await away.start()
        await until(lambda: segment.uid in away.broker.replication.leaving.segments, step=0.001)
        path, cut_first = path_of(world, segment), int(operation == "open")
        rule = away.disk.faults.add(operation, prefix=path, suffix=".log", error=error, after=cut_first)
        await asyncio.sleep(20)
        assert rule.struck
        assert away.member not in replicas_of(world, segment.uid)
        away.disk.faults.remove(rule)
        await until(lambda: away.member in replicas_of(world, segment.uid), seconds=20)

    run_story(story, **SETTINGS)


def test_a_last_copy_that_is_no_good_is_forgotten_with_its_segment() -> None:
    async def story(world: World) -> None:
        away, segment = await left_with_others(world)
        away.disk.rot(path_of(world, segment) + ".log", 40)
        await away.start()
        leaving = away.broker.replication.leaving
        await until(lambda: segment.uid in leaving._no_good)
        async with world.connect() as log:
            await log.delete_topic("t")
        await asyncio.sleep(15)
        assert not leaving._no_good

    run_story(story, **SETTINGS)


def test_a_whole_copy_is_not_removed_and_copied_anew_for_the_repair_that_asks_for_it() -> None:
    """It may be on offer: the metadata would count it while it is half there."""

    async def story(world: World) -> None:
        away, segment = await left_with_others(world)
        await away.start()
        await until(lambda: segment.uid in away.broker.replication.leaving.segments, step=0.001)
        replication = away.broker.replication
        place = replication.copies.place(away.topic("t").state.uid, segment.uid)
        assert place is not None and away.member not in place.segment.replicas
        with mock.patch.object(sealed_copies, "remove_segment_files") as removed:
            taken = await replication.sealed_copies.take_in(place, [], is_resumed=False, begins=mock.Mock())
        assert (taken, removed.called) == (sealed_copies.Finished.WHOLE, False)
        assert is_whole(world, away, segment)

    run_story(story, **SETTINGS)
