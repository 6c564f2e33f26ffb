"""Topic names, offsets out of range, waiting fetches, and lookups by time, at the broker's edge."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from broker_helpers import Node, SimNode, append_request, frame_of, on_real_disk, refusal, request, simulated

from ister.broker.topic.topic_log import TopicLog
from ister.errors import (
    BadRequest,
    InvalidTopicName,
    IsterError,
    OffsetOutOfRange,
    TopicExists,
    UnknownTopic,
)
from ister.frame import FrameHeader
from ister.frame import decode_header as decode_frame_header
from ister.io.clock import monotonic
from ister.metadata.commands import Command, CreateTopic, Outcome, TrimTopic
from ister.protocol import messages
from ister.protocol.codec import decode_appended, decode_header
from ister.protocol.messages import EARLIEST, LATEST, Kind

BAD_NAMES = {
    "empty": "",
    "slash": "/",
    "empty part": "ns/",
    "empty namespace": "//x",
    "three parts": "a/b/c",
    "parent": "../x",
    "parent as name": "ns/..",
    "hidden": ".hidden",
    "absolute": "/etc/passwd/x",
    "NUL": "a\0b",
    "colon": "a:1",
    "space": "a b",
    "newline": "a\n",
    "trailing newline in namespace": "ns\n/a",
    "unicode": "thème",
    "full-width digits": "\uff11",
    "backslash": "a\\b",
    "too long by one": "x" * 201,
    "220 characters (W12)": "x" * 220,
    "a book": "x" * 60_000,
}


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_topic_name_is_refused_by_every_request(name: str, tmp_path: Path) -> None:
    topic = BAD_NAMES[name]
    asked: list[tuple[Kind, messages.Message, bytes]] = [
        (Kind.APPEND, messages.Append(topic), frame_of(b"x")),
        (Kind.CREATE_TOPIC, messages.CreateTopic(topic), b""),
        (Kind.FETCH, messages.Fetch(topic, 0, 1000), b""),
        (Kind.LIST_OFFSETS, messages.ListOffsets(topic, [LATEST]), b""),
        (Kind.DESCRIBE_TOPIC, messages.DescribeTopic(topic), b""),
        (Kind.ALTER_TOPIC, messages.AlterTopic(topic, {}), b""),
        (Kind.DELETE_TOPIC, messages.DeleteTopic(topic), b""),
    ]

    async def scenario(node: Node) -> None:
        client = await node.connect()
        for kind, message, payload in asked:
            error = await refusal(client.call(kind, message, payload), InvalidTopicName)
            assert "topic name" in error.message and len(error.message) < 300
        assert node.broker.topics == {}

    on_real_disk(tmp_path, scenario)
    assert {path.name for path in (tmp_path / "segments").iterdir()} == set()


def test_the_longest_name_is_a_setting(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        for kind, message in (
            (Kind.CREATE_TOPIC, messages.CreateTopic("x" * 8 + "/y")),
            (Kind.APPEND, messages.Append("y" * 9)),
        ):
            payload = frame_of(b"x") if kind is Kind.APPEND else b""
            error = await refusal(client.call(kind, message, payload), InvalidTopicName)
            assert "over 7" in error.message
        await client.create("1234567")

    on_real_disk(tmp_path, scenario, max_topic_name=7)


def test_the_three_ways_to_write_a_name_are_one_topic(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        for number, name in enumerate(["x", "default/x", "/default/x"]):
            assert (await client.append(name, frame_of(b"%d" % number))).base_offset == number
        assert list(node.broker.topics) == ["default/x"]

    on_real_disk(tmp_path, scenario)


def test_a_name_of_200_characters_survives_a_restart(tmp_path: Path) -> None:
    """W12: on the ancestor a long name ended recovery at the block that held it."""
    name = "n" * 200 + "/" + "x" * 200

    async def write(node: Node) -> None:
        client = await node.connect()
        await client.append(name, frame_of(b"kept"))
        await client.append("other", frame_of(b"kept too"))

    async def read(node: Node) -> None:
        client = await node.connect()
        assert await client.values(name) == [b"kept"]
        assert await client.values("other") == [b"kept too"]

    on_real_disk(tmp_path, write)
    on_real_disk(tmp_path, read)


def test_a_topic_is_found_by_its_exact_name_only(tmp_path: Path) -> None:
    """D21: on the ancestor, ns/a matched ns/ab."""

    async def scenario(node: Node) -> None:
        client = await node.connect()
        await client.append("ns/ab", frame_of(b"x"))
        for name in ["ns/a", "ns/b", "ns/abc", "s/ab", "ab", "ns/AB"]:
            error = await refusal(client.fetch(name, 0), UnknownTopic)
            assert error.message.endswith(name if "/" in name else f"default/{name}")
        await refusal(client.call(Kind.DELETE_TOPIC, messages.DeleteTopic("ns/a")), UnknownTopic)
        assert await client.values("ns/ab") == [b"x"]

    on_real_disk(tmp_path, scenario)


def test_an_unknown_topic_is_an_error_everywhere_but_in_an_append(tmp_path: Path) -> None:
    asked: list[tuple[Kind, messages.Message]] = [
        (Kind.FETCH, messages.Fetch("t", 0, 1000)),
        (Kind.LIST_OFFSETS, messages.ListOffsets("t", [EARLIEST])),
        (Kind.DESCRIBE_TOPIC, messages.DescribeTopic("t")),
        (Kind.ALTER_TOPIC, messages.AlterTopic("t", {})),
        (Kind.DELETE_TOPIC, messages.DeleteTopic("t")),
    ]

    async def scenario(node: Node) -> None:
        client = await node.connect()
        for kind, message in asked:
            error = await refusal(client.call(kind, message), UnknownTopic)
            assert "default/t" in error.message
        assert (await client.append("t", frame_of(b"x"))).base_offset == 0

    on_real_disk(tmp_path, scenario)


def test_an_append_makes_no_topic_where_that_is_turned_off(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        error = await refusal(client.append("t", frame_of(b"x")), UnknownTopic)
        assert "auto_create_topics is off" in error.message
        await client.create("t")
        assert (await client.append("t", frame_of(b"x"))).base_offset == 0

    on_real_disk(tmp_path, scenario, auto_create_topics=False)


# Offsets.


@pytest.mark.parametrize("offset", [-1, -(1 << 63), 4, 1 << 40, (1 << 64) - 1])
def test_an_offset_that_is_not_there_is_refused_with_the_range(offset: int, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        await client.append("t", frame_of(b"a", b"b", b"c"))
        error = await refusal(client.fetch("t", offset, wait_ms=10_000), OffsetOutOfRange)
        assert f"offset {offset} of topic default/t" in error.message
        assert "it has 0 to 2" in error.message

    on_real_disk(tmp_path, scenario)


def test_an_offset_before_the_start_is_refused_with_the_range_after_a_trim(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        await client.create("t", segment_records=2)
        for number in range(7):
            await client.append("t", frame_of(b"%d" % number))
        topic = await node.broker.find("t")
        await node.broker.metadata.propose(TrimTopic(topic.state.uid, 4))
        error = await refusal(client.fetch("t", 3), OffsetOutOfRange)
        assert "it has 4 to 6" in error.message
        assert await client.values("t", 4) == [b"4", b"5", b"6"]
        assert await client.offsets_at("t", EARLIEST, LATEST) == [4, 7]

    on_real_disk(tmp_path, scenario)


def test_the_range_of_an_empty_topic_is_named(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        await client.create("t")
        error = await refusal(client.fetch("t", 1), OffsetOutOfRange)
        assert "it is empty, and starts at 0" in error.message
        assert await client.fetch("t", 0) == []

    on_real_disk(tmp_path, scenario)


@pytest.mark.parametrize("max_bytes", [0, -1, -(1 << 63), 1, (1 << 64) - 1])
def test_any_max_bytes_gives_at_least_one_whole_frame(max_bytes: int, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        for number in range(3):
            await client.append("t", frame_of(b"%d" % number, bytes(5000)))
        frames = await client.fetch("t", 2, max_bytes)
        assert frames[0].header.base_offset == 2
        assert len(frames) == (2 if max_bytes > 10_000 else 1)

    on_real_disk(tmp_path, scenario)


def test_a_fetch_in_the_middle_of_a_frame_returns_that_frame(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        await client.append("t", frame_of(*[b"%d" % number for number in range(10)]))
        (frame,) = await client.fetch("t", 7)
        assert frame.header.base_offset == 0

    on_real_disk(tmp_path, scenario)


def test_a_waiting_fetch_is_answered_by_the_next_record() -> None:
    async def scenario(node: SimNode) -> None:
        reader, writer = await node.connect(), await node.connect()
        await writer.append("t", frame_of(b"a"))
        reader.send(request(1, Kind.FETCH, messages.Fetch("t", 1, 1000, wait_ms=60_000)))
        await asyncio.sleep(10)
        assert reader.answer_count == 0
        await writer.append("t", frame_of(b"b"))
        asked = monotonic()
        answer = await reader.answer()
        assert answer.kind == 0 and answer.payload
        assert monotonic() - asked < 1

    simulated(scenario)


def test_a_waiting_fetch_gives_up_empty_in_its_time() -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.append("t", frame_of(b"a"))
        started = monotonic()
        assert await client.fetch("t", 1, wait_ms=5000) == []
        assert 5 <= monotonic() - started < 6

    simulated(scenario)


def test_a_waiting_fetch_goes_on_across_a_rollover() -> None:
    async def scenario(node: SimNode) -> None:
        reader, writer = await node.connect(), await node.connect()
        await writer.create("t", segment_records=1)
        reader.send(request(1, Kind.FETCH, messages.Fetch("t", 0, 1000, wait_ms=60_000)))
        await writer.append("t", frame_of(b"a"))
        assert (await reader.answer()).payload
        reader.send(request(2, Kind.FETCH, messages.Fetch("t", 1, 1000, wait_ms=60_000)))
        await asyncio.sleep(1)
        await writer.append("t", frame_of(b"b"))
        assert (await reader.answer()).payload

    simulated(scenario)


def test_a_topic_deleted_under_a_waiting_fetch_is_unknown_to_it() -> None:
    async def scenario(node: SimNode) -> None:
        reader, other = await node.connect(), await node.connect()
        await other.append("t", frame_of(b"a"))
        reader.send(request(1, Kind.FETCH, messages.Fetch("t", 1, 1000, wait_ms=60_000)))
        await asyncio.sleep(1)
        await other.call(Kind.DELETE_TOPIC, messages.DeleteTopic("t"))
        error = (await reader.answer()).error
        assert type(error) is UnknownTopic and "was deleted" in error.message

    simulated(scenario)


# By time.


def test_offsets_are_found_by_time_across_sealed_and_open_segments() -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.create("t", segment_records=3)
        times = []
        for number in range(8):
            times.append((await client.append("t", frame_of(b"%d" % number))).append_time_us)
            await asyncio.sleep(10)
        assert len((await client.describe("t")).segments) == 3
        assert await client.offsets_at("t", *times) == list(range(8))
        assert await client.offsets_at("t", *(time + 1 for time in times)) == list(range(1, 9))
        assert await client.offsets_at("t", *(time - 1 for time in times)) == list(range(8))
        assert await client.offsets_at("t", 0, times[-1] + 10**9, EARLIEST, LATEST) == [0, 8, 0, 8]

    simulated(scenario)


def test_a_time_before_a_trimmed_start_is_the_start() -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.create("t", segment_records=2)
        for number in range(5):
            await client.append("t", frame_of(b"%d" % number))
        await node.broker.metadata.propose(TrimTopic((await node.broker.find("t")).state.uid, 4))
        assert await client.offsets_at("t", 0) == [4]

    simulated(scenario)


def test_a_negative_time_is_refused(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        await client.create("t")
        error = await refusal(client.offsets_at("t", -3), BadRequest)
        assert "-3 is no time" in error.message

    on_real_disk(tmp_path, scenario)


# Order and races.


@pytest.mark.parametrize("records", [3, 1_000_000])
@pytest.mark.parametrize("seed", range(6))
def test_pipelined_appends_take_effect_in_the_order_sent(records: int, seed: int) -> None:
    """D6, across the topic's creation and, with small segments, across rollovers (A4, H3)."""

    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        count = 120
        for number in range(count):
            client.send(append_request(number, "t", frame_of(b"%d" % number)))
            if number % 17 == seed:
                await asyncio.sleep(0.002)
        answers = await client.answers(count)
        assert [decode_appended(answers[number].header).base_offset for number in range(count)] == list(
            range(count)
        )
        assert await client.values("t") == [b"%d" % number for number in range(count)]

    simulated(scenario, seed=seed, segment_records=records)


@pytest.mark.parametrize("seed", range(20))
def test_appends_keep_their_order_while_others_create_the_same_topic(seed: int) -> None:
    """D6: the topic may come to be, by another's command, while the first appends wait for it."""

    async def scenario(node: SimNode) -> None:
        client, other = await node.connect(), await node.connect()
        other.send(request(1, Kind.CREATE_TOPIC, messages.CreateTopic("t", if_absent=True)))
        for number in range(200):
            client.send(append_request(number, "t", frame_of(b"%d" % number)))
            await asyncio.sleep(0.00005 * (seed % 5))
        answers = await client.answers(200)
        found = [decode_appended(answers[number].header).base_offset for number in range(200)]
        assert found == list(range(200))

    simulated(scenario, seed=seed)


def test_an_append_that_meets_the_topic_just_made_stays_behind_those_that_waited_for_it() -> None:
    """D6: between the topic's creation and the release of what waited, nobody may pass."""

    class Order:
        def __init__(self) -> None:
            self.offsets: dict[int, int] = {}

        def appended(self, token: int, base_offset: int, append_time_us: int, leader: int = 0) -> None:
            self.offsets[token] = base_offset

        def refused(self, token: int, error: IsterError) -> None:
            raise error

    async def scenario(node: SimNode) -> None:
        order, broker = Order(), node.broker

        def append(token: int) -> None:
            frame = bytearray(frame_of(b"%d" % token))
            header = decode_frame_header(frame)
            assert isinstance(header, FrameHeader)
            broker.append("default/t", frame, header, order, token, 0.0)

        def created(command: Command | None, outcome: Outcome) -> None:
            if isinstance(command, CreateTopic):
                append(2)

        broker.metadata.watch(created)
        append(1)
        await asyncio.sleep(1)
        append(3)
        await asyncio.sleep(1)
        assert order.offsets == {1: 0, 2: 1, 3: 2}

    simulated(scenario)


def test_two_connections_that_race_to_make_a_topic_share_it(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        first, second = await node.connect(), await node.connect()
        for number in range(50):
            first.send(append_request(number, "t", frame_of(b"first")))
            second.send(append_request(number, "t", frame_of(b"second")))
        answers = [*(await first.answers(50)).values(), *(await second.answers(50)).values()]
        assert sorted(decode_appended(answer.header).base_offset for answer in answers) == list(range(100))
        assert len(node.broker.metadata.state.topics) == 1

    on_real_disk(tmp_path, scenario)


def test_an_append_whose_topic_is_deleted_as_soon_as_it_is_made_is_answered() -> None:
    async def scenario(node: SimNode) -> None:
        create = node.broker.create_topic

        async def made_and_deleted(name: str, *args: Any, **options: Any) -> TopicLog:
            topic = await create(name, *args, **options)
            await node.broker.delete_topic(name)
            return topic

        node.broker.create_topic = made_and_deleted  # type: ignore[method-assign]
        client = await node.connect()
        await refusal(client.append("t", frame_of(b"x")), UnknownTopic)

    simulated(scenario)


def test_of_two_that_insist_on_making_a_topic_one_is_told_that_it_exists(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        first, second = await node.connect(), await node.connect()
        for client in (first, second):
            client.send(request(1, Kind.CREATE_TOPIC, messages.CreateTopic("t")))
        answers = [await first.answer(), await second.answer()]
        assert sorted(answer.kind for answer in answers) == [0, TopicExists.wire]
        again = messages.CreateTopic("t", if_absent=True)
        answer = await first.call(Kind.CREATE_TOPIC, again)
        made = next(answer for answer in answers if answer.kind == 0)
        found = [decode_header(messages.TopicDescription, one.header).uid for one in (made, answer)]
        assert found[0] == found[1]

    on_real_disk(tmp_path, scenario)
