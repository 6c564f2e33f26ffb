"""Danube's holes (D..): what it did is in each docstring, that Ister does not do it is the test."""

from __future__ import annotations

import asyncio
import errno

import pytest

import ister
from ister.errors import OffsetOutOfRange
from ister.testing import Loss
from tests.simulation.small import World, play


async def values_of(log: ister.Log, topic: str) -> list[bytes | None]:
    return [record.value async for record in log.read(topic)]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_d1_what_was_acknowledged_survives_the_loss_of_everything_unsynced() -> None:
    """D1: no fsync anywhere; acknowledged data sat in the process for up to 5 s."""

    async def script(world: World) -> None:
        async with world.connect() as log:
            await log.create_topic("t", segment_records=7)
            for value in numbers(20):
                await log.append("t", [value])
                if len(value) == 2:
                    world.node.die(Loss.ALL, power=True)
                    await world.restart()
            assert await values_of(log, "t") == numbers(20)

    play(script)


@pytest.mark.parametrize("fsync", ["fsync", "interval", "none"])
def test_d1_a_clean_stop_keeps_what_was_acknowledged_even_in_the_weak_modes(fsync: str) -> None:
    """D1: SIGTERM lost what was buffered."""

    async def script(world: World) -> None:
        async with world.connect() as log:
            await log.create_topic("t", fsync=fsync)
            for value in numbers(10):
                await log.append("t", [value])
        await world.node.stop()
        if fsync != "none":
            world.disk.crash(Loss.ALL)  # the machine goes down right after the broker has stopped
        await world.restart()
        async with world.connect() as log:
            assert await values_of(log, "t") == numbers(10)

    play(script)


@pytest.mark.parametrize("way", ["stop", "kill", "power"])
def test_d2_offsets_go_on_after_a_restart(way: str) -> None:
    """D2: offsets began at 0 again after an ordinary restart, and readers skipped the new records."""

    async def script(world: World) -> None:
        expected: list[bytes | None] = []
        async with world.connect() as log:
            for life in range(4):
                for number in range(3):
                    value = b"%d.%d" % (life, number)
                    appended = await log.append("t", [value])
                    assert appended.base_offset == len(expected)
                    expected.append(value)
                if way == "stop":
                    await world.node.stop()
                else:
                    world.node.die(None, power=way == "power")
                await world.restart()
            assert await values_of(log, "t") == expected
            assert [record.value async for record in log.read("t", start=4, end=8)] == expected[4:8]

    play(script)


@pytest.mark.parametrize("missing", [1, 30, 70, 100])
def test_d3_a_torn_tail_is_cut_once_and_poisons_nothing_after_it(missing: int) -> None:
    """D3: a torn tail was never cut, and every later file was unreadable."""

    async def script(world: World) -> None:
        async with world.connect() as log:
            await log.create_topic("t")
            for value in numbers(5):
                await log.append("t", [value])
        path = world.segment_files("t")[0]
        world.node.die(Loss.NONE, power=False)
        frames = world.durable_frames(path)
        torn = bytes(frames[0].data)[: max(1, frames[0].header.size - missing)]
        file = world.disk.open(path)
        file.write([torn], sum(frame.header.size for frame in frames))
        file.sync()
        file.close()
        await world.restart()
        async with world.connect() as log:
            assert any("cut" in note for note in (await log.describe_topic("t")).notes)
            for value in numbers(9)[5:]:
                await log.append("t", [value])
        world.node.die(Loss.ALL, power=True)
        await world.restart()
        async with world.connect() as log:
            assert await values_of(log, "t") == numbers(9)

    play(script)


def test_d4_a_rollover_leaves_no_frame_for_the_next_file() -> None:
    """D4: rotation did not flush, and frames landed in the next file under a wrong first offset."""

    async def script(world: World) -> None:
        assert world.node.broker is not None
        async with world.connect() as log:
            await log.create_topic("t", segment_records=5)
            producers = [log.producer("t", linger_ms=0, batch_records=1) for _ in range(6)]
            await asyncio.gather(
                *(producer.send(b"%d.%d" % at) for n, producer in enumerate(producers) for at in _pairs(n))
            )
            for producer in producers:
                await producer.close()
        state = world.node.broker.topics["default/t"].state
        assert len(state.segments) > 3
        for segment, path in zip(state.segments, world.segment_files("t"), strict=True):
            offset = segment.base_offset
            for frame in world.durable_frames(path):
                assert frame.header.base_offset == offset
                offset = frame.header.end_offset
            assert segment.end_offset is None or offset == segment.end_offset

    play(script)


def _pairs(number: int) -> list[tuple[int, int]]:
    return [(number, turn) for turn in range(8)]


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_d5_a_failed_write_is_not_acknowledged_and_leaves_no_garbage(operation: str) -> None:
    """D5: write errors were only warned about, after the acknowledgement; the part written stayed."""

    async def script(world: World) -> None:
        world.node.watch.strong.add("default/t")
        async with world.connect() as log:
            await log.create_topic("t")
            for number in range(12):
                if number % 3 == 1:
                    world.disk.faults.add(
                        operation, prefix="segments/", suffix=".log", count=1, error=errno.EIO
                    )
                await world.send(log, "t", b"%d" % number * 300)
        await world.judge("t")
        world.node.die(Loss.ALL, power=True)
        await world.restart()
        await world.judge("t")
        assert [send.outcome.value for send in world.history.sends] == ["acknowledged"] * 12
        assert world.history.finals["t"].end_offset == 12

    play(script)


def test_d6_concurrent_producers_lie_in_the_file_in_the_order_of_their_offsets() -> None:
    """D6: an offset was taken in one step and the record queued in another: files were out of order."""

    async def script(world: World) -> None:
        async with world.connect() as log:
            await log.create_topic("t")
            producers = [log.producer("t", linger_ms=0, batch_records=1, max_in_flight=8) for _ in range(10)]
            answers = await asyncio.gather(
                *(
                    producer.send(b"%d.%d" % (n, turn))
                    for turn in range(8)
                    for n, producer in enumerate(producers)
                )
            )
            for producer in producers:
                await producer.close()
        assert sorted(answers) == list(range(80))
        path = world.segment_files("t")[0]
        bases = [frame.header.base_offset for frame in world.durable_frames(path)]
        assert bases == list(range(80))
        for number in range(10):
            own = answers[number::10]
            assert own == sorted(own)

    play(script)


def test_d7_retention_under_a_writer_and_a_reader_never_shows_a_missing_file() -> None:
    """D7: the deleter and the writer fought over one checkpoint, and readers hit missing files."""

    async def script(world: World) -> None:
        async with world.connect() as log:
            await log.create_topic("t", segment_records=3, retention_bytes=1000)
            next_offset, seen = 0, 0
            for number in range(120):
                await log.append("t", [b"%d" % number])
                try:
                    async for record in log.read("t", start=next_offset, max_bytes=100):
                        assert record.value == b"%d" % record.offset
                        next_offset, seen = record.offset + 1, seen + 1
                        if seen % 7 == 0:
                            break
                except OffsetOutOfRange:
                    next_offset = await log.offsets_at("t", "earliest")
                if number % 40 == 39:
                    world.node.die(None, power=True)
                    await world.restart()
            described = await log.describe_topic("t")
            assert described.start_offset > 60
            assert described.end_offset == 120
            with pytest.raises(OffsetOutOfRange):
                await values_from(log, 0)
            assert await values_of(log, "t") == numbers(120)[described.start_offset :]
        assert len(world.segment_files("t")) == len(described.segments)

    play(script, monitor_check_ms=20, hot_tail_bytes=0)


async def values_from(log: ister.Log, offset: int) -> list[bytes | None]:
    return [record.value async for record in log.read("t", start=offset)]
