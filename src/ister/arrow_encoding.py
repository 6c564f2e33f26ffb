"""The way from Arrow to a frame: a batch's columns become a body as they stand.

Buffers go into the body whole; only a sliced column is copied first, to let its ends start at 0. Headers
alone are converted row by row. Reached through `ister.arrow`, which says what is missing without pyarrow.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from ister.columns import BodyWriter, Codec, Flags, encode_record_headers, full_bitmap
from ister.errors import BadRequest, MessageTooLarge
from ister.frame import seal

_FIRST_END = struct.Struct("<i")


def encode_record_batch(
    batch: pa.RecordBatch, *, codec: Codec = Codec.NONE, producer_id: int = 0, sequence: int = 0
) -> bytes:
    """Make a frame of the columns `value` and, where there, `key`, `timestamp` and `headers`.

    Other columns are left out. Timestamps may have any unit; without a time zone they are UTC.
    """
    count = batch.num_rows
    if count == 0:
        raise BadRequest("a frame needs at least one record", hint="Send at least one record.")
    values = _column(batch, "value")
    if values is None:
        raise BadRequest(f"no column `value` among {batch.schema.names}", hint="Name one column `value`.")
    writer = BodyWriter()
    values = _as_binary("value", values)
    flags = 0
    if values.null_count:
        flags = int(Flags.NULL_VALUES)
        _put_validity(writer, values)
    _put_binary(writer, values)
    keys = _column(batch, "key")
    if keys is not None and keys.null_count < count:
        flags |= Flags.KEYS
        keys = _as_binary("key", keys)
        _put_validity(writer, keys)
        _put_binary(writer, keys)
    times = _column(batch, "timestamp")
    if times is not None and times.null_count < count:
        flags |= Flags.TIMES
        writer.put(8 * count, memoryview(_as_times(times).buffers()[1])[: 8 * count])
    headers = _column(batch, "headers")
    if headers is not None and headers.null_count < count:
        flags |= Flags.HEADERS
        writer.put_values(_header_rows(headers))
    return seal(flags, count, writer.join(), codec, producer_id, sequence)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    found = batch.schema.get_all_field_indices(name)
    if len(found) > 1:
        raise BadRequest(f"{len(found)} columns are named `{name}`", hint="Leave one of them.")
    return batch.column(found[0]) if found else None


def _as_binary(name: str, column: pa.Array) -> pa.Array:
    """The column as plain binary whose ends start at 0; its bytes are copied only where it was sliced."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not _is_binary(kind):
        hint = "Cast it to binary or string first."
        raise BadRequest(f"column `{name}` is {column.type}, not bytes", hint=hint)
    try:
        if column.offset:
            # Before the cast: a slice may fit where the large column that it is part of would not.
            column = pa.concat_arrays([column])
        column = column.cast(pa.binary())
        if column.offset or _FIRST_END.unpack_from(column.buffers()[1])[0] != 0:
            column = pa.concat_arrays([column])
    except pa.ArrowInvalid as error:
        raise MessageTooLarge(f"column `{name}` does not fit into one frame: {error}") from error
    return column


def _is_binary(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_string(kind)
        or types.is_large_binary(kind)
        or types.is_large_string(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
        or types.is_string_view(kind)
        or types.is_null(kind)
    )


def _put_binary(writer: BodyWriter, column: pa.Array) -> None:
    _, ends, data = column.buffers()
    size = 4 * (len(column) + 1)
    ends = memoryview(ends)[:size]
    writer.put(size, ends)
    used = _FIRST_END.unpack_from(ends, size - 4)[0]
    writer.put(used, b"" if data is None else memoryview(data)[:used])


def _put_validity(writer: BodyWriter, column: pa.Array) -> None:
    """The bitmap, with the bits after the last row cleared: equal records make equal frames."""
    full = full_bitmap(len(column))
    bitmap = column.buffers()[0]
    if bitmap is None:
        writer.put(len(full), full)
        return
    bits = bytearray(memoryview(bitmap)[: len(full)])
    bits[-1] &= full[-1]
    writer.put(len(bits), bits)


def _as_times(column: pa.Array) -> pa.Array:
    if not pa.types.is_timestamp(column.type):
        hint = "Cast it to a timestamp first."
        raise BadRequest(f"column `timestamp` is {column.type}, not a timestamp", hint=hint)
    if column.null_count:
        hint = "Give all records of a batch a time, or none."
        raise BadRequest(f"{column.null_count} of {len(column)} timestamps are null", hint=hint)
    try:
        # Nanoseconds lose their last three digits, which is meant; anything else that is lost is not.
        in_us = column.cast(pa.timestamp("us", column.type.tz), safe=column.type.unit != "ns")
    except pa.ArrowInvalid as error:
        hint = "Give times within some 290,000 years of 1970."
        raise BadRequest(f"a timestamp is out of range: {error}", hint=hint) from error
    return pa.concat_arrays([in_us]) if in_us.offset else in_us


def _header_rows(column: pa.Array) -> list[bytes]:
    kind = column.type
    pairs = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else None
    if pairs is None or not pa.types.is_struct(pairs) or {field.name for field in pairs} != {"key", "value"}:
        hint = "Cast it to list<struct<key: string, value: binary>>."
        raise BadRequest(f"column `headers` is {kind}", hint=hint)
    return [
        encode_record_headers([(pair["key"], pair["value"]) for pair in row]) if row else b""
        for row in column.to_pylist()
    ]
