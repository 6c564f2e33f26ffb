"""Bytes that are no request, requests that are too large, half there, or out of turn.

Hole W21 of the ancestors: an oversize frame was answered but not drained, and the stream lost its step.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from pathlib import Path

import msgspec
import pytest
from broker_helpers import (
    Node,
    SimNode,
    append_request,
    frame_of,
    on_real_disk,
    refusal,
    request,
    simulated,
)

from ister.broker.clients import connection
from ister.errors import BadRequest, MessageTooLarge, Overloaded, RequestTimeout, UnsupportedVersion
from ister.protocol import messages
from ister.protocol.codec import PREFIX, decode_header, encode_preamble
from ister.protocol.messages import Kind

LIMIT = 64 * 1024


def oversize(correlation: int, size: int = LIMIT + 1) -> bytes:
    return append_request(correlation, "t", bytes(size))


def test_an_oversize_message_is_drained_and_the_connection_lives_on(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        client.send(oversize(1, 3 * LIMIT), append_request(2, "t", frame_of(b"after")))
        answers = await client.answers(2)
        assert type(answers[1].error) is MessageTooLarge
        assert f"over the limit of {LIMIT}" in answers[1].error.message
        assert answers[2].kind == 0
        assert await client.values("t") == [b"after"]

    on_real_disk(tmp_path, scenario, max_message_bytes=LIMIT)


def test_an_oversize_message_in_many_small_pieces_is_drained(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        data = oversize(1, LIMIT + 777) + append_request(2, "t", frame_of(b"after"))
        for start in range(0, len(data), 3001):
            client.send(data[start : start + 3001])
            await asyncio.sleep(0)
        answers = await client.answers(2)
        assert (type(answers[1].error), answers[2].kind) == (MessageTooLarge, 0)

    on_real_disk(tmp_path, scenario, max_message_bytes=LIMIT)


@pytest.mark.parametrize("piece", [1, 7, 64 * 1024, 1 << 20])
def test_oversize_messages_among_good_ones_keep_the_stream_in_step(piece: int) -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        sent = b"".join(
            oversize(number, LIMIT + number)
            if number % 3 == 0
            else append_request(number, "t", frame_of(b"x"))
            for number in range(1, 20 if piece > 7 else 5)
        )
        for start in range(0, len(sent), piece):
            client.send(sent[start : start + piece])
            if piece > 7:
                await asyncio.sleep(0.001)
        answers = await client.answers(19 if piece > 7 else 4)
        assert {number for number, answer in answers.items() if answer.kind} == set(
            range(3, len(answers) + 1, 3)
        )
        assert node.server.in_flight_bytes == 0

    simulated(scenario, max_message_bytes=LIMIT)


def test_a_message_at_the_limit_is_taken(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        # Frames are whole words of 8 bytes: one of these names lets one fill the message exactly.
        for topic in ("whole" + "x" * more for more in range(8)):
            frame = frame_of(bytes(LIMIT - len(append_request(1, topic, frame_of(b"")))))
            if len(append_request(1, topic, frame)) == LIMIT:
                break
        assert len(append_request(1, topic, frame)) == LIMIT
        assert (await client.append(topic, frame)).base_offset == 0

    on_real_disk(tmp_path, scenario, max_message_bytes=LIMIT)


def test_a_batch_over_the_topics_own_limit_is_refused_with_both_sizes(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        await client.create("t", max_message_bytes=2048)
        error = await refusal(client.append("t", frame_of(bytes(4000))), MessageTooLarge)
        assert "over 2048" in error.message and "default/t" in error.message
        assert (await client.append("t", frame_of(bytes(1000)))).base_offset == 0

    on_real_disk(tmp_path, scenario)


def test_a_message_too_large_even_to_drain_ends_the_connection(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        client.send(PREFIX.pack(0xFFFFFFF0, 5, Kind.APPEND, 10))
        assert type((await client.answer()).error) is BadRequest
        await client.wait_closed()

    on_real_disk(tmp_path, scenario)


# Half a request, then silence.


def halves() -> dict[str, bytes]:
    whole = append_request(9, "t", frame_of(bytes(1000)))
    hello = encode_preamble() + request(1, Kind.HELLO, messages.Hello("raw"))
    return {
        "half a preamble": encode_preamble()[:5],
        "a preamble and no hello": encode_preamble(),
        "half a prefix": hello + whole[:6],
        "half a header": hello + whole[:14],
        "half a payload": hello + whole[:400],
        "half of what is drained": hello + oversize(3)[:1000],
    }


@pytest.mark.parametrize("name", halves())
def test_half_a_request_and_then_silence_is_closed_and_logged(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect_raw()
        client.send(halves()[name])
        async with asyncio.timeout(40):
            await client.closed.wait()
        assert node.server.in_flight_bytes == 0
        last = client.unread()[-1]
        assert type(last.error) is RequestTimeout
        assert "nothing came for 30 s" in last.error.message
        assert (await (await node.connect()).append("t", frame_of(b"x"))).base_offset == 0

    with caplog.at_level(logging.WARNING, "ister.broker.clients"):
        simulated(scenario, max_message_bytes=LIMIT, request_timeout_ms=30_000)
    assert any("nothing came for 30 s" in message for message in caplog.messages)


@pytest.mark.slow
def test_a_slow_but_steady_sender_is_not_cut_off() -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect_raw()
        sent = encode_preamble() + request(1, Kind.HELLO, messages.Hello("raw"))
        sent += append_request(2, "t", frame_of(b"slowly"))
        for byte in sent:
            client.send(bytes([byte]))
            await asyncio.sleep(20)
        answers = await client.answers(2)
        assert answers[2].kind == 0

    simulated(scenario, request_timeout_ms=30_000)


def test_an_idle_connection_between_requests_is_left_alone() -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await asyncio.sleep(600)
        assert (await client.append("t", frame_of(b"x"))).base_offset == 0

    simulated(scenario, request_timeout_ms=30_000)


def test_a_timed_out_peer_that_takes_no_answers_is_dropped_all_the_same() -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.append("t", frame_of(bytes(1 << 20)))
        client.transport.pause_reading()
        client.send(*(request(n, Kind.FETCH, messages.Fetch("t", 0, 1 << 20)) for n in range(20)))
        client.send(oversize(99)[:50])
        await asyncio.sleep(1)
        assert len(node.server._connections) == 1
        next(iter(node.server._connections)).refuse(Overloaded("for this test"))
        await asyncio.sleep(120)
        assert len(node.server._connections) == 0

    simulated(scenario, request_timeout_ms=30_000)


def test_what_the_same_host_is_refused_again_and_again_is_logged_once_and_then_with_a_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(node: SimNode) -> None:
        for number in range(6):
            client = await node.connect_raw()
            client.send(GARBAGE["http"])
            await client.closed.wait()
            await asyncio.sleep(61 if number == 4 else 1)

    with caplog.at_level(logging.WARNING, "ister.broker.clients.server"):
        simulated(scenario)
    assert [getattr(record, "fields")["times"] for record in caplog.records[1:]] == [5]  # noqa: B009
    assert len(caplog.records) == 2


# Garbage and requests out of turn.

GARBAGE = {
    "http": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": bytes.fromhex("16030100f8010000f40303") + bytes(60),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_at_the_start_is_refused_with_what_was_seen(name: str, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect_raw()
        client.send(GARBAGE[name])
        error = (await client.answer()).error
        assert type(error) is BadRequest and "does not speak this protocol" in error.message
        await client.wait_closed()

    on_real_disk(tmp_path, scenario)


@pytest.mark.parametrize(
    "data",
    [bytes(12), b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", PREFIX.pack(8, 7, Kind.APPEND, 500)],
    ids=["zeros", "ones", "http", "header larger than the message"],
)
def test_garbage_after_the_hello_ends_only_that_connection(data: bytes, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client, other = await node.connect(), await node.connect()
        client.send(data)
        error = (await client.answer()).error
        assert type(error) is BadRequest and error.hint
        await client.wait_closed()
        assert (await other.append("t", frame_of(b"x"))).base_offset == 0

    on_real_disk(tmp_path, scenario)


def test_answers_that_were_due_before_the_garbage_still_arrive(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        client.send(append_request(1, "a/b/c", frame_of(b"x")), b"\xff" * 64)
        assert (await client.answer()).correlation == 1
        assert type((await client.answer()).error) is BadRequest

    on_real_disk(tmp_path, scenario)


def test_an_unknown_kind_is_refused_and_the_connection_lives_on(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        error = await refusal(client.call(777, messages.Empty()), BadRequest)
        assert "kind 777" in error.message
        assert (await client.append("t", frame_of(b"x"))).base_offset == 0

    on_real_disk(tmp_path, scenario)


@pytest.mark.parametrize("kind", [Kind.FETCH, Kind.APPEND, Kind.CREATE_TOPIC, Kind.LIST_OFFSETS])
@pytest.mark.parametrize(
    "header", [b"", b"\xc1", b"\x91" * 60_000, msgspec.msgpack.encode({"topic": "t"}), b"\x92\xa1t"]
)
def test_a_header_that_cannot_be_read_is_a_bad_request(kind: Kind, header: bytes, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        payload = frame_of(b"x")
        client.send(PREFIX.pack(8 + len(header) + len(payload), 5, kind, len(header)), header, payload)
        error = (await client.answer()).error
        assert type(error) is BadRequest and "cannot read" in error.message
        assert (await client.append("t", frame_of(b"x"))).base_offset == 0

    on_real_disk(tmp_path, scenario)


def test_a_request_before_the_hello_is_answered_and_the_connection_closed(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect_raw()
        client.send(encode_preamble(), append_request(7, "t", frame_of(b"x")))
        answer = await client.answer()
        assert answer.correlation == 7
        assert type(answer.error) is BadRequest and "hello was expected" in answer.error.message
        await client.wait_closed()
        assert node.broker.topics == {}

    on_real_disk(tmp_path, scenario)


def test_requests_may_follow_the_hello_without_waiting_for_its_answer(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect_raw()
        client.send(
            encode_preamble(),
            request(1, Kind.HELLO, messages.Hello("raw")),
            append_request(2, "t", frame_of(b"x")),
        )
        answers = await client.answers(2)
        assert answers[1].kind == answers[2].kind == 0

    on_real_disk(tmp_path, scenario)


def test_a_large_request_before_the_hello_reserves_no_memory(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect_raw()
        client.send(encode_preamble(), PREFIX.pack(32 << 20, 1, Kind.APPEND, 10))
        assert type((await client.answer()).error) is BadRequest
        await client.wait_closed()
        assert node.server.in_flight_bytes == 0

    on_real_disk(tmp_path, scenario)


def test_a_client_of_another_protocol_version_is_told_both_versions(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect_raw()
        client.send(struct.pack("<4sHH", b"ISTR", 7, 9))
        error = (await client.answer()).error
        assert type(error) is UnsupportedVersion
        assert "versions 7 to 9, this broker 1" in error.message
        await client.wait_closed()

    on_real_disk(tmp_path, scenario)


def test_a_client_of_another_cluster_is_refused(tmp_path: Path) -> None:
    """I1: the cluster id is in every hello."""

    async def scenario(node: Node) -> None:
        client = await node.connect_raw()
        client.send(encode_preamble())
        error = await refusal(client.call(Kind.HELLO, messages.Hello("raw", "deadbeef")), BadRequest)
        assert node.broker.identity is not None
        assert "deadbeef" in error.message and node.broker.identity.cluster_id in error.message
        answer = await client.ask(Kind.LIST_TOPICS, messages.ListTopics())
        assert type(answer.error) is BadRequest

    on_real_disk(tmp_path, scenario)


def test_the_hello_names_the_limits(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect_raw()
        hello = await client.greet()
        assert (hello.version, hello.node_id, hello.max_message_bytes) == (1, 1, LIMIT)
        assert hello.max_in_flight_bytes == 128 * 1024

    on_real_disk(tmp_path, scenario, max_message_bytes=LIMIT, max_connection_in_flight_bytes=128 * 1024)


@pytest.mark.slow
def test_a_list_of_many_topics_is_answered_whole(tmp_path: Path) -> None:
    """A header has at most 65,535 bytes; what is larger comes as the payload."""

    async def scenario(node: Node) -> None:
        client = await node.connect()
        names = [f"topic-{number:04d}-{'x' * 150}" for number in range(400)]
        for name in names:
            await client.create(name)
        answer = await client.call(Kind.LIST_TOPICS, messages.ListTopics())
        found = decode_header(messages.TopicList, answer.header or answer.payload)
        assert [topic.topic for topic in found.topics] == [f"default/{name}" for name in names]

    on_real_disk(tmp_path, scenario)


def test_requests_beyond_the_bound_on_tasks_are_overloaded(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        await client.create("t")
        asked = connection.MAX_TASKS + 10
        waiting = messages.Fetch("t", 0, 1000, wait_ms=60_000)
        client.send(*(request(number, Kind.FETCH, waiting) for number in range(asked)))
        refused = await client.answers(10)
        assert {type(answer.error) for answer in refused.values()} == {Overloaded}
        await (await node.connect()).append("t", frame_of(b"x"))
        answered = await client.answers(connection.MAX_TASKS)
        assert {answer.kind for answer in answered.values()} == {0}

    on_real_disk(tmp_path, scenario)
