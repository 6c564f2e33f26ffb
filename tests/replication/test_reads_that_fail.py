"""A read that the system refused is no damage: another copy is asked, or the reader asks again."""

from __future__ import annotations

import asyncio
import errno
from datetime import UTC, datetime

import pytest

from ister.client.reader import Place
from ister.errors import IsterError, StorageFailed
from ister.metadata.state import SegmentState
from ister.protocol.replication import ReadLog
from ister.testing.cluster import World, WorldNode, read_all, run_story
from tests.replication.repair_helpers import (
    durable,
    fill,
    holders,
    is_healed,
    is_whole,
    numbers,
    path_of,
    sealed,
    until,
)

pytestmark = pytest.mark.slow

PASSING = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN]
SETTINGS = {"segment_records": 4, "scrub_bytes_per_second": 0}


def damaged(world: World) -> float:
    """How many copies were called damaged, or replaced, on all nodes."""
    found = [node.broker.replication.completions for node in world.up]
    return sum(one.found_corrupt.value + one.replaced.value + len(one.behind) for one in found)


def fail(
    world: World,
    node: WorldNode,
    segment: SegmentState,
    operation: str,
    error: int,
    count: int | None = None,
    suffix: str = ".log",
) -> None:
    """What this node has of a segment cannot be opened, or read, so often."""
    node.broker.sealed.forget("")
    path = path_of(world, segment)
    node.disk.faults.add(operation, prefix=path, suffix=suffix, error=error, count=count)


async def settled(world: World) -> SegmentState:
    await fill(world, 12)
    await until(lambda: len(sealed(world)) >= 2 and is_healed(world, len(sealed(world)[0].replicas)))
    return sealed(world)[0]


@pytest.mark.parametrize("error", PASSING)
@pytest.mark.parametrize("operation", ["open", "read"])
def test_a_failed_read_of_each_replica_damages_none_of_them(operation: str, error: int) -> None:
    async def story(world: World) -> None:
        segment = await settled(world)
        for node in world.up:
            fail(world, node, segment, operation, error, count=1)
        async with world.connect() as log:
            assert await read_all(log, "t") == numbers(12)
        await asyncio.sleep(30)
        assert damaged(world) == 0

    run_story(story, replicas=3, **SETTINGS)


@pytest.mark.parametrize("start", [0, datetime(1970, 1, 2, tzinfo=UTC)])
def test_a_node_that_cannot_open_files_has_its_readers_answered_by_others(start: Place) -> None:
    async def story(world: World) -> None:
        segment = await settled(world)
        node = world.nodes[holders(segment)[0]]
        fail(world, node, segment, "open", errno.EMFILE)
        async with world.connect(node.node_id, retry_deadline_s=2.0) as log:
            for _ in range(5):
                records = [one.value async for one in log.read("t", start=start)]
                assert records == numbers(12)
                await asyncio.sleep(1.5)
        assert damaged(world) == 0

    run_story(story, replicas=3, **SETTINGS)


def test_the_reader_of_the_only_copy_is_told_to_try_again_and_then_has_it() -> None:
    async def story(world: World) -> None:
        segment = await settled(world)
        node = world.nodes[holders(segment)[0]]
        for error in (errno.EMFILE, errno.EIO):
            fail(world, node, segment, "open" if error == errno.EMFILE else "read", error)
            async with world.connect(retry_deadline_s=2.0) as log:
                with pytest.raises(StorageFailed, match="cannot be read at offset 0"):
                    await read_all(log, "t")
                node.disk.faults.clear()
                assert await read_all(log, "t") == numbers(12)
                assert not (await log.cluster()).problems
        assert damaged(world) == 0

    run_story(story, replicas=1, **SETTINGS)


def test_what_a_disk_could_not_read_once_is_no_damage() -> None:
    async def story(world: World) -> None:
        segment = await settled(world)
        for node in world.up:
            fail(world, node, segment, "read", errno.EIO, count=1)
        async with world.connect() as log:
            assert await read_all(log, "t") == numbers(12)
        await asyncio.sleep(30)
        assert damaged(world) == 0

    run_story(story, replicas=3, **SETTINGS)


@pytest.mark.parametrize("suffix", [".log", ".side"])
def test_a_copy_that_its_disk_cannot_read_twice_is_replaced(suffix: str) -> None:
    async def story(world: World) -> None:
        segment = await settled(world)
        node = world.nodes[holders(segment)[0]]
        fail(world, node, segment, "read", errno.EIO, count=2, suffix=suffix)
        async with world.connect(node.node_id) as log:
            assert await read_all(log, "t") == numbers(12)
        completions = node.broker.replication.completions
        await until(lambda: completions.replaced.value == 1, seconds=30)
        assert completions.found_corrupt.value == 1
        await until(lambda: is_healed(world))

    run_story(story, replicas=3, **SETTINGS)


def test_a_segment_that_no_disk_can_read_is_served_as_it_is() -> None:
    """Not kept from its readers for ever, each replica waiting for the others."""

    async def story(world: World) -> None:
        segment = await settled(world)
        for node in world.up:
            fail(world, node, segment, "read", errno.EIO)
        async with world.connect(retry_deadline_s=2.0) as log:
            with pytest.raises(IsterError):
                await read_all(log, "t")
            found = [node.broker.replication.completions for node in world.up]
            await until(lambda: all(one.is_damaged(segment.uid) for one in found))
            await until(lambda: not any(one.is_incomplete(segment.uid) for one in found))
            for node in world.up:
                node.disk.faults.clear()
            assert await read_all(log, "t") == numbers(12)

    run_story(story, replicas=3, **SETTINGS)


def test_a_failed_read_for_another_replica_damages_nothing() -> None:
    async def story(world: World) -> None:
        segment = await settled(world)
        node = world.nodes[holders(segment)[0]]
        request = ReadLog(node.topic("t").state.uid, segment.uid, segment.base_offset, 1 << 20)
        for error, operation in ((errno.EMFILE, "open"), (errno.EIO, "read")):
            fail(world, node, segment, operation, error, count=1)
            with pytest.raises(StorageFailed):
                await node.broker.replication.copies.read(request)
            await asyncio.sleep(5)
        assert damaged(world) == 0
        assert await node.broker.replication.copies.read(request) == durable(world, node, segment)

    run_story(story, replicas=3, **SETTINGS)


def test_a_copy_that_its_disk_cannot_read_for_another_replica_is_replaced() -> None:
    async def story(world: World) -> None:
        segment = await settled(world)
        node = world.nodes[holders(segment)[0]]
        fail(world, node, segment, "read", errno.EIO, count=2)
        request = ReadLog(node.topic("t").state.uid, segment.uid, segment.base_offset, 1 << 20)
        with pytest.raises(StorageFailed):
            await node.broker.replication.copies.read(request)
        await until(lambda: node.broker.replication.completions.replaced.value == 1, seconds=30)

    run_story(story, replicas=3, **SETTINGS)


@pytest.mark.parametrize("error", [*PASSING, errno.EIO])
def test_a_leader_keeps_the_segment_of_which_a_read_failed(error: int) -> None:
    async def story(world: World) -> None:
        await fill(world, 4)
        leader = world.leader_of("t")
        segment = leader.topic("t").state.open_segment
        fail(world, leader, segment, "read", error, count=1)
        async with world.connect() as log:
            assert await read_all(log, "t") == numbers(4)
            await fill(world, 2, 4)
            assert await read_all(log, "t") == numbers(6)
        assert leader.topic("t").state.open_segment.uid == segment.uid
        assert damaged(world) == 0

    run_story(story, replicas=3, hot_tail_bytes=0, scrub_bytes_per_second=0)


def test_a_leader_whose_disk_goes_on_failing_to_read_gives_the_segment_up() -> None:
    async def story(world: World) -> None:
        await fill(world, 4)
        leader = world.leader_of("t")
        segment = leader.topic("t").state.open_segment
        fail(world, leader, segment, "read", errno.EIO)
        async with world.connect() as log:
            assert await read_all(log, "t") == numbers(4)
        assert segment.uid in [one.uid for one in sealed(world)]

    run_story(story, replicas=3, hot_tail_bytes=0, scrub_bytes_per_second=0)


def test_a_leader_whose_disk_cannot_read_what_a_follower_lacks_gives_the_segment_up() -> None:
    """Else all that was acknowledged since stays on a bare majority for as long as the segment is open."""

    async def story(world: World) -> None:
        await fill(world, 2)
        leader = world.leader_of("t")
        segment = leader.topic("t").state.open_segment
        away = next(node for node in world.up if node is not leader)
        away.kill()
        await fill(world, 4, 2)
        fail(world, leader, segment, "read", errno.EIO)
        await away.start()
        await until(lambda: any(one.uid == segment.uid for one in sealed(world)), 60)
        leader.disk.faults.clear()
        await until(lambda: is_healed(world))
        async with world.connect() as log:
            assert await read_all(log, "t") == numbers(6)

    run_story(story, replicas=3, hot_tail_bytes=0, scrub_bytes_per_second=0, replica_lost_ms=600_000)


def test_a_follower_that_failed_to_read_once_is_still_read_from() -> None:
    async def story(world: World) -> None:
        await fill(world, 4)
        leader = world.leader_of("t")
        follower = next(node for node in world.up if node is not leader)
        await until(lambda: follower.topic("t").places.followed is not None)
        segment = leader.topic("t").state.open_segment
        fail(world, follower, segment, "read", errno.EMFILE, count=1)
        async with world.connect(follower.node_id) as log:
            records = [one.value async for one in log.read("t", read_from="any")]
        assert records == numbers(4)
        assert not follower.disk.faults.strike("read", path_of(world, segment) + ".log"), "it was not read"
        assert follower.topic("t").places.followed is not None

    run_story(story, replicas=3, hot_tail_bytes=0, scrub_bytes_per_second=0)


def test_the_scrub_finds_nothing_in_what_could_not_be_read_once_and_replaces_what_never_can() -> None:
    async def story(world: World) -> None:
        segment = await settled(world)
        node = world.nodes[holders(segment)[0]]
        scrubbing, completions = node.broker.replication.scrubbing, node.broker.replication.completions
        for error in (errno.ENOMEM, errno.EIO):
            fail(world, node, segment, "read", error, count=1)
            await scrubbing.round()
        assert damaged(world) == 0
        fail(world, node, segment, "read", errno.EIO, count=2)
        await scrubbing.round()
        assert completions.found_corrupt.value == 1
        await until(lambda: completions.replaced.value == 1)

    run_story(story, replicas=3, segment_records=4, scrub_bytes_per_second=1 << 20)


def test_a_sealed_copy_whose_tail_the_disk_cannot_read_is_replaced() -> None:
    """It was not looked at since the seal, and cannot be: nothing says where it ends."""

    async def story(world: World) -> tuple[float, bool]:
        await fill(world, 3)
        segment = world.up[0].topic("t").state.open_segment
        away = next(node for node in world.up if node.member in segment.replicas[1:])
        away.kill(power=True)
        await fill(world, 20, 3)
        await until(lambda: any(one.uid == segment.uid for one in sealed(world)))
        away.disk.faults.add("read", prefix=path_of(world, segment) + ".log", error=errno.EIO)
        await away.start()
        completions = away.broker.replication.completions
        await until(lambda: completions.is_whole(segment.uid), 120)
        now = next(one for one in sealed(world) if one.uid == segment.uid)
        return completions.replaced.value, is_whole(world, away, now)

    settings = {"segment_records": 8, "repair_after_ms": 100_000, "replica_lost_ms": 2000}
    assert run_story(story, nodes=3, replicas=3, **settings) == (1, True)
