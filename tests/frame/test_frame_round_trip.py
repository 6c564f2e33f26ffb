"""Whatever a producer puts in comes out, for every combination of flags and codec."""

from __future__ import annotations

import pickle
import struct

import pytest
from frame_samples import (
    ALL_SHAPES,
    APPEND_TIME_US,
    BASE_OFFSET,
    SEGMENT,
    batches,
    fix_header_crc,
    sample,
    stamped,
    whole,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from ister.columns import Codec
from ister.frame import (
    HEADER_SIZE,
    Corrupt,
    Frame,
    Incomplete,
    Record,
    check_structure,
    decode,
    encode,
    frames_in,
    lone_value,
    stamp,
)

every_shape = pytest.mark.parametrize(("flags", "codec"), ALL_SHAPES)
few = settings(max_examples=12, deadline=None)
any_u64 = st.integers(0, (1 << 64) - 1)
any_offset = st.integers(0, (1 << 63) - (1 << 31))


@every_shape
@few
@given(data=st.data())
def test_records_come_back_as_they_were_sent(flags: int, codec: Codec, data: st.DataObject) -> None:
    batch = data.draw(batches(flags))
    producer_id, sequence = data.draw(any_u64), data.draw(any_u64)
    frame = stamped(batch.encode(codec, producer_id=producer_id, sequence=sequence))
    header = frame.header
    assert frame.records() == batch.records()
    assert (header.flags, header.codec, header.count) == (flags, codec, len(batch.values))
    assert (header.producer_id, header.sequence) == (producer_id, sequence)
    assert (header.base_offset, header.segment, header.append_time_us) == (
        BASE_OFFSET,
        SEGMENT,
        APPEND_TIME_US,
    )
    assert header.end_offset == BASE_OFFSET + len(batch.values)
    check_structure(header, frame.buffer)


@every_shape
@few
@given(data=st.data())
def test_stamping_keeps_the_body_and_the_producers_checksum(
    flags: int, codec: Codec, data: st.DataObject
) -> None:
    sent = data.draw(batches(flags)).encode(codec)
    received = bytearray(sent)
    stamp(
        received, data.draw(any_offset), data.draw(any_u64), data.draw(st.integers(-(1 << 63), (1 << 63) - 1))
    )
    assert received[:36] == sent[:36]
    assert received[HEADER_SIZE:] == sent[HEADER_SIZE:]
    assert whole(bytes(received)).header.body_crc == whole(sent).header.body_crc


@every_shape
@few
@given(data=st.data())
def test_frames_are_whole_words_so_that_those_after_them_stay_aligned(
    flags: int, codec: Codec, data: st.DataObject
) -> None:
    sent = data.draw(batches(flags)).encode(codec)
    assert len(sent) % 8 == 0
    assert whole(sent).header.size == len(sent)


@every_shape
def test_any_prefix_is_incomplete_and_never_asks_for_too_much(flags: int, codec: Codec) -> None:
    sent = sample(flags).encode(codec)
    for size in range(len(sent)):
        outcome = decode(sent[:size])
        assert isinstance(outcome, Incomplete)
        assert 0 < outcome.missing <= len(sent) - size
    assert isinstance(decode(sent), Frame)


@every_shape
def test_any_flipped_bit_is_found(flags: int, codec: Codec) -> None:
    sent = sample(flags, count=3).encode(codec)
    for bit in range(8 * len(sent)):
        flipped = bytearray(sent)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        assert isinstance(decode(flipped), Corrupt | Incomplete), f"bit {bit}"


PRODUCER_FIELDS = [
    ("flags", 5),
    ("codec", 6),
    ("encoding", 7),
    ("count", 12),
    ("producer_id", 16),
    ("sequence", 24),
]


@pytest.mark.parametrize(("field", "position"), PRODUCER_FIELDS)
def test_a7_a_changed_producer_field_is_found_even_under_a_mended_header_checksum(
    field: str, position: int
) -> None:
    changed = bytearray(encode([b"one", b"two", b"three"], producer_id=7, sequence=100))
    changed[position] ^= 1
    fix_header_crc(changed)
    outcome = decode(changed)
    assert isinstance(outcome, Corrupt), field
    assert "body checksum" in outcome.reason


def test_a7_a_body_moved_under_another_producers_header_is_found() -> None:
    mine = encode([b"same size"], producer_id=1)
    other = encode([b"SAME SIZE"], producer_id=2)
    assert isinstance(decode(mine[:HEADER_SIZE] + other[HEADER_SIZE:]), Corrupt)


def test_a_frame_is_found_at_any_position_and_in_any_kind_of_buffer() -> None:
    sent = encode([b"a", b"bc"])
    for before in range(9):
        padded = bytes(before) + sent + b"more"
        for buffer in (padded, bytearray(padded), memoryview(padded)):
            frame = decode(buffer, before)
            assert isinstance(frame, Frame)
            assert [record.value for record in frame.records()] == [b"a", b"bc"]
            assert bytes(frame.data) == sent


def test_a_buffer_of_frames_is_taken_apart_in_order() -> None:
    parts = [sample(flags).encode(codec) for flags, codec in ALL_SHAPES]
    assert [bytes(frame.data) for frame in frames_in(b"".join(parts))] == parts


def test_a_value_read_alone_is_the_one_that_the_columns_hold() -> None:
    for size in range(20):
        assert lone_value(whole(encode([b"x" * size]))) == b"x" * size
    for other in (encode([b"a", b"b"]), encode([b"a"], keys=[b"k"]), encode([b"a"], codec=Codec.LZ4)):
        assert lone_value(whole(other)) is None


def test_bytearrays_and_views_of_bytes_are_values_too() -> None:
    values = [b"plain", bytearray(b"array"), memoryview(b"a view")[2:]]
    records = whole(encode(values)).records()  # type: ignore[arg-type]
    assert [record.value for record in records] == [b"plain", b"array", b"view"]


def test_more_ends_than_are_checked_at_once_still_come_back() -> None:
    values = [b"%d" % row for row in range(150_000)]
    assert [record.value for record in whole(encode(values)).records()] == values


def test_a_record_survives_the_way_to_another_process() -> None:
    record = Record(1, 2, b"key", b"value", [("name", b"header")])
    assert pickle.loads(pickle.dumps(record)) == record


def test_the_header_is_where_the_format_says() -> None:
    """Bytes that other implementations rely on; the golden file holds the rest."""
    sent = encode([b"abc"], producer_id=3, sequence=4)
    assert sent[:8] == b"ISTF\x01\x00\x00\x00"
    assert struct.unpack_from("<IIQQ", sent, 8) == (16, 1, 3, 4)
    assert sent[36:60] == bytes(24)
    assert sent[64:] == struct.pack("<ii", 0, 3) + b"abc" + bytes(5)
