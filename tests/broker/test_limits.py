"""Bounds on connections, unanswered bytes and unsent answers: a client can stall itself, never the broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from broker_helpers import Node, SimNode, append_request, frame_of, on_real_disk, refusal, request, simulated

from ister.broker.clients.answers import LEAST_BYTES_PER_SECOND
from ister.broker.clients.connection import WRITE_BUFFER_BYTES, Connection
from ister.broker.clients.requests import MAX_FETCH_BYTES
from ister.broker.clients.server import SCRATCH_BYTES
from ister.client.connection import MAX_ANSWER_BYTES
from ister.config import specs
from ister.errors import Overloaded, RequestTimeout
from ister.protocol import messages
from ister.protocol.codec import MAX_MESSAGE_BYTES, PREFIX, encode_header, encode_message
from ister.protocol.messages import Kind
from ister.settings import TOPIC_SETTINGS
from ister.wal.tail import HotTail

MIB = 1 << 20


def connections(node: Node) -> list[Connection]:
    return list(node.server._connections)


def unsent(node: Node) -> int:
    return max(found._transport.get_write_buffer_size() for found in connections(node))


def test_connections_beyond_the_limit_are_refused_and_others_live_on(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        kept = [await node.connect() for _ in range(3)]
        extra = await node.connect_raw()
        error = (await extra.answer()).error
        assert type(error) is Overloaded and "3 connections" in error.message
        assert "max_connections" in error.message
        await extra.wait_closed()
        assert (await kept[0].append("t", frame_of(b"x"))).base_offset == 0
        kept[1].transport.close()
        await kept[1].wait_closed()
        for _ in range(100):
            if len(connections(node)) < 3:
                break
            await asyncio.sleep(0.01)
        assert (await (await node.connect()).append("t", frame_of(b"y"))).base_offset == 1

    on_real_disk(tmp_path, scenario, max_connections=3)


def test_a_producer_that_reads_no_answers_is_stalled_and_costs_bounded_memory(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client, other = await node.connect(), await node.connect()
        client.transport.pause_reading()
        bad = append_request(1, "a/b/c", frame_of(b"x")) * 1000
        highest = 0
        for _ in range(200):
            client.send(bad)
            await asyncio.sleep(0)
            highest = max(highest, unsent(node))
        for _ in range(50):
            await asyncio.sleep(0.005)
            highest = max(highest, unsent(node))
        # What one read of the scratch buffer can make of answers, on top of the mark.
        assert highest < WRITE_BUFFER_BYTES + 3 * SCRATCH_BYTES
        assert node.server.in_flight_bytes < MIB
        assert (await other.append("t", frame_of(b"x"))).base_offset == 0
        assert node.broker.metrics.values()["paused_connections"] == 1
        client.transport.resume_reading()
        assert "a/b/c" in (await client.answer()).error.message

    on_real_disk(tmp_path, scenario)


@pytest.mark.slow
def test_a_stalled_producer_goes_on_where_it_was_once_it_reads(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        await client.create("t")
        client.transport.pause_reading()
        count = 60_000
        frame = frame_of(b"x")
        for start in range(0, count, 1000):
            client.send(*(append_request(number, "t", frame) for number in range(start, start + 1000)))
            await asyncio.sleep(0)
        for _ in range(30):
            await asyncio.sleep(0.01)
        client.transport.resume_reading()
        answers = await client.answers(count)
        assert all(answer.kind == 0 for answer in answers.values())
        assert node.server.in_flight_bytes == 0 and node.server.paused == {}

    on_real_disk(tmp_path, scenario)


def test_a_reader_that_asks_and_does_not_read_never_grows_the_brokers_memory(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client, other = await node.connect(), await node.connect()
        for _ in range(8):
            await other.append("t", frame_of(bytes(MIB)))
        client.transport.pause_reading()
        highest = 0
        for number in range(60):
            client.send(request(number, Kind.FETCH, messages.Fetch("t", number % 8, MIB)))
            await asyncio.sleep(0.002)
            highest = max(highest, unsent(node))
        assert highest < 4 * MIB
        assert (await other.append("t", frame_of(b"still here"))).base_offset == 8
        client.transport.resume_reading()
        answers = await client.answers(60)
        assert all(answer.kind == 0 and len(answer.payload) > MIB for answer in answers.values())

    on_real_disk(tmp_path, scenario)


def test_large_fetches_that_nobody_reads_are_bounded_too(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client, other = await node.connect(), await node.connect()
        for _ in range(20):
            await other.append("t", frame_of(bytes(MIB)))
        client.transport.pause_reading()
        highest = 0
        for number in range(60):
            client.send(request(number, Kind.FETCH, messages.Fetch("t", 0, 1 << 40)))
            await asyncio.sleep(0.002)
            highest = max(highest, unsent(node))
        assert highest < 2 * MAX_FETCH_BYTES + WRITE_BUFFER_BYTES

    on_real_disk(tmp_path, scenario)


def test_questions_whose_answers_nobody_reads_are_bounded(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        client.transport.pause_reading()
        highest = 0
        for number in range(400):
            client.send(*(request(number * 50 + n, Kind.STATS, messages.Empty()) for n in range(50)))
            await asyncio.sleep(0.001)
            highest = max(highest, unsent(node))
        assert highest < 4 * MIB

    on_real_disk(tmp_path, scenario)


@pytest.mark.slow
def test_large_answers_asked_for_at_once_are_made_one_by_one_for_who_does_not_read(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        for number in range(150):
            await client.create(f"topic-{number}-{'x' * 180}")
        answer = await client.call(Kind.LIST_TOPICS, messages.ListTopics())
        size = len(answer.header or answer.payload)  # a large one has no header (MAX_HEADER_BYTES)
        client.transport.pause_reading()
        client.send(*(request(number, Kind.LIST_TOPICS, messages.ListTopics()) for number in range(900)))
        highest = 0
        for _ in range(50):
            await asyncio.sleep(0.01)
            highest = max(highest, unsent(node))
        assert 900 * size > 20 * MIB, "it would show"
        assert highest < 4 * MIB
        client.transport.resume_reading()
        assert {answer.kind for answer in (await client.answers(900)).values()} == {0}

    on_real_disk(tmp_path, scenario)


@pytest.mark.parametrize("share", ["connection", "all"])
def test_unanswered_bytes_are_bounded_and_all_are_answered_in_the_end(share: str) -> None:
    """A disk that takes its time, and producers that send on: the broker stops reading at the bound."""
    limit = 512 * 1024
    name = "max_connection_in_flight_bytes" if share == "connection" else "max_in_flight_bytes"

    async def scenario(node: SimNode) -> None:
        clients = [await node.connect() for _ in range(1 if share == "connection" else 4)]
        await clients[0].create("t", segment_records=1)
        node.disk.slow(0.5)
        frame = frame_of(bytes(30_000))
        highest = 0
        for number in range(100):
            for client in clients:
                client.send(append_request(number, "t", frame))
            await asyncio.sleep(0.01)
            highest = max(highest, node.server.in_flight_bytes)
        assert highest <= limit + len(clients) * (SCRATCH_BYTES + 40_000)
        assert node.server.paused
        node.disk.faults.clear()
        for client in clients:
            answers = await client.answers(100)
            assert {answer.kind for answer in answers.values()} == {0}
        assert node.server.in_flight_bytes == 0 and node.server.paused == {}

    simulated(scenario, **{name: limit})


def test_announced_requests_do_not_take_memory_beyond_the_bound_of_all(tmp_path: Path) -> None:
    """Many connections that each announce a large request: its buffer is made when there is room for it."""

    async def scenario(node: Node) -> None:
        clients = [await node.connect() for _ in range(20)]
        for client in clients:
            client.send(PREFIX.pack(8 * MIB, 1, Kind.APPEND, 10))
        await asyncio.sleep(0.3)
        held = sum(len(found._partial) for found in connections(node) if found._partial is not None)
        assert held <= 16 * MIB
        other = await node.connect()
        assert (await other.append("t", frame_of(b"x"))).base_offset == 0
        rest = append_request(1, "t", frame_of(bytes(8 * MIB - 100)))
        for client in clients[:10]:
            client.transport.abort()
        again = await node.connect()
        again.send(rest)
        for client in clients[10:]:
            client.transport.abort()
        assert (await again.answer()).kind == 0
        async with asyncio.timeout(10):  # the broker hears of the aborts in its own time
            while node.server.in_flight_bytes or node.server.paused:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    on_real_disk(tmp_path, scenario, max_in_flight_bytes=16 * MIB)


def test_large_requests_on_many_connections_all_get_through(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        clients = [await node.connect() for _ in range(12)]
        frame = frame_of(bytes(3 * MIB))
        for number in range(3):
            for client in clients:
                client.send(append_request(number, "t", frame))
        for client in clients:
            assert {answer.kind for answer in (await client.answers(3)).values()} == {0}
        assert node.server.in_flight_bytes == 0 and node.server.paused == {}

    on_real_disk(tmp_path, scenario, max_in_flight_bytes=8 * MIB, max_connection_in_flight_bytes=4 * MIB)


def test_requests_that_arrive_a_byte_at_a_time_do_not_keep_everybody_else_out() -> None:
    async def scenario(node: SimNode) -> str:
        await (await node.connect()).append("t", frame_of(b"x"))
        drips = []
        for _ in range(4):
            drip = await node.connect()
            whole = append_request(1, "t", frame_of(b"x" * (15 << 18)))
            drip.send(whole[:1000])
            drips.append((drip, whole))
        honest = await node.connect()
        honest.send(append_request(7, "t", frame_of(b"x" * (1 << 20))))
        for turn in range(100):
            await asyncio.sleep(20)  # below request_timeout_ms
            for drip, whole in drips:
                if not drip.closed.is_set():
                    drip.send(whole[1000 + turn : 1001 + turn])
            if honest.answer_count:
                return "answered"
        return "waits after 2000 s"

    assert (
        simulated(scenario, max_in_flight_bytes=8 << 20, max_connection_in_flight_bytes=4 << 20) == "answered"
    )


def test_appends_of_clients_that_left_still_count_until_the_disk_has_them() -> None:
    """A disk that hangs, and clients that send, give up and come back: the queue is bounded."""

    async def scenario(node: SimNode) -> tuple[int, int]:
        client = await node.connect()
        await client.append("t", frame_of(b"x"))
        node.disk.slow(600)
        for _ in range(40):
            visitor = await node.connect()
            visitor.send(append_request(1, "t", frame_of(b"x" * (1 << 20))))
            await asyncio.sleep(1)
            visitor.transport.abort()
        segment = node.broker.topics["default/t"].led.segment
        assert segment is not None
        return sum(map(len, segment._buffers)), node.server.in_flight_bytes

    queued, counted = simulated(scenario, max_in_flight_bytes=8 << 20, max_connection_in_flight_bytes=4 << 20)
    assert queued <= 9 << 20, f"{queued} bytes are queued, {counted} are counted"


@pytest.mark.parametrize("size", [1 << 20, 100_000, 100], ids=["large", "small", "tiny"])
def test_clients_that_send_and_leave_fill_the_bound_and_no_more(size: int) -> None:
    """Requests that come whole, in one read, wait for room too; who stays is answered in the end."""
    limit = 2 * MIB

    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.append("t", frame_of(b"x"))
        node.disk.slow(600)
        requests = [
            append_request(number, "t", frame_of(bytes(size))) for number in range(200_000 // size + 1)
        ]
        for _ in range(60):
            visitor = await node.connect()
            visitor.send(*requests)
            await asyncio.sleep(0.2)
            visitor.transport.abort()
        segment = node.broker.topics["default/t"].led.segment
        assert segment is not None
        assert sum(map(len, segment._buffers)) <= limit + SCRATCH_BYTES
        client.send(*requests)
        node.disk.faults.clear()
        await asyncio.sleep(700)
        answers = client.unread()
        assert [answer.correlation for answer in answers] == list(range(len(requests)))
        assert {answer.kind for answer in answers} == {0}
        assert node.server.in_flight_bytes == 0 and node.server.paused == {}

    simulated(scenario, max_in_flight_bytes=limit)


def test_the_headers_of_waiting_requests_count_as_in_flight() -> None:
    async def scenario(node: SimNode) -> tuple[int, int]:
        client = await node.connect()
        await client.create("t")
        padded = msgspec.msgpack.encode(["t", 0, 1, 60_000, "x" * 60_000])
        for n in range(500):
            client.send(encode_message(n, Kind.FETCH, padded))
        await asyncio.sleep(5)
        (connection,) = node.server._connections
        return len(connection._tasks) * len(padded), node.server.in_flight_bytes

    held, counted = simulated(scenario)
    assert counted >= held or held <= 16 * 1024 * 1024, f"{held} bytes are held, {counted} are counted"


def test_questions_are_answered_while_appends_wait_for_room() -> None:
    async def scenario(node: SimNode) -> None:
        client, other = await node.connect(), await node.connect()
        await client.append("t", frame_of(b"x"))
        node.disk.slow(60)
        for number in range(4):
            client.send(append_request(number, "t", frame_of(bytes(50_000))))
            await asyncio.sleep(0.1)
        assert node.server.in_flight_bytes > 64 * 1024
        assert (await other.ask(Kind.STATS, messages.Empty())).kind == 0
        assert (await (await node.connect()).fetch("t", 0))[0].header.count == 1

    simulated(scenario, max_in_flight_bytes=64 * 1024)


def test_a_large_request_at_the_least_pace_is_not_cut_off() -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        whole = append_request(1, "t", frame_of(bytes(8 * MIB)))
        for start in range(0, len(whole), LEAST_BYTES_PER_SECOND):
            client.send(whole[start : start + LEAST_BYTES_PER_SECOND])
            await asyncio.sleep(1)
        assert (await client.answer()).kind == 0

    simulated(scenario, request_timeout_ms=30_000)


def test_a_large_request_that_drips_in_is_told_so_and_gives_its_memory_back() -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        whole = append_request(1, "t", frame_of(bytes(8 * MIB)))
        for byte in whole[:3]:
            client.send(bytes([byte]))
            await asyncio.sleep(20)
        client.send(whole[3:1000])
        await asyncio.sleep(20)
        assert node.server.in_flight_bytes == len(whole), "it has its buffer only now"
        client.send(whole[1000:1001])
        await asyncio.sleep(20)
        assert node.server.in_flight_bytes == 0
        error = client.unread()[-1].error
        assert type(error) is RequestTimeout and f"of a request of {len(whole)}" in error.message

    simulated(scenario, request_timeout_ms=30_000)


def test_no_topic_takes_a_batch_that_no_client_can_be_sent() -> None:
    assert TOPIC_SETTINGS["max_message_bytes"].high < MAX_ANSWER_BYTES
    assert specs()["max_message_bytes"].high == TOPIC_SETTINGS["max_message_bytes"].high
    largest = encode_message(1, 0, encode_header(messages.FetchAnswer(1 << 63, 1 << 63)), MAX_MESSAGE_BYTES)
    assert PREFIX.unpack_from(largest)[0] <= MAX_ANSWER_BYTES


def test_topics_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        await client.create("a")
        await client.create("b")
        error = await refusal(client.create("c"), Overloaded)
        assert "max_topics is 2" in error.message
        await refusal(client.append("c", frame_of(b"x")), Overloaded)
        assert (await client.append("a", frame_of(b"x"))).base_offset == 0

    on_real_disk(tmp_path, scenario, max_topics=2)


def test_the_memory_of_the_hot_tail_is_bounded_in_entries_too() -> None:
    """Segments that are sealed before the tail is full leave nothing behind."""
    hot = HotTail(1 << 30)
    for _ in range(2000):
        tail = hot.of_segment()
        for number in range(10):
            tail.add([number], [b"x" * 100], 100)
        tail.clear()
    assert hot.bytes == 0
    assert len(hot._order) < 5000


def test_the_hot_tail_keeps_the_newest_within_its_bound_after_others_were_cleared() -> None:
    hot = HotTail(1000)
    tails = [hot.of_segment() for _ in range(3)]
    for number in range(3000):
        tails[number % 3].add([number], [b"x" * 10], 10)
        if number % 500 == 499:
            tails[number % 3].clear()
            tails[number % 3] = hot.of_segment()
        assert hot.bytes <= 1000
    there = sum(len(frame) for tail in tails for piece in tail._pieces for frame in piece.frames)
    assert hot.bytes == there, "what is counted is what is there"
    assert tails[1].read(2998, 2999, 100) == [b"x" * 10]


@pytest.mark.parametrize("size", [10, 300 * 1024], ids=["as one piece", "frame by frame"])
def test_the_hot_tail_reads_across_cycles_from_any_offset_in_them(size: int) -> None:
    tail = HotTail(1 << 30).of_segment()
    frames: list[bytes | bytearray | memoryview] = [bytes([number]) * size for number in range(9)]
    for first in (0, 3, 6):  # three frames of two records in each cycle
        tail.add([2 * first, 2 * first + 2, 2 * first + 4], frames[first : first + 3], 3 * size)
    for offset in range(18):
        assert tail.read(offset, 18, 100 * size) == frames[offset // 2 :]
        assert tail.read(offset, 18, 1) == [frames[offset // 2]], "at least one"
        assert tail.read(offset, 18, 2 * size) == frames[offset // 2 : offset // 2 + 2]
        assert tail.read(offset, 14, 100 * size) == frames[offset // 2 : 7], "committed ones only"


def test_a_header_with_fields_of_a_later_version_is_understood_and_not_hoarded(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        for number in range(20):
            header = msgspec.msgpack.encode(["t", 0, -1, 0, 0, "later", b"%d" % number * 20_000])
            frame = frame_of(b"x")
            client.send(
                PREFIX.pack(8 + len(header) + len(frame), number, Kind.APPEND, len(header)), header, frame
            )
            assert (await client.answer()).kind == 0
        assert sum(map(len, node.server.logs)) < 10_000

    on_real_disk(tmp_path, scenario)


def test_max_topics_holds_for_topics_that_are_made_at_once() -> None:
    async def scenario(node: SimNode) -> int:
        made = [node.broker.create_topic(f"t{n}", {}, if_absent=True) for n in range(20)]
        await asyncio.gather(*made, return_exceptions=True)
        return len(node.broker.topics)

    assert simulated(scenario, max_topics=3) == 3


def test_max_topics_holds_for_appends_that_make_topics() -> None:
    async def scenario(node: SimNode) -> int:
        client = await node.connect()
        client.send(*(append_request(n, f"t{n}", frame_of(b"x")) for n in range(20)))
        await client.answers(20)
        return len(node.broker.topics)

    assert simulated(scenario, max_topics=3) == 3
