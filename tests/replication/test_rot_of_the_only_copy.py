"""Rot in a segment that has one replica: the node that has it notices, and says which records are damaged."""

from __future__ import annotations

import asyncio
import logging

import pytest

import ister
from ister.errors import CorruptSegment
from ister.frame import HEADER_SIZE, frames_in
from ister.metadata.state import SegmentState
from ister.replication.copies import reporting
from ister.testing.cluster import World, WorldNode, read_all, run_story
from tests.replication.repair_helpers import durable, fill, holders, numbers, path_of, sealed, until

FRAME = 80
HEADER, BODY = FRAME + 20, FRAME + HEADER_SIZE + 5
"""Bytes of the second frame of a log that has one record in each."""


def rot(world: World, segment: SegmentState, at: int) -> WorldNode:
    node = world.nodes[holders(segment)[0]]
    good = durable(world, node, segment)
    node.disk.rot(path_of(world, segment) + ".log", at)
    assert durable(world, node, segment) != good
    return node


def metric(node: WorldNode, name: str) -> float:
    return node.broker.metrics.values()[name]


async def read_up_to_damage(log: ister.Log, start: int = 0) -> tuple[list[bytes | None], CorruptSegment]:
    """What could be read, and the error that came then."""
    values: list[bytes | None] = []
    with pytest.raises(CorruptSegment) as caught:
        async for record in log.read("t", start=start):
            values.append(record.value)  # noqa: PERF401 (they are wanted although the last one raises)
    return values, caught.value


async def is_told(log: ister.Log) -> None:
    """Returns once the health has the damage, and nothing else. Of a segment that was sealed a moment ago it
    is told a moment later."""
    async with asyncio.timeout(10):
        while [one.code for one in (await log.cluster()).problems] != ["damaged-records"]:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def test_a_rotten_body_is_a_damaged_segment_to_the_reader_and_to_the_operator() -> None:
    """The reader got `corrupt-frame` and nobody noticed, until the scrub came by."""

    async def story(world: World) -> None:
        await fill(world, 12)
        node = rot(world, sealed(world)[0], BODY)
        for number in world.nodes:
            async with world.connect(number) as log:
                values, error = await read_up_to_damage(log)
                assert error.offsets == (1, 2)
                assert values == numbers(1), "what lies before the damage is good"
                assert "offset 2" in error.hint
                rest = [record.value async for record in log.read("t", start=error.offsets[1])]
                assert rest == numbers(10, 2)
        assert metric(node, "corrupt_copies_total") == 1
        async with world.connect() as log:
            await is_told(log)

    run_story(story, replicas=1, segment_records=4, scrub_bytes_per_second=0)


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("at", [HEADER, BODY])
def test_rot_in_the_open_segment_is_noticed_by_its_reader_and_appends_go_on(at: int, nodes: int) -> None:
    """In the next segment: who looks for a record behind a damaged header does not find it."""

    async def story(world: World) -> None:
        await fill(world, 4)
        segment = world.leader_of("t").topic("t").state.open_segment
        node = rot(world, segment, at)
        async with world.connect() as log:
            values, error = await read_up_to_damage(log)
            assert values == numbers(1)
            assert error.offsets == ((1, 4) if at == HEADER else (1, 2))
            await is_told(log)
            await until(lambda: segment.uid in [one.uid for one in sealed(world)])
            await fill(world, 2, 4)
            rest = [record.value async for record in log.read("t", start=error.offsets[1])]
            assert rest == numbers(6)[error.offsets[1] :]
            assert (await read_up_to_damage(log))[1].offsets == error.offsets
        assert metric(node, "corrupt_copies_total") == 1
        assert node.broker.replication.completions.is_damaged(segment.uid)

    run_story(story, nodes=nodes, replicas=1, hot_tail_bytes=0, scrub_bytes_per_second=0)


def test_what_was_found_in_an_open_segment_is_told_at_its_seal_and_waits_for_no_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C2: the seal calls the copy of its leader whole."""
    monkeypatch.setattr(reporting, "INTERVAL_SECONDS", 3600.0)

    async def story(world: World) -> None:
        await fill(world, 4)
        rot(world, world.leader_of("t").topic("t").state.open_segment, BODY)
        async with world.connect() as log:
            await read_up_to_damage(log)
            await is_told(log)

    run_story(story, nodes=1, replicas=1, hot_tail_bytes=0, scrub_bytes_per_second=0)


def test_a_read_of_the_open_segment_that_failed_once_is_no_damage() -> None:
    async def story(world: World) -> None:
        await fill(world, 4)
        node = world.leader_of("t")
        segment = node.topic("t").state.open_segment
        node.disk.faults.add("read", prefix=path_of(world, segment), suffix=".log", count=1)
        async with world.connect() as log:
            assert await read_all(log, "t") == numbers(4), "it was asked for again"
        assert metric(node, "corrupt_copies_total") == 0
        assert node.topic("t").state.open_segment.uid == segment.uid

    run_story(story, replicas=1, hot_tail_bytes=0, scrub_bytes_per_second=0)


def test_all_records_of_a_damaged_frame_are_named_wherever_in_it_the_reader_begins() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            for first in range(0, 40, 10):
                await log.append("t", numbers(10, first))
            await log.append("t", [b"next"])
            await until(lambda: bool(sealed(world)))
            segment = sealed(world)[0]
            second = frames_in(durable(world, world.nodes[holders(segment)[0]], segment))[1]
            rot(world, segment, second.position + HEADER_SIZE + 40)
            for start in (0, 10, 15):
                values, error = await read_up_to_damage(log, start)
                assert error.offsets == (10, 20)
                assert values == numbers(10 - start, start)
            rest = [record.value async for record in log.read("t", start=20)]
        assert rest == [*numbers(20, 20), b"next"]

    run_story(story, replicas=1, segment_records=40, scrub_bytes_per_second=0)


def test_a_damaged_header_is_told_in_words_and_with_where_to_read_on() -> None:
    async def story(world: World) -> None:
        await fill(world, 12)
        segment = sealed(world)[0]
        rot(world, segment, HEADER)
        async with world.connect() as log:
            values, error = await read_up_to_damage(log)
            assert values == numbers(1)
            assert "Corrupt(" not in error.message and "header checksum does not match" in error.message
            assert error.offsets == (1, segment.end_offset), "where its records end, only its header said"
            assert f"offset {segment.end_offset}" in error.hint
            rest = [record.value async for record in log.read("t", start=error.offsets[1])]
        assert rest == numbers(12)[error.offsets[1] :] != []
        for start in range(1, error.offsets[1]):
            async with world.connect() as log:
                assert (await read_up_to_damage(log, start))[1].offsets == error.offsets

    run_story(story, replicas=1, segment_records=4, scrub_bytes_per_second=0)


def test_damage_on_all_replicas_has_its_offsets_too() -> None:
    async def story(world: World) -> None:
        await fill(world, 12)
        segment = sealed(world)[0]
        for number in holders(segment):
            world.nodes[number].disk.rot(path_of(world, segment) + ".log", BODY)
        async with world.connect() as log:
            await read_up_to_damage(log)
            completions = [node.broker.replication.completions for node in world.up]
            await until(lambda: any(one.is_damaged(segment.uid) for one in completions))
            await until(lambda: not any(one.is_incomplete(segment.uid) for one in completions))
            values, error = await read_up_to_damage(log)
            rest = [record.value async for record in log.read("t", start=2)]
        assert error.offsets == (1, 2)
        assert values == numbers(1) and rest == numbers(10, 2)

    run_story(story, replicas=3, segment_records=4, scrub_bytes_per_second=0)


def test_a_scrub_tells_of_the_same_damage_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        await fill(world, 12)
        segment = sealed(world)[0]
        node = rot(world, segment, FRAME + BODY)
        for _ in range(3):
            await node.broker.replication.scrubbing.round()
        assert [record.levelno for record in told()] == [logging.ERROR, logging.DEBUG, logging.DEBUG]
        rot(world, segment, BODY)  # before what was found: that is news
        for _ in range(2):
            await node.broker.replication.scrubbing.round()
        assert [record.levelno for record in told()[3:]] == [logging.ERROR, logging.DEBUG]
        for at in (BODY, FRAME + BODY):
            rot(world, segment, at)  # somebody put it right
        await node.broker.replication.scrubbing.round()
        rot(world, segment, BODY)
        await node.broker.replication.scrubbing.round()
        assert [record.levelno for record in told()[5:]] == [logging.ERROR]

    def told() -> list[logging.LogRecord]:
        return [record for record in caplog.records if "the scrub found" in record.getMessage()]

    with caplog.at_level(logging.DEBUG, "ister.replication.copies.scrub"):
        run_story(story, replicas=1, segment_records=4, scrub_bytes_per_second=1 << 20)
