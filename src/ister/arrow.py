"""Frames as Arrow record batches, and back, without turning columns into rows.

A frame's body is laid out as Arrow lays out its columns, so a large frame that is not compressed becomes
arrays over the very bytes it came in: the batch holds on to that memory, which must not change under it.
Many small frames are joined column by column into new buffers, since an Arrow array for each would cost
more than the bytes that it describes. Headers alone are converted row by row, and only when asked for.

Imported only where Arrow is asked for; pyarrow comes with the extra `arrow`, and numpy is not needed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, repeat
from operator import sub
from typing import Any, Final

from ister.columns import (
    BinaryColumn,
    Columns,
    Flags,
    check_ends,
    checked_ends,
    decode_record_headers,
    find_columns,
    full_bitmap,
)
from ister.errors import BadRequest, CorruptFrame, DependencyMissing, MessageTooLarge
from ister.frame import DEFAULT_LIMIT, Frame, FrameHeader, lone_value

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:
    raise DependencyMissing(
        "Arrow batches need the package pyarrow", hint="pip install 'ister[arrow]'"
    ) from error

from ister.arrow_encoding import encode_record_batch

__all__ = ["RECORD_SCHEMA", "encode_record_batch", "record_schema", "to_record_batch"]

_TIME: Final = pa.timestamp("us", "UTC")
_BINARY: Final = pa.binary()
_INT64: Final = pa.int64()
_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

RECORD_SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", _TIME, nullable=False),
        pa.field("append_time", _TIME, nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(_HEADER)),
    ]
)
"""`timestamp` is the event time if the producer gave one, else the time of the append; `headers` is null
where a record has none."""

SMALL_FRAME_COUNT: Final = 64
"""Below this many records a frame's columns are copied into joined ones rather than wrapped in place."""

_TIMES: Final = int(Flags.TIMES)
_NO_END: Final = 1 << 63
_MAX_COLUMN_BYTES: Final = (1 << 31) - 1
_FEWER: Final = "Ask for fewer frames at a time."
_add: Any = pc.get_function("add")
"""The kernel itself: pyarrow's wrapper around it costs twice what it does."""


def record_schema(columns: Sequence[str] | None = None) -> pa.Schema:
    """The schema of a batch that has these columns, in this order; all of them when not said."""
    if columns is None:
        return RECORD_SCHEMA
    unknown = [name for name in columns if name not in RECORD_SCHEMA.names]
    if unknown or len(set(columns)) != len(columns):
        what = f"records have no columns {unknown}" if unknown else f"a column is named twice in {columns}"
        raise BadRequest(what, hint=f"Choose each at most once from {', '.join(RECORD_SCHEMA.names)}.")
    return pa.schema([RECORD_SCHEMA.field(name) for name in columns])


def to_record_batch(
    frames: Sequence[Frame],
    *,
    columns: Sequence[str] | None = None,
    first_offset: int | None = None,
    end_offset: int | None = None,
    limit: int = DEFAULT_LIMIT,
) -> pa.RecordBatch:
    """The records of these frames from `first_offset` to before `end_offset`, as one batch.

    `limit` bounds what each frame may unpack to. Columns that are not asked for are not looked into, and
    a frame's body only if one of its columns is. Raises `CorruptFrame`.
    """
    schema = record_schema(columns)
    first = 0 if first_offset is None else first_offset
    end = _NO_END if end_offset is None else end_offset
    if len(frames) == 1 and columns is None:
        header = frames[0].header
        if header.flags == 0 and first <= header.base_offset and header.end_offset <= end:
            return _values_alone(frames[0], limit)
    joined = _Batch(schema, limit)
    for frame in frames:
        header = frame.header
        low = first - header.base_offset
        high = end - header.base_offset
        if low <= 0 and high >= header.count:
            joined.add(frame)
        elif low < header.count and high > 0 and first < end:
            joined.add_wrapped(frame, max(low, 0), min(high, header.count))
    return joined.finish()


def _values_alone(frame: Frame, limit: int) -> pa.RecordBatch:
    """One whole frame that has only values: what `_Batch` would make of it, in a third of the steps.

    This is what a bulk reader meets for every megabyte, right after that megabyte has pushed everything else
    out of the processor's caches; there each step counts fourfold.
    """
    header = frame.header
    count = header.count
    values = find_columns(0, count, frame.unpacked_body(limit)).values
    column = _in_place(values, count)
    times = _fixed(_TIME, array("q", (header.append_time_us,)) * count)
    offsets = _add.call([_ramp(count), pa.scalar(header.base_offset, _INT64)])
    keys, headers = _absent(count)
    return pa.RecordBatch.from_arrays([offsets, times, times, keys, column, headers], schema=RECORD_SCHEMA)


@lru_cache(16)
def _absent(count: int) -> tuple[pa.Array, pa.Array]:
    """No keys and no headers, for this many records. Never changed, so they may be shared."""
    return pa.nulls(count, _BINARY), pa.nulls(count, RECORD_SCHEMA.field("headers").type)


def batches_of(frames: Sequence[Frame]) -> Iterator[Sequence[Frame]]:
    """Frames as they are best turned into batches: a large one by itself, in place; small ones together."""
    start = 0
    for place, frame in enumerate(frames):
        if frame.header.count >= SMALL_FRAME_COUNT:
            if start < place:
                yield frames[start:place]
            yield frames[place : place + 1]
            start = place + 1
    if start < len(frames):
        yield frames[start:]


class _Batch:
    """The columns of a batch in the making."""

    def __init__(self, schema: pa.Schema, limit: int) -> None:
        self.schema = schema
        self.limit = limit
        self.values = _BinaryChunks() if "value" in schema.names else None
        self.keys = _BinaryChunks() if "key" in schema.names else None
        self.headers = _HeaderRows() if "headers" in schema.names else None
        self.wants_times = "timestamp" in schema.names
        # Most batches are one run of offsets; then they are counted out by Arrow, not here.
        self.ranges: list[range] = []
        self.range_start = self.range_end = 0
        self.append_times = array("q")
        self.times = self.append_times

    def add(self, frame: Frame) -> None:
        """A whole frame: joined with its neighbours if it is small."""
        header = frame.header
        count = header.count
        if count >= SMALL_FRAME_COUNT:
            self.add_wrapped(frame, 0, count)
            return
        value = lone_value(frame)
        if value is not None:
            self._add_lone(header, value)
            return
        columns = self._columns(frame)
        self._add_times(header, columns, 0, count)
        if columns is None:
            return
        if self.values is not None:
            self.values.join(columns.values, count)
        if self.keys is not None:
            self.keys.join(columns.keys, count)
        if self.headers is not None:
            self.headers.add(columns.headers, 0, count)

    def _add_lone(self, header: FrameHeader, value: memoryview) -> None:
        self._add_offsets(header.base_offset, 1)
        time = header.append_time_us
        self.append_times.append(time)
        if self.times is not self.append_times:
            self.times.append(time)
        if self.values is not None:
            self.values.join_one(value)
        if self.keys is not None:
            self.keys.absent += 1
        if self.headers is not None:
            self.headers.absent += 1

    def add_wrapped(self, frame: Frame, low: int, high: int) -> None:
        """Rows `low` to before `high` of a frame, its keys and values in place."""
        columns = self._columns(frame)
        count = frame.header.count
        self._add_times(frame.header, columns, low, high)
        if columns is None:
            return
        if self.values is not None:
            self.values.wrap(columns.values, count, low, high)
        if self.keys is not None:
            self.keys.wrap(columns.keys, count, low, high)
        if self.headers is not None:
            self.headers.add(columns.headers, low, high)

    def _columns(self, frame: Frame) -> Columns | None:
        """None if nothing in the body is wanted: then it is not even decompressed."""
        header = frame.header
        wants_times = self.wants_times and header.flags & _TIMES
        if self.values is None and self.keys is None and self.headers is None and not wants_times:
            return None
        return find_columns(header.flags, header.count, frame.unpacked_body(self.limit))

    def _add_times(self, header: FrameHeader, columns: Columns | None, low: int, high: int) -> None:
        count = high - low
        self._add_offsets(header.base_offset + low, count)
        append_times = array("q", (header.append_time_us,)) * count
        if columns is not None and columns.times_buffer is not None:
            self._keep_times_apart()
            self.times.frombytes(columns.times_buffer[8 * low : 8 * high])
        elif self.times is not self.append_times:
            self.times += append_times
        self.append_times += append_times

    def _keep_times_apart(self) -> None:
        """From here on event times and append times differ; until now they were one column."""
        if self.times is self.append_times:
            self.times = self.append_times[:]

    def _add_offsets(self, start: int, count: int) -> None:
        if start != self.range_end:
            self.ranges.append(range(self.range_start, self.range_end))
            self.range_start = start
        self.range_end = start + count

    def finish(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([self._column(n) for n in self.schema.names], schema=self.schema)

    def _column(self, name: str) -> pa.Array:
        for wanted, joined in (("value", self.values), ("key", self.keys), ("headers", self.headers)):
            if name == wanted and joined is not None:
                return joined.finish()
        if name == "offset":
            return _count_out([*self.ranges, range(self.range_start, self.range_end)])
        return _fixed(_TIME, self.times if name == "timestamp" else self.append_times)


def _fixed(kind: pa.DataType, numbers: array[int]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


_counted = _fixed(pa.int64(), array("q", range(1024)))


def _ramp(count: int) -> pa.Array:
    """0, 1, 2, ...: counted once, and longer only when somebody needs it longer."""
    global _counted
    if len(_counted) < count:
        _counted = _fixed(pa.int64(), array("q", range(max(count, 2 * len(_counted)))))
    return _counted.slice(0, count)


def _count_out(ranges: list[range]) -> pa.Array:
    ranges = [part for part in ranges if part]
    if len(ranges) == 1:
        return _add.call([_ramp(len(ranges[0])), pa.scalar(ranges[0].start, pa.int64())])
    numbers = array("q")
    for part in ranges:
        numbers.extend(part)
    return _fixed(pa.int64(), numbers)


class _BinaryChunks:
    """A binary column: arrays in place for large frames, joined ones for the small frames in between."""

    def __init__(self) -> None:
        self.chunks: list[pa.Array] = []
        self._start_joining()

    def _start_joining(self) -> None:
        self.parts: list[memoryview] = []
        self.lengths: list[int] = []
        # A byte for each row, written only as far as the last null.
        self.valid = bytearray()
        # Rows at the end whose frames do not have this column at all.
        self.absent = 0

    def join_one(self, value: memoryview) -> None:
        if self.absent:
            self._join_absent()
        self.parts.append(value)
        self.lengths.append(len(value))

    def join(self, column: BinaryColumn | None, count: int) -> None:
        if column is None:
            self.absent += count
            return
        if self.absent:
            self._join_absent()
        ends = checked_ends(column.ends)
        if column.validity is not None and column.validity != full_bitmap(count):
            bits = int.from_bytes(column.validity, "little")
            self.valid += b"\1" * (len(self.lengths) - len(self.valid))
            self.valid += bytes([bits >> row & 1 for row in range(count)])
        self.parts.append(column.data)
        self.lengths += map(sub, ends[1:], ends)

    def _join_absent(self) -> None:
        self.valid += b"\1" * (len(self.lengths) - len(self.valid))
        self.valid += bytes(self.absent)
        self.lengths += repeat(0, self.absent)
        self.absent = 0

    def wrap(self, column: BinaryColumn | None, count: int, low: int, high: int) -> None:
        self._stop_joining()
        if column is None:
            self.chunks.append(pa.nulls(high - low, pa.binary()))
            return
        whole = _in_place(column, count)
        self.chunks.append(whole if high - low == count else whole.slice(low, high - low))

    def _stop_joining(self) -> None:
        if not self.lengths:
            if self.absent:
                self.chunks.append(pa.nulls(self.absent, pa.binary()))
        else:
            if self.absent:
                self._join_absent()
            self.chunks.append(self._joined())
        self._start_joining()

    def _joined(self) -> pa.Array:
        count, size = len(self.lengths), sum(self.lengths)
        if size > _MAX_COLUMN_BYTES:
            raise MessageTooLarge(f"{size} bytes in one column of a batch: Arrow takes 2 GiB", hint=_FEWER)
        validity = None
        if self.valid:
            self.valid += b"\1" * (count - len(self.valid))
            validity = _bitmap(self.valid)
        ends = array("i", accumulate(self.lengths, initial=0))
        buffers = [validity, pa.py_buffer(ends), pa.py_buffer(b"".join(self.parts))]
        return pa.Array.from_buffers(pa.binary(), count, buffers)

    def finish(self) -> pa.Array:
        self._stop_joining()
        if len(self.chunks) == 1:
            return self.chunks[0]
        if not self.chunks:
            return pa.nulls(0, pa.binary())
        try:
            return pa.concat_arrays(self.chunks)
        except pa.ArrowInvalid as error:
            raise MessageTooLarge(f"the frames do not fit into one batch: {error}", hint=_FEWER) from error


def _in_place(column: BinaryColumn, count: int) -> pa.Array:
    """A binary column where it lies, checked by Arrow itself: 0.8 us for 1,000 ends, 28 us in Python."""
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    try:
        whole = pa.Array.from_buffers(
            _BINARY, count, [validity, _aligned(column.ends), pa.py_buffer(column.data)]
        )
        whole.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptFrame(f"the ends of a column fall or leave it: {error}") from error
    if bytes(column.ends[:4]) != b"\0\0\0\0":
        raise CorruptFrame("the ends of a column do not start at 0")
    return whole


def _aligned(section: memoryview) -> pa.Buffer:
    """Numbers in place if the frame lies where a processor may read them, else a copy."""
    buffer = pa.py_buffer(section)
    return pa.py_buffer(bytes(section)) if buffer.address & 3 else buffer


def _bitmap(valid: bytearray) -> pa.Buffer:
    """A byte for each row to a bit for each row, by Arrow's own cast."""
    rows = pa.Array.from_buffers(pa.uint8(), len(valid), [None, pa.py_buffer(valid)])
    return rows.cast(pa.bool_()).buffers()[1]


class _HeaderRows:
    """The one column that is msgpack inside, and so is read row by row."""

    def __init__(self) -> None:
        self.ends = array("i", (0,))
        self.valid = bytearray()
        self.names: list[str] = []
        self.values: list[bytes] = []
        # Rows at the end whose frames have no headers at all.
        self.absent = 0

    def add(self, column: BinaryColumn | None, low: int, high: int) -> None:
        if column is None:
            self.absent += high - low
            return
        self._add_absent()
        check_ends(column.ends)
        for row in column.to_list()[low:high]:
            for name, value in decode_record_headers(row):
                self.names.append(name)
                self.values.append(value)
            # Nothing tells no headers from an empty list of them: both are null.
            self.valid.append(len(self.names) > self.ends[-1])
            self.ends.append(len(self.names))

    def _add_absent(self) -> None:
        self.valid += bytes(self.absent)
        self.ends.extend(repeat(len(self.names), self.absent))
        self.absent = 0

    def finish(self) -> pa.Array:
        kind = RECORD_SCHEMA.field("headers").type
        if not self.names:
            return pa.nulls(len(self.valid) + self.absent, kind)
        self._add_absent()
        pairs = pa.StructArray.from_arrays(
            [pa.array(self.names, pa.string()), pa.array(self.values, pa.binary())], fields=list(_HEADER)
        )
        buffers = [_bitmap(self.valid), pa.py_buffer(self.ends)]
        return pa.Array.from_buffers(kind, len(self.valid), buffers, children=[pairs])
