"""The reader: an unbroken line of verified records, from any place, through broken connections."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest
from fake_broker import FakeBroker, Fault
from test_append import run

import ister
from ister.client.reader import check_line
from ister.errors import BadRequest, CorruptFrame, CorruptSegment, IsterError, OffsetOutOfRange, UnknownTopic
from ister.frame import Frame, encode, frames_in, stamp
from ister.protocol.messages import Kind

TOPIC = "default/orders"


async def fill(log: ister.Log, frames: int = 10, each: int = 10) -> list[bytes]:
    values = [b"%d" % number for number in range(frames * each)]
    for start in range(0, len(values), each):
        await log.append("orders", values[start : start + each])
    return values


async def offsets(reader: ister.Reader) -> list[int]:
    return [record.offset async for record in reader]


def test_all_records_come_in_order_with_their_offsets() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        wanted = await fill(log)
        found = [record async for record in log.read("orders", max_bytes=300)]
        assert [record.value for record in found] == wanted
        assert [record.offset for record in found] == list(range(100))

    run(body)


def test_start_and_end_within_frames_clip_to_the_very_record() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        await fill(log)
        assert await offsets(log.read("orders", start=15, end=37)) == list(range(15, 37))
        assert await offsets(log.read("orders", start=13, end=14)) == [13]
        assert await offsets(log.read("orders", start=95, end=1000)) == list(range(95, 100))
        assert await offsets(log.read("orders", start=100)) == []
        assert await offsets(log.read("orders", last=5)) == list(range(95, 100))
        assert await offsets(log.read("orders", last=1000)) == list(range(100))
        assert await offsets(log.read("orders", start="latest")) == []

    run(body)


def test_a_time_starts_at_the_first_record_appended_then() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        await fill(log)
        moment_us = broker.topics[TOPIC].headers[4].append_time_us
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment_us)
        assert (await offsets(log.read("orders", start=moment)))[0] == 40
        assert await log.offsets_at("orders", moment) == 40
        assert await log.offsets_at("orders", moment_us + 1) == 50
        assert await log.offsets_at("orders", "earliest") == 0
        assert await log.offsets_at("orders", "latest") == 100

    run(body)


def test_without_follow_reading_ends_at_the_end_seen_at_the_start() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        await fill(log)
        found = []
        async for record in log.read("orders", max_bytes=1):
            found.append(record.offset)
            if record.offset % 10 == 0:
                await log.append("orders", [b"more"])
        assert found == list(range(100))

    run(body)


def test_following_from_the_latest_brings_only_what_is_new_and_waits_without_spinning() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        await fill(log)

        async def follow() -> list[int]:
            return await offsets(log.read("orders", start="latest", follow=True, end=103))

        following = asyncio.ensure_future(follow())
        await broker.until_received(Kind.FETCH)
        await asyncio.sleep(0.1)
        assert len(broker.fetches) == 1
        assert broker.fetches[0].wait_ms > 0
        for _ in range(3):
            await log.append("orders", [b"new"])
        assert await following == [100, 101, 102]

    run(body)


def test_a_broker_that_does_not_wait_is_not_asked_in_a_tight_loop() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        await fill(log, 1, 1)
        broker.hurries = True
        following = asyncio.ensure_future(offsets(log.read("orders", start="latest", follow=True)))
        await broker.until_received(Kind.FETCH)
        began = time.monotonic()
        await asyncio.sleep(0.3)
        following.cancel()
        assert len(broker.fetches) <= 10 * (time.monotonic() - began) / 0.3

    run(body)


def test_a_gap_is_an_error_that_names_both_offsets() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        await fill(log)
        broker.on_frames = lambda frames: frames[:2] + frames[3:]
        with pytest.raises(CorruptSegment, match="offset 30 where offset 20 must follow"):
            await offsets(log.read("orders"))

    run(body)


def test_a_gap_between_two_fetches_is_found_too() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        await fill(log)
        broker.on_frames = lambda frames: (
            [broker.topics[TOPIC].frames[3]] if len(broker.fetches) > 1 else frames
        )
        with pytest.raises(CorruptSegment, match="offset 30 where offset 10 must follow"):
            await offsets(log.read("orders", max_bytes=1))

    run(body)


def test_frames_that_overlap_are_an_error_and_only_the_first_may_start_early() -> None:
    def frame(base_offset: int) -> Frame:
        data = bytearray(encode([b"x"] * 10))
        stamp(data, base_offset, 1, 1)
        return frames_in(data)[0]

    assert check_line([frame(0), frame(10)], TOPIC, 5, may_clip=True) == 20
    with pytest.raises(CorruptSegment, match="offset 5 where offset 10 must follow"):
        check_line([frame(0), frame(5)], TOPIC, 5, may_clip=True)
    with pytest.raises(CorruptSegment, match="offset 0 where offset 5 must follow"):
        check_line([frame(0)], TOPIC, 5, may_clip=False)


def test_an_early_end_is_no_end() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        await fill(log)
        broker.on_frames = lambda frames: []
        with pytest.raises(CorruptSegment, match="nothing was returned at offset 0"):
            await offsets(log.read("orders"))

    run(body)


def test_a_damaged_frame_is_found_by_the_reader_itself() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        await fill(log)
        broker.topics[TOPIC].frames[5][-1] ^= 1
        found: list[int] = []
        with pytest.raises(CorruptFrame):
            async for record in log.read("orders", max_bytes=1):
                found.append(record.offset)  # noqa: PERF401 (what came before the error counts)
        assert found == list(range(50))

    run(body)


@pytest.mark.parametrize("fault", [Fault.DROP_BEFORE, Fault.DROP_AFTER])
def test_reading_goes_on_from_its_offset_after_the_connection_broke(fault: Fault) -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        wanted = await fill(log)
        broker.on_request = lambda kind: (
            fault if kind == Kind.FETCH and len(broker.requests) % 3 == 0 else None
        )
        assert [record.value async for record in log.read("orders", max_bytes=1)] == wanted

    run(body)


def test_offsets_that_are_not_there_are_errors() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        await fill(log)
        broker.topics[TOPIC].start_offset = 20
        with pytest.raises(OffsetOutOfRange, match=r"offset 5 is not in 20\.\.100"):
            await offsets(log.read("orders", start=5))
        for follow in (False, True):
            with pytest.raises(OffsetOutOfRange, match="101"):
                await offsets(log.read("orders", start=101, follow=follow, end=200))

    run(body)


@pytest.mark.parametrize("follow", [False, True])
def test_a_topic_that_is_not_there_is_an_error(follow: bool) -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        with pytest.raises(UnknownTopic):
            await offsets(log.read("nothing", follow=follow))

    run(body)


def test_no_more_than_two_answers_are_fetched_ahead() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        await fill(log)
        async for _ in log.read("orders", max_bytes=1).frames():
            await broker.until_received(Kind.FETCH, 3)
            await asyncio.sleep(0.05)
            assert len(broker.fetches) == 3  # the one in hand and two more
            break

    run(body)


def test_frames_and_batches_hold_the_same_records() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        wanted = await fill(log, frames=5, each=200)
        frames = [frame async for frame in log.read("orders", start=250).frames()]
        assert [frame.header.base_offset for frame in frames] == [200, 400, 600, 800]
        reader = log.read("orders", start=250, end=777, max_bytes=4000)
        batches = [batch async for batch in reader.batches(columns=["offset", "value"])]
        rows = [row for batch in batches for row in batch.column("value").to_pylist()]
        assert rows == wanted[250:777]
        assert len(batches) > 1

    run(body)


def test_a_large_answer_arrives_whole_and_aligned() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        wanted = [bytes([number]) * 1_000_003 for number in range(8)]
        for value in wanted:
            await log.append("orders", [value])
        frames = [frame async for frame in log.read("orders", max_bytes=3_000_000).frames()]
        assert [frame.records()[0].value for frame in frames] == wanted

    run(body)


def test_two_readers_of_one_log_do_not_disturb_each_other() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        await fill(log)
        one, two = await asyncio.gather(
            offsets(log.read("orders", max_bytes=1)), offsets(log.read("orders", start=50, max_bytes=1))
        )
        assert (one, two) == (list(range(100)), list(range(50, 100)))

    run(body)


def test_places_that_make_no_sense_are_refused_at_once() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        for wrong in (
            {"start": -1},
            {"start": "middle"},
            {"start": 5, "last": 3},
            {"last": -1},
            {"end": -1},
            {"max_bytes": 0},
        ):
            with pytest.raises(BadRequest):
                log.read("orders", **wrong)  # type: ignore[arg-type]
        with pytest.raises(IsterError):
            log.read("a/b/c")

    run(body)
