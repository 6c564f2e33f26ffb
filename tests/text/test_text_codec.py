"""The text protocol's bytes: every frame gets its one reply, and the stream never loses its step."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ister.errors import NotLeader, Overloaded, UnknownTopic
from ister.protocol.messages import PREAMBLE_MAGIC
from ister.protocol.peer import PEER_MAGIC
from ister.protocol.text import (
    DRAIN_BYTES,
    LENGTH,
    MAX_FRAME_BYTES,
    Get,
    Metrics,
    Put,
    Refused,
    Register,
    Request,
    State,
    TextDecoder,
    describe_error,
    encode_frame,
    error_reply,
    is_text,
    parse_request,
)


def decode_all(*pieces: bytes) -> list[Request]:
    decoder = TextDecoder()
    found: list[Request] = []
    for piece in pieces:
        decoder.feed(piece)
        while (request := decoder.take()) is not None:
            found.append(request)
    return found


@pytest.mark.parametrize(
    ("frame", "request_"),
    [
        (b"REGISTER logs", Register("logs")),
        (b"PUT logs hello", Put("logs", b"hello")),
        (b"GET logs", Get("logs")),
        (b"STATE ns/logs", State("ns/logs")),
        (b"METRICS", Metrics()),
        (b"GET logs\n", Get("logs")),
        (b"REGISTER logs \r\n", Register("logs")),
        (b"METRICS\n", Metrics()),
    ],
)
def test_a_command_is_understood_with_or_without_a_line_end(frame: bytes, request_: Request) -> None:
    assert parse_request(frame) == request_


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b" ",
        b"  two  words  ",
        b"\n",
        b"line\r\n",
        b"\x00\xff\xfe",
        b'"quoted"',
        bytes(range(256)),
        b"PUT",
    ],
)
def test_w21_a_payload_is_all_that_follows_the_space_behind_the_topic(payload: bytes) -> None:
    assert parse_request(b"PUT logs " + payload) == Put("logs", payload)


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (b"PUT", "PUT requires a topic"),
        (b"PUT ", "PUT requires a topic"),
        (b"PUT logs", "PUT requires a payload"),
        (b"PUT logs\n", "PUT requires a payload"),
        (b"PUT  x", "PUT requires a topic"),
        (b"GET", "GET requires a topic"),
        (b"GET \n", "GET requires a topic"),
        (b"GET my logs", "GET takes one topic and nothing after it"),
        (b"STATE", "STATE requires a topic"),
        (b"REGISTER", "REGISTER requires a topic"),
        (b"METRICS now", "METRICS takes nothing"),
        (b"GET \xff", "invalid utf-8"),
        (b"PUT \xff x", "invalid utf-8"),
        (b"DELETE logs", "unknown command DELETE"),
        (b"get logs", "unknown command get"),
        (b"\xff\xfe", "unknown command"),
        (b" ", "unknown command"),
    ],
)
def test_what_is_no_command_is_refused_with_the_reason(frame: bytes, why: str) -> None:
    found = parse_request(frame)
    assert isinstance(found, Refused)
    assert why in found.why
    assert not found.closes


def test_our_own_clients_and_other_protocols_are_told_from_text_by_their_first_bytes() -> None:
    assert not is_text(PREAMBLE_MAGIC)
    assert not is_text(PEER_MAGIC)
    assert not is_text(b"GET ")
    assert not is_text(b"POST")
    assert not is_text(b"\x16\x03\x01\x02"), "TLS"
    for length in (0, 1, 7, MAX_FRAME_BYTES, MAX_FRAME_BYTES + 1, DRAIN_BYTES, DRAIN_BYTES + 1, 0xFFFFFFFF):
        assert is_text(LENGTH.pack(length))


@pytest.mark.parametrize("length", [0, MAX_FRAME_BYTES + 1, 1_000_000])
def test_w21_a_frame_of_a_wrong_length_is_refused_and_read_past(length: int) -> None:
    stream = LENGTH.pack(length) + b"G" * length + encode_frame(b"GET logs")
    refused, following = decode_all(stream)
    assert isinstance(refused, Refused)
    assert f"invalid frame length: {length} bytes" in refused.why
    assert following == Get("logs")


def test_an_oversize_frame_is_refused_before_its_bytes_have_come() -> None:
    decoder = TextDecoder()
    decoder.feed(LENGTH.pack(100_000))
    assert isinstance(decoder.take(), Refused)
    assert decoder.take() is None
    decoder.feed(bytes(99_999))
    assert decoder.waiting_bytes == 0, "what is read past is not kept"
    assert not decoder.is_between_frames
    decoder.feed(b"\x00" + encode_frame(b"METRICS"))
    assert decoder.take() == Metrics()
    assert decoder.is_between_frames


def test_a_length_beyond_all_measure_ends_the_connection() -> None:
    found = decode_all(LENGTH.pack(DRAIN_BYTES + 1) + encode_frame(b"METRICS"))
    assert len(found) == 1
    assert isinstance(found[0], Refused)
    assert found[0].closes


def test_the_longest_frame_is_taken() -> None:
    payload = b"x" * (MAX_FRAME_BYTES - len(b"PUT t "))
    assert decode_all(encode_frame(b"PUT t " + payload)) == [Put("t", payload)]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(marks)]


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=8))
@example(LENGTH.pack(DRAIN_BYTES) + b"x", [4])
def test_any_bytes_in_any_pieces_are_requests_or_nothing_and_never_a_crash(
    data: bytes, places: list[int]
) -> None:
    assert decode_all(*cut(data, places)) == decode_all(data)


topics = st.sampled_from(["t", "logs", "ns/logs", "x" * 200])
good = st.one_of(
    topics.map(Get),
    topics.map(State),
    topics.map(Register),
    st.just(Metrics()),
    st.builds(Put, topics, st.binary(max_size=300)),
)
wrong_lengths = st.integers(MAX_FRAME_BYTES + 1, MAX_FRAME_BYTES + 3000) | st.just(0)


def written(request: Request | int) -> bytes:
    match request:
        case int(length):
            return LENGTH.pack(length) + b"\x05" * length
        case Put(topic, payload):
            return encode_frame(f"PUT {topic} ".encode() + payload)
        case Metrics():
            return encode_frame(b"METRICS")
        case Get(topic) | State(topic) | Register(topic):
            return encode_frame(f"{type(request).__name__.upper()} {topic}".encode())
    raise AssertionError(request)


@given(st.lists(good | wrong_lengths | st.binary(min_size=1, max_size=60), max_size=8), st.data())
def test_w21_every_frame_gives_exactly_one_request_in_order_whatever_stands_between(
    frames: list[Request | int | bytes], data: st.DataObject
) -> None:
    stream = b"".join(encode_frame(f) if isinstance(f, bytes) else written(f) for f in frames)
    places = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    found = decode_all(*cut(stream, places))
    assert len(found) == len(frames)
    for frame, request in zip(frames, found, strict=True):
        if isinstance(frame, int):
            assert isinstance(request, Refused)
        elif not isinstance(frame, bytes):
            assert request == frame


def test_errors_have_the_words_that_clients_of_this_protocol_look_for() -> None:
    assert describe_error(UnknownTopic("there is no topic default/x"), "x").startswith("unknown topic x")
    assert describe_error(NotLeader("node 2 leads it"), "x").startswith(
        "NotLeaderForPartition: node 2 leads it"
    )
    shown = describe_error(Overloaded("12 wait.", hint="Slow down."), "x")
    assert shown == "overloaded: 12 wait. Slow down."
    assert error_reply(shown) == b"ERR overloaded: 12 wait. Slow down."
    assert len(error_reply("x" * 100_000)) < 5_000
