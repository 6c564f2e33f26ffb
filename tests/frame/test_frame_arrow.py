"""Frames as Arrow batches and back: the same records as by any other path, in place where that can be."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from frame_samples import ALL_SHAPES, BASE_OFFSET, Batch, batches, forge, sample, stamped
from hypothesis import given, settings
from hypothesis import strategies as st

from ister import arrow, columns
from ister.arrow import RECORD_SCHEMA, encode_record_batch, record_schema, to_record_batch
from ister.columns import Codec, Flags
from ister.errors import BadRequest, CorruptFrame, MessageTooLarge
from ister.frame import Frame, Record, encode, frames_in, stamp

few = settings(max_examples=15, deadline=None)
every_shape = pytest.mark.parametrize(("flags", "codec"), ALL_SHAPES)
LARGE = arrow.SMALL_FRAME_COUNT


def records_of(batch: pa.RecordBatch) -> list[Record]:
    batch.validate(full=True)
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    pairs = batch.column("headers").to_pylist()
    headers = [[(pair["key"], pair["value"]) for pair in row] if row else () for row in pairs]
    offsets, keys, values = (batch.column(name).to_pylist() for name in ("offset", "key", "value"))
    return [Record(*row) for row in zip(offsets, times, keys, values, headers, strict=True)]


def records_from(frames: Sequence[Frame]) -> list[Record]:
    return [record for frame in frames for record in frame.records()]


def line(*parts: bytes) -> list[Frame]:
    """Frames as a leader lines them up, in one buffer, each with an append time of its own."""
    data = bytearray()
    offset = BASE_OFFSET
    for number, part in enumerate(parts):
        received = bytearray(part)
        stamp(received, offset, 1, 1_000_000 + number)
        data += received
        offset = frames_in(received)[0].header.end_offset
    return frames_in(bytes(data))


@every_shape
@few
@given(data=st.data())
def test_a_batch_has_the_records_of_its_frame_and_makes_them_again(
    flags: int, codec: Codec, data: st.DataObject
) -> None:
    sent = data.draw(batches(flags))
    frame = stamped(sent.encode(codec))
    batch = to_record_batch([frame])
    assert batch.schema == RECORD_SCHEMA
    assert records_of(batch) == sent.records()
    again = stamped(encode_record_batch(batch, codec=codec))
    assert again.records() == sent.records()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_frames_of_any_shapes_and_sizes_join_into_the_same_records_clipped_or_not(
    data: st.DataObject,
) -> None:
    shapes = data.draw(st.lists(st.sampled_from(ALL_SHAPES), min_size=1, max_size=8))
    parts = []
    for flags, codec in shapes:
        batch = data.draw(batches(flags, max_count=4))
        times = data.draw(st.sampled_from([1, 1, LARGE]))
        columns = (batch.values, batch.keys, batch.timestamps_us, batch.headers)
        parts.append(Batch(*(column and column * times for column in columns)).encode(codec))
    frames = line(*parts)
    expected = records_from(frames)
    assert records_of(to_record_batch(frames)) == expected
    end = frames[-1].header.end_offset
    first = data.draw(st.integers(BASE_OFFSET - 3, end + 3))
    stop = data.draw(st.integers(BASE_OFFSET - 3, end + 3))
    clipped = to_record_batch(frames, first_offset=first, end_offset=stop)
    assert records_of(clipped) == [record for record in expected if first <= record.offset < stop]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), codec=st.sampled_from(list(Codec)))
def test_a_sliced_batch_makes_a_frame_of_its_own_rows_only(data: st.DataObject, codec: Codec) -> None:
    flags = data.draw(st.sampled_from([flags for flags, _ in ALL_SHAPES]))
    frame = stamped(data.draw(batches(flags, max_count=40)).encode())
    count = frame.header.count
    start = data.draw(st.integers(0, count - 1))
    size = data.draw(st.integers(1, count - start))
    made = stamped(
        encode_record_batch(to_record_batch([frame]).slice(start, size), codec=codec), BASE_OFFSET + start
    )
    assert made.records() == frame.records()[start : start + size]


def test_equal_records_make_equal_frames_from_rows_and_from_columns() -> None:
    for flags, codec in ALL_SHAPES:
        sent = sample(flags | Flags.TIMES, count=11)
        made = encode_record_batch(to_record_batch([stamped(sent.encode())]), codec=codec)
        assert made == sent.encode(codec)


@pytest.mark.parametrize("count", [LARGE, 10 * LARGE])
def test_values_and_keys_of_a_large_frame_stay_where_they_are(count: int) -> None:
    frame = line(encode([b"value"] * count, keys=[b"k"] * count))[0]
    memory = pa.py_buffer(frame.buffer)
    batch = to_record_batch([frame], first_offset=BASE_OFFSET + 3)
    assert batch.num_rows == count - 3
    for name in ("key", "value"):
        for buffer in batch.column(name).buffers():
            assert buffer is None or memory.address <= buffer.address < memory.address + memory.size


def test_a_frame_at_an_odd_position_gives_ends_that_are_aligned() -> None:
    data = encode([b"value"] * LARGE)
    for before in range(9):
        frames = frames_in(memoryview(bytes(before) + data)[before:])
        column = to_record_batch(frames).column("value")
        assert column.buffers()[1].address % 4 == 0
        assert column.to_pylist() == [b"value"] * LARGE


def test_columns_come_in_the_order_asked_for_and_no_others() -> None:
    frames = line(sample(15).encode(), encode([b"v"] * LARGE), encode([b"w"]))
    whole = to_record_batch(frames)
    for names in (["value"], ["offset"], ["append_time", "key"], ["headers", "timestamp"], ["timestamp"]):
        part = to_record_batch(frames, columns=names)
        assert part.schema == record_schema(names)
        assert part.equals(whole.select(names))


def test_a_body_that_nobody_asked_for_is_not_opened() -> None:
    frames = frames_in(forge(b"no lz4!!" * 2, codec=Codec.LZ4, count=3))
    assert to_record_batch(frames, columns=["offset", "append_time"]).column("offset").to_pylist() == [
        0,
        1,
        2,
    ]
    assert to_record_batch(frames, columns=["timestamp"]).num_rows == 3
    with pytest.raises(CorruptFrame):
        to_record_batch(frames, columns=["value"])


def test_a_body_outside_the_range_asked_for_is_not_opened() -> None:
    bad = bytearray(forge(b"no lz4!!" * 2, codec=Codec.LZ4, count=3))
    stamp(bad, BASE_OFFSET + 2, 1, 5)
    frames = [*line(encode([b"a", b"b"])), *frames_in(bad)]
    batch = to_record_batch(frames, end_offset=BASE_OFFSET + 2, columns=["value"])
    assert batch.column("value").to_pylist() == [b"a", b"b"]


def test_no_frames_make_an_empty_batch_of_the_right_schema() -> None:
    assert to_record_batch([]).schema == RECORD_SCHEMA
    assert to_record_batch(line(encode([b"a"])), end_offset=0).num_rows == 0


def test_offsets_with_a_gap_between_frames_are_told_as_they_are() -> None:
    one, other = stamped(encode([b"a", b"b"]), 5), stamped(encode([b"c"] * LARGE), 100)
    offsets = to_record_batch([one, other]).column("offset").to_pylist()
    assert offsets == [5, 6, *range(100, 100 + LARGE)]


def test_event_time_wins_over_append_time_and_append_time_stays_to_be_seen() -> None:
    batch = to_record_batch(line(encode([b"a"], timestamps_us=[77]), encode([b"b"])))
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [77, 1_000_001]
    assert batch.column("append_time").cast(pa.int64()).to_pylist() == [1_000_000, 1_000_001]


@pytest.mark.parametrize("names", [["vale"], ["value", "value"]])
def test_columns_that_records_do_not_have_are_refused_with_those_that_they_have(names: list[str]) -> None:
    with pytest.raises(BadRequest) as caught:
        to_record_batch([], columns=names)
    assert "offset, timestamp, append_time, key, value, headers" in caught.value.hint


# From Arrow.

VALUES = [b"one", None, b"", b"three"]
KINDS = [pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.binary_view(), pa.string_view(),
         pa.dictionary(pa.int32(), pa.string())]  # fmt: skip


def values_in(data: bytes) -> list[bytes | None]:
    return [record.value for record in frames_in(data)[0].records()]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_kind_of_bytes_and_text_is_a_value(kind: pa.DataType) -> None:
    column = pa.array([None if value is None else value.decode() for value in VALUES], pa.string())
    batch = pa.RecordBatch.from_arrays([column.cast(kind)], ["value"])
    assert values_in(encode_record_batch(batch)) == VALUES
    assert values_in(encode_record_batch(batch.slice(1, 2))) == VALUES[1:3]


def test_bytes_of_fixed_size_and_columns_of_nothing_are_values_too() -> None:
    fixed = pa.RecordBatch.from_pydict({"value": pa.array([b"ab", None, b"cd"], pa.binary(2))})
    assert values_in(encode_record_batch(fixed)) == [b"ab", None, b"cd"]
    nothing = pa.RecordBatch.from_pydict({"value": pa.nulls(2), "key": pa.nulls(2)})
    assert values_in(encode_record_batch(nothing)) == [None, None]


def test_ends_that_do_not_start_at_zero_are_made_to() -> None:
    """Legal in Arrow, and what some writers leave after a slice; a frame's ends start at 0."""
    ends = pa.py_buffer(pa.array([2, 3, 5], pa.int32()).buffers()[1])
    column = pa.Array.from_buffers(pa.binary(), 2, [None, ends, pa.py_buffer(b"xxabb")])
    assert values_in(encode_record_batch(pa.RecordBatch.from_arrays([column], ["value"]))) == [b"a", b"bb"]


def test_bits_after_the_last_row_of_a_bitmap_do_not_reach_the_frame() -> None:
    """Arrow leaves them open; equal records make equal frames all the same."""
    ends = pa.array([0, 1, 1, 2], pa.int32()).buffers()[1]
    column = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(b"\xfd"), ends, pa.py_buffer(b"ac")])
    batch = pa.RecordBatch.from_arrays([column, column], ["value", "key"])
    values = [b"a", None, b"c"]
    assert encode_record_batch(batch) == encode(values, keys=values)


def test_columns_of_nulls_cost_nothing_in_the_frame() -> None:
    batch = to_record_batch(line(encode([b"a", b"b"])))
    assert batch.column("key").null_count == 2
    assert frames_in(encode_record_batch(batch.drop_columns(["timestamp"])))[0].header.flags == 0


MOMENT = datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
MOMENT_US = (MOMENT - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@pytest.mark.parametrize(("unit", "whole"), [("s", 1_000_000), ("ms", 1000), ("us", 1), ("ns", 1)])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Vienna"])
def test_timestamps_of_any_unit_become_microseconds(unit: str, whole: int, zone: str | None) -> None:
    moment = MOMENT_US - MOMENT_US % whole
    column = pa.array([0, moment], pa.int64()).cast(pa.timestamp("us", zone)).cast(pa.timestamp(unit, zone))
    batch = pa.RecordBatch.from_arrays([pa.array([b"a", b"b"]), column], ["value", "timestamp"])
    for start in (0, 1):
        records = frames_in(encode_record_batch(batch.slice(start)))[0].records()
        assert [record.timestamp_us for record in records] == [0, moment][start:]


def test_nanoseconds_lose_what_a_frame_cannot_hold() -> None:
    column = pa.array([1999], pa.int64()).cast(pa.timestamp("ns"))
    batch = pa.RecordBatch.from_arrays([pa.array([b"a"]), column], ["value", "timestamp"])
    assert frames_in(encode_record_batch(batch))[0].records()[0].timestamp_us == 1


HEADERS = RECORD_SCHEMA.field("headers").type
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("no rows", {"value": pa.array([], pa.binary())}, "at least one record"),
    ("no value", {"key": pa.array([b"k"])}, "no column `value`"),
    ("numbers", {"value": pa.array([1, 2])}, "column `value` is int64"),
    ("numbers as keys", {"value": pa.array([b"a"]), "key": pa.array([1])}, "column `key` is int64"),
    ("numbers as times", {"value": pa.array([b"a"]), "timestamp": pa.array([1])}, "`timestamp` is int64"),
    (
        "some times",
        {"value": pa.array([b"a", b"b"]), "timestamp": pa.array([1, None], pa.timestamp("us"))},
        "1 of 2 timestamps are null",
    ),
    (
        "times past the range",
        {"value": pa.array([b"a"]), "timestamp": pa.array([1 << 62], pa.int64()).cast(pa.timestamp("s"))},
        "out of range",
    ),
    ("text as headers", {"value": pa.array([b"a"]), "headers": pa.array(["h"])}, "`headers` is string"),
    (
        "a header without a value",
        {"value": pa.array([b"a"]), "headers": pa.array([[{"key": "k", "value": None}]], HEADERS)},
        "not of str, NoneType",
    ),
]


@pytest.mark.parametrize(("name", "content", "message"), REFUSED, ids=[case[0] for case in REFUSED])
def test_a_batch_that_makes_no_frame_is_refused_with_the_column_to_blame(
    name: str, content: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadRequest, match=message) as caught:
        encode_record_batch(pa.RecordBatch.from_pydict(content))
    assert caught.value.hint


def test_a_column_that_is_there_twice_is_refused() -> None:
    column = pa.array([b"a"])
    with pytest.raises(BadRequest, match="2 columns are named `key`"):
        encode_record_batch(pa.RecordBatch.from_arrays([column] * 3, ["value", "key", "key"]))


def test_a_batch_over_the_limit_of_a_frame_is_refused_before_it_is_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(columns, "MAX_BODY_BYTES", 4096)
    with pytest.raises(MessageTooLarge, match="over the limit of 4096"):
        encode_record_batch(pa.RecordBatch.from_pydict({"value": [bytes(5000)]}))


@pytest.mark.parametrize(("value_size", "count", "frame_count"), [(1 << 25, 1, 65), (1 << 18, LARGE, 129)])
def test_more_than_arrow_can_hold_in_one_column_is_refused_before_it_is_joined(
    value_size: int, count: int, frame_count: int
) -> None:
    """The same frame over and over: 2 GiB to the batch, some 32 MiB to the machine."""
    frame = stamped(encode([bytes(value_size)] * count))
    with pytest.raises(MessageTooLarge, match="batch") as caught:
        to_record_batch([frame] * frame_count, columns=["value"])
    assert "fewer frames" in caught.value.hint
