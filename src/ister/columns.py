"""A frame's body: its columns, how they are laid out, and how they are packed.

Every section starts at a multiple of 8 and the body's size is one, so that bodies stay aligned for Arrow:

    [value validity bitmap] value_ends int32[count + 1], values        the bitmap by flag NULL_VALUES
    [key validity bitmap, key_ends int32[count + 1], keys]             flag KEYS
    [event times in microseconds int64[count]]                         flag TIMES
    [header_ends int32[count + 1], each msgpack [[name, value], ...] or empty]   flag HEADERS

Unpacking raises `CorruptFrame` for anything that is not exactly this. `ister.compression` has what a
compressed body looks like.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from enum import IntFlag
from itertools import accumulate
from typing import Any, Final

import msgspec

from ister.compression import PADDING, Codec
from ister.errors import BadRequest, CorruptFrame, MessageTooLarge

__all__ = [
    "MAX_BODY_BYTES",
    "BinaryColumn",
    "BodyWriter",
    "Codec",
    "Columns",
    "Flags",
    "RecordHeaders",
    "check_body_size",
    "check_ends",
    "checked_ends",
    "decode_record_headers",
    "encode_record_headers",
    "find_columns",
    "full_bitmap",
    "pack_columns",
    "unpack_columns",
    "value_column_fits",
]

RecordHeaders = Sequence[tuple[str, bytes]]

MAX_BODY_BYTES: Final = (1 << 31) - 64 * 1024

_ONE_VALUE = struct.Struct("<ii")
_ENDS_AT_ONCE = 1 << 16


class Flags(IntFlag):
    KEYS = 1
    TIMES = 2
    HEADERS = 4
    NULL_VALUES = 8


# An attribute of an enum costs more than all else that a frame of one record needs.
_KEYS: Final = int(Flags.KEYS)
_TIMES: Final = int(Flags.TIMES)
_HEADERS: Final = int(Flags.HEADERS)
_NULL_VALUES: Final = int(Flags.NULL_VALUES)


class BinaryColumn(msgspec.Struct, frozen=True, gc=False):
    """Values end to end, with where each ends: Arrow's own layout. `check_ends` before relying on it."""

    ends: memoryview
    data: memoryview
    validity: memoryview | None

    def to_list(self) -> list[Any]:
        data = bytes(self.data)
        start = 0
        cut = [data[start : (start := end)] for end in self.ends.cast("i")[1:].tolist()]
        if self.validity is None or self.validity == full_bitmap(len(cut)):
            return cut
        bits = self.validity
        return [value if bits[row >> 3] >> (row & 7) & 1 else None for row, value in enumerate(cut)]


def full_bitmap(count: int) -> bytes:
    """The validity of a column without nulls: a bit for each row, and none after the last."""
    whole = b"\xff" * (count >> 3)
    return whole + bytes(((1 << (count & 7)) - 1,)) if count & 7 else whole


class Columns(msgspec.Struct, frozen=True, gc=False):
    values: BinaryColumn
    keys: BinaryColumn | None
    times_buffer: memoryview | None
    headers: BinaryColumn | None

    @property
    def times(self) -> list[int] | None:
        return None if self.times_buffer is None else self.times_buffer.cast("q").tolist()


class BodyWriter:
    """Gathers the sections of a body. One that is too large is refused before its bytes are joined."""

    __slots__ = ("parts", "size")

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.size = 0

    def put(self, size: int, *buffers: Any) -> None:
        """One section, from buffers that have `size` bytes together."""
        self.parts += buffers
        if size & 7:
            self.parts.append(PADDING[size & 7])
        self.size += (size + 7) & ~7

    def put_values(self, values: Sequence[Any]) -> None:
        ends = array("i", accumulate(map(len, values), initial=0))
        self.put(4 * len(ends), ends.tobytes())
        self.parts += values
        self.put(ends[-1])

    def join(self) -> bytes:
        check_body_size(self.size)
        body = b"".join(self.parts)
        if len(body) != self.size:
            # len() of a buffer counts its items, and items need not be bytes.
            raise TypeError(f"their buffers have {len(body)} bytes, their lengths say {self.size}")
        return body


def check_body_size(size: int) -> None:
    if size > MAX_BODY_BYTES:
        raise MessageTooLarge(f"a body of {size} bytes is over the limit of {MAX_BODY_BYTES} for one frame")


def pack_columns(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    timestamps_us: Sequence[int] | None,
    headers: Sequence[RecordHeaders] | None,
) -> tuple[int, bytes]:
    """Lay the columns out; returns the flags and the body."""
    count = len(values)
    if count == 0:
        raise BadRequest("a frame needs at least one record", hint="Send at least one record.")
    try:
        if keys is None and timestamps_us is None and headers is None and None not in values:
            return 0, _pack_one(values[0]) if count == 1 else _pack_values(values)
        for name, column in (("keys", keys), ("timestamps_us", timestamps_us), ("headers", headers)):
            if column is not None and len(column) != count:
                hint = "Give one of each per record."
                raise BadRequest(f"{len(column)} {name} for {count} values", hint=hint)
        return _pack_all(values, keys, timestamps_us, headers)
    except TypeError as error:
        raise _not_bytes(error, values, keys) from error
    except OverflowError as error:
        raise MessageTooLarge(f"{count} records do not fit into one frame: {error}") from error


def _pack_one(value: Any) -> bytes:
    """A lone record is what a busy broker sees most; it needs none of the machinery for many."""
    size = len(value)
    body_size = (size + 15) & ~7
    check_body_size(body_size)
    body = b"".join((_ONE_VALUE.pack(0, size), value, PADDING[size & 7]))
    if len(body) != body_size:
        raise TypeError(f"its buffer has other than the {size} bytes that its length says")
    return body


def _pack_values(values: Sequence[Any]) -> bytes:
    writer = BodyWriter()
    writer.put_values(values)
    return writer.join()


def _pack_all(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    timestamps_us: Sequence[int] | None,
    headers: Sequence[RecordHeaders] | None,
) -> tuple[int, bytes]:
    writer = BodyWriter()
    flags = 0
    if None in values:
        flags = _NULL_VALUES
        _put_validity(writer, values)
        values = [b"" if value is None else value for value in values]
    writer.put_values(values)
    if keys is not None:
        flags |= _KEYS
        _put_validity(writer, keys)
        writer.put_values([b"" if key is None else key for key in keys])
    if timestamps_us is not None:
        flags |= _TIMES
        writer.put(8 * len(timestamps_us), _pack_times(timestamps_us))
    if headers is not None:
        flags |= _HEADERS
        writer.put_values([encode_record_headers(row) for row in headers])
    return flags, writer.join()


def _pack_times(timestamps_us: Sequence[int]) -> bytes:
    try:
        return array("q", timestamps_us).tobytes()
    except (TypeError, OverflowError) as error:
        hint = "Give whole microseconds since 1970 (UTC), as int."
        raise BadRequest(f"a timestamp is no 64-bit number of microseconds: {error}", hint=hint) from error


def _put_validity(writer: BodyWriter, values: Sequence[bytes | None]) -> None:
    bits = bytearray(full_bitmap(len(values)))
    if None in values:
        for row, value in enumerate(values):
            if value is None:
                bits[row >> 3] &= ~(1 << (row & 7))
    writer.put(len(bits), bits)


def _not_bytes(error: TypeError, values: Iterable[Any], keys: Iterable[Any] | None) -> BadRequest:
    """Say which record is to blame: the error itself names no row."""
    hint = "Encode text first, for example with .encode()."
    for what, column in (("value", values), ("key", keys or ())):
        for row, value in enumerate(column):
            if value is not None and not _is_bytes(value):
                kind = type(value).__name__
                return BadRequest(f"{what} {row} is of type {kind}, not bytes ({error})", hint=hint)
    return BadRequest(f"records must be bytes: {error}", hint=hint)


def _is_bytes(value: Any) -> bool:
    return isinstance(value, bytes | bytearray | memoryview) and memoryview(value).nbytes == len(value)


def encode_record_headers(headers: RecordHeaders) -> bytes:
    if not headers:
        return b""
    hint = "Give headers as a list of (name, value) pairs, the name a str and the value bytes."
    try:
        for name, value in headers:
            if not isinstance(name, str) or not isinstance(value, bytes):
                kinds = f"{type(name).__name__}, {type(value).__name__}"
                raise BadRequest(f"a header is a pair of str and bytes, not of {kinds}", hint=hint)
        return msgspec.msgpack.encode(list(headers))
    except (TypeError, ValueError) as error:
        raise BadRequest(f"record headers cannot be written: {error}", hint=hint) from error


_headers_decoder = msgspec.msgpack.Decoder(list[tuple[str, bytes]])


def decode_record_headers(row: bytes | None) -> RecordHeaders:
    if not row:
        return ()
    try:
        return _headers_decoder.decode(row)
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptFrame(f"record headers cannot be read: {error}") from error


class _Cursor:
    """Walks the sections of a body, refusing to leave it."""

    __slots__ = ("body", "numbers", "position", "size")

    def __init__(self, body: memoryview) -> None:
        self.body = body
        self.size = len(body)
        if self.size & 7:
            raise CorruptFrame(f"a body of {self.size} bytes is not a multiple of 8")
        self.numbers = body.cast("i")
        self.position = 0

    def take(self, size: int) -> memoryview:
        start = self.position
        end = start + size
        if size < 0 or end > self.size:
            raise CorruptFrame(f"a section of {size} bytes at {start} leaves the body of {self.size}")
        if end & 7:
            self.position = after = (end + 7) & ~7
            if self.body[end:after] != PADDING[end & 7]:
                raise CorruptFrame(f"the padding after byte {end} of the body is not zeros")
        else:
            self.position = end
        return self.body[start:end]

    def take_binary(self, count: int, validity: memoryview | None) -> BinaryColumn:
        last = (self.position >> 2) + count
        ends = self.take(4 * (count + 1))
        return BinaryColumn(ends, self.take(self.numbers[last]), validity)


def find_columns(flags: int, count: int, body: memoryview) -> Columns:
    """Where the columns of an unpacked body are. What is inside them has not been looked at."""
    cursor = _Cursor(body)
    bitmap = (count + 7) >> 3
    validity = cursor.take(bitmap) if flags & _NULL_VALUES else None
    values = cursor.take_binary(count, validity)
    keys = cursor.take_binary(count, cursor.take(bitmap)) if flags & _KEYS else None
    times = cursor.take(8 * count) if flags & _TIMES else None
    headers = cursor.take_binary(count, None) if flags & _HEADERS else None
    if cursor.position != cursor.size:
        raise CorruptFrame(f"body has {cursor.size} bytes, its sections {cursor.position}")
    return Columns(values, keys, times, headers)


def unpack_columns(flags: int, count: int, body: memoryview) -> Columns:
    """Find the columns in an unpacked body, and check all that a reader will rely on."""
    columns = find_columns(flags, count, body)
    check_ends(columns.values.ends)
    if columns.keys is not None:
        check_ends(columns.keys.ends)
    if columns.headers is not None:
        check_ends(columns.headers.ends)
    return columns


def check_ends(ends: memoryview) -> None:
    """Ends must start at 0 and never fall: Arrow and our slices both rely on it.

    A part at a time, since the numbers take many times the room as Python objects.
    """
    numbers = ends.cast("i")
    previous = 0
    for start in range(0, len(numbers), _ENDS_AT_ONCE):
        part = numbers[start : start + _ENDS_AT_ONCE].tolist()
        if part[0] < previous or part != sorted(part):
            raise CorruptFrame("the ends of a column fall")
        previous = part[-1]
    if numbers[0] != 0:
        raise CorruptFrame(f"the ends of a column start at {numbers[0]}, not at 0")


def checked_ends(ends: memoryview) -> list[int]:
    """The same check, for few ends, and the ends themselves."""
    numbers = ends.cast("i").tolist()
    if numbers[0] != 0 or numbers != sorted(numbers):
        raise CorruptFrame("the ends of a column do not ascend from 0")
    return numbers


def value_column_fits(flags: int, count: int, body: memoryview) -> bool:
    """Whether the first column lies within the body: a broker's quick look at what it need not unpack."""
    first = (((count + 7) >> 3) + 7) & ~7 if flags & _NULL_VALUES else 0
    last = first + 4 * count
    if last + 4 > len(body):
        return False
    return int.from_bytes(body[last : last + 4], "little") <= len(body) - ((last + 11) & ~7)
