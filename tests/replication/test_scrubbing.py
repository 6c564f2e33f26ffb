"""The scrub's rounds, and what becomes of what a reader or a round found: simulated clusters."""

from __future__ import annotations

import asyncio

import pytest

from ister.broker.topic.location import Here
from ister.errors import CorruptFrame, CorruptSegment, IsterError
from ister.frame import HEADER_SIZE
from ister.metadata.state import SegmentState
from ister.testing.cluster import World, WorldNode, read_all, run_story
from tests.replication.repair_helpers import (
    durable,
    fill,
    holders,
    is_healed,
    numbers,
    path_of,
    sealed,
    until,
)

FRAME = 80
HEADER, BODY = FRAME + 20, FRAME + HEADER_SIZE + 5
"""Bytes of the second frame of a log that has one record in each."""


def rot(world: World, segment: SegmentState, at: int, place: int = 0) -> tuple[WorldNode, bytes]:
    """Flip a bit in one replica's log of a sealed segment; who that is, and what the log was like."""
    node = world.nodes[holders(segment)[place]]
    good = durable(world, node, segment)
    node.disk.rot(path_of(world, segment) + ".log", at)
    assert durable(world, node, segment) != good
    return node, good


def is_served(node: WorldNode, segment: SegmentState) -> bool:
    return isinstance(node.topic("t").places.whereabouts(segment), Here)


def metric(node: WorldNode, name: str) -> float:
    return node.broker.metrics.values()[name]


@pytest.mark.parametrize("at", [HEADER, BODY])
def test_rot_in_a_sealed_copy_is_found_by_a_round_and_replaced(at: int) -> None:
    async def story(world: World) -> None:
        await fill(world, 12)
        segment = sealed(world)[1]
        node, good = rot(world, segment, at)
        await until(lambda: durable(world, node, segment) == good)
        await until(lambda: is_healed(world))
        assert metric(node, "scrub_findings_total") == metric(node, "corrupt_copies_total") == 1
        assert metric(node, "replaced_copies_total") == 1
        assert not node.broker.replication.completions.behind
        assert not node.disk.exists(path_of(world, segment) + ".copy.log")
        for number in world.nodes:
            async with world.connect(number) as log:
                assert await read_all(log, "t") == numbers(12)

    run_story(story, replicas=3, segment_records=4)


def test_a_copy_that_was_found_damaged_is_not_served_and_reads_come_from_others() -> None:
    async def story(world: World) -> None:
        await fill(world, 12)
        segment = sealed(world)[0]
        node, good = rot(world, segment, BODY)
        others = [world.nodes[number] for number in holders(segment) if number != node.node_id]
        for other in others:
            world.network.partition(node.host, other.host)
        await until(lambda: not any(node.broker.metadata.is_alive(other.member) for other in others))
        await node.broker.replication.scrubbing.round()
        completions = node.broker.replication.completions
        assert completions.is_incomplete(segment.uid) and completions.is_damaged(segment.uid)
        assert not is_served(node, segment)
        assert durable(world, node, segment) != good, "nobody could be asked yet"
        world.network.heal()
        async with world.connect(node.node_id) as log:
            assert await read_all(log, "t") == numbers(12)
        await until(lambda: durable(world, node, segment) == good)
        await until(lambda: is_served(node, segment))

    run_story(story, replicas=3, segment_records=4, failover_after_ms=3_600_000)


@pytest.mark.parametrize("at", [HEADER, BODY])
def test_damage_that_a_reader_finds_is_never_served_and_the_copy_is_replaced(at: int) -> None:
    """A checkpoint lies behind it: whoever only looks from there on would call the log whole."""

    async def story(world: World) -> None:
        await fill(world, 12)
        segment = sealed(world)[0]
        for place in range(3):
            node, good = rot(world, segment, at, place)
            async with world.connect(node.node_id) as log:
                assert await read_all(log, "t") == numbers(12)
            await until(lambda: durable(world, node, segment) == good)  # noqa: B023
            assert metric(node, "replaced_copies_total") == 1

    run_story(story, replicas=3, segment_records=4, scrub_bytes_per_second=0)


def test_the_only_copy_is_reported_and_served_as_it_is() -> None:
    async def story(world: World) -> None:
        await fill(world, 12)
        segment = sealed(world)[0]
        end = segment.end_offset or 0
        node, good = rot(world, segment, HEADER)
        await until(lambda: metric(node, "scrub_rounds_total") >= 2)
        assert metric(node, "scrub_findings_total") == metric(node, "corrupt_copies_total") == 1
        completions = node.broker.replication.completions
        assert (completions.behind, completions.is_damaged(segment.uid)) == ([segment.uid], True)
        async with world.connect() as log:
            with pytest.raises((CorruptSegment, CorruptFrame)):
                await read_all(log, "t")
            rest = [record.value async for record in log.read("t", start=end)]
        assert rest == numbers(12 - end, end)
        node.disk.rot(path_of(world, segment) + ".log", HEADER)  # somebody put it right
        assert durable(world, node, segment) == good
        await until(lambda: not completions.behind)

    run_story(story, replicas=1, segment_records=4)


def test_what_all_replicas_have_damaged_is_served_as_it_is_and_the_rest_can_be_read() -> None:
    async def story(world: World) -> None:
        await fill(world, 12)
        segment = sealed(world)[0]
        end = segment.end_offset or 0
        for place in range(3):
            node, _ = rot(world, segment, BODY, place)
        await until(lambda: all(metric(node, "scrub_rounds_total") >= 2 for node in world.up))
        for node in world.up:
            completions = node.broker.replication.completions
            assert completions.is_damaged(segment.uid) and not completions.is_incomplete(segment.uid)
        async with world.connect() as log:
            with pytest.raises(IsterError, match=r"damaged|checksum"):
                await read_all(log, "t")
            rest = [record.value async for record in log.read("t", start=end)]
        assert rest == numbers(12 - end, end)

    run_story(story, replicas=3, segment_records=4)


@pytest.mark.slow
def test_no_round_is_made_where_it_is_turned_off() -> None:
    async def story(world: World) -> None:
        await fill(world, 8)
        node, _ = rot(world, sealed(world)[0], BODY)
        await asyncio.sleep(600)
        assert metric(node, "scrub_rounds_total") == metric(node, "scrubbed_bytes_total") == 0

    run_story(story, replicas=3, segment_records=4, scrub_bytes_per_second=0)


def test_a_round_looks_at_every_sealed_byte_here() -> None:
    async def story(world: World) -> None:
        await fill(world, 12)
        node = world.nodes[1]
        before = metric(node, "scrubbed_bytes_total")
        await node.broker.replication.scrubbing.round()
        here = [segment for segment in sealed(world) if node.member in segment.replicas]
        assert metric(node, "scrubbed_bytes_total") - before == sum(one.end_position for one in here) > 0

    run_story(story, replicas=3, segment_records=4)


def test_a_disk_that_cannot_be_read_for_a_moment_is_no_finding() -> None:
    async def story(world: World) -> None:
        await fill(world, 8)
        segment = sealed(world)[0]
        node = world.nodes[holders(segment)[0]]
        node.disk.faults.add("read", prefix=path_of(world, segment), suffix=".log", count=1)
        await node.broker.replication.scrubbing.round()
        assert not node.broker.replication.completions.behind
        assert metric(node, "scrub_findings_total") == 0

    run_story(story, replicas=3, segment_records=4)


def test_a_node_that_dies_while_it_replaces_a_copy_has_the_old_one_or_the_new_one() -> None:
    async def story(world: World) -> None:
        await fill(world, 12)
        segment = sealed(world)[0]
        node, good = rot(world, segment, BODY)
        rotten = durable(world, node, segment)
        for changes in range(0, 14, 2):
            node.disk.crash_after(changes, lambda: node.kill(power=True))
            assert node.process is not None
            await asyncio.wait([node.process.start(node.broker.replication.scrubbing.round())])
            await asyncio.sleep(5)
            if not node.is_up:
                assert durable(world, node, segment) in (rotten, good)
                await node.start()
                await world.settle()
            node.disk.crash_after(1 << 40)
        await until(lambda: durable(world, node, segment) == good)

    run_story(story, replicas=3, segment_records=4)
