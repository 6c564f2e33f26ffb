"""The frame: a batch of records, the atom of everything.

One append, one checksum, one unit of storage, replication, export and fetch. The same bytes are on the
wire, in the log, between replicas, in history and under Spark.

    header, 64 bytes, little-endian                                            set by
     0  magic "ISTF"  version u8  flags u8  codec u8  encoding u8              producer
     8  body_size u32  count u32                                               producer
    16  producer_id u64  sequence u64 (of the first record)                    producer
    32  body_crc u32: CRC-32C over bytes 0..32 and the body (A7)               producer
    36  base_offset u64  segment u64 (its uid *)  append_time_us i64           leader
    60  header_crc u32: CRC-32C over bytes 0..60                               each hop
    64  body

* In the low 40 bits; above them what recovery needs to tell a torn tail from damage (`ister.wal.opening`).

The body is columns (`ister.columns`), compressed or not. It and its checksum are made once, by the
producer, and never rewritten: what a consumer checks is what the producer computed.

Decoding has three outcomes, as values: a `Frame`, `Incomplete`, `Corrupt`. It never raises on bad
bytes, never reads past what it was given, and never allocates more than the limit it was told.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from enum import IntEnum
from itertools import repeat
from typing import Final, NamedTuple

import msgspec
from fastcrc import crc32

from ister.columns import MAX_BODY_BYTES as MAX_BODY_BYTES
from ister.columns import (
    Codec,
    Columns,
    Flags,
    RecordHeaders,
    check_body_size,
    decode_record_headers,
    pack_columns,
    unpack_columns,
    value_column_fits,
)
from ister.compression import compress, decompress, unpacked_size
from ister.errors import BadRequest, CorruptFrame, invariant

crc32c = crc32.iscsi

Bytes = bytes | bytearray | memoryview

MAGIC: Final = b"ISTF"
VERSION: Final = 1
HEADER_SIZE: Final = 64
DEFAULT_LIMIT: Final = 64 * 1024 * 1024
FRAME_LIMIT: Final = 1 << 31
"""For frames that were within somebody's limit when they were made: they are in a log, or came from one."""

_HEADER = struct.Struct("<4sBBBBIIQQIQQqI")
_PRODUCER_PART = struct.Struct("<4sBBBBIIQQ")
_BODY_CRC_AND_LEADER_PART = struct.Struct("<IQQq")
_LEADER_PART = struct.Struct("<QQq")
_COUNT_AT = 12
_LEADER_AT = 36
_CRC = struct.Struct("<I")
_CRC_AT = 60
_LONE_ENDS = struct.Struct("<ii")
_WORD = struct.Struct("<Q")

invariant(_HEADER.size == HEADER_SIZE, "the frame header is 64 bytes")
invariant(sys.byteorder == "little", "frames are little-endian and so must the machine be")


class Encoding(IntEnum):
    RECORDS = 0
    ARROW = 1  # reserved for typed topics


_MAX_COUNT: Final = (1 << 31) - 1
# Every offset in a frame must fit the signed 64 bits that Arrow and Spark have for it.
_LAST_BASE_OFFSET: Final = (1 << 63) - 1 - _MAX_COUNT

# Plain numbers: an attribute of an enum costs as much as a checksum of a small frame.
_UNKNOWN_FLAGS: Final = ~int(Flags.KEYS | Flags.TIMES | Flags.HEADERS | Flags.NULL_VALUES)
_NOT_PLAIN: Final = ~int(Flags.KEYS | Flags.TIMES | Flags.HEADERS)
_UNPACKED: Final = int(Codec.NONE)
_LAST_CODEC: Final = int(Codec.ZSTD)
_RECORDS: Final = int(Encoding.RECORDS)
_LAST_ENCODING: Final = int(Encoding.ARROW)


_new_tuple = tuple.__new__  # skips the Python function that a NamedTuple is otherwise made by


class FrameHeader(NamedTuple):
    """The header's fields, in wire order."""

    magic: bytes
    version: int
    flags: int
    codec: int
    encoding: int
    body_size: int
    count: int  # type: ignore[assignment]
    producer_id: int
    sequence: int
    body_crc: int
    base_offset: int
    segment: int
    append_time_us: int
    header_crc: int

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.count

    @property
    def size(self) -> int:
        return HEADER_SIZE + self.body_size


class Incomplete(NamedTuple):
    """The bytes so far could be the start of a frame; at least `missing` more are needed."""

    missing: int


class Corrupt(NamedTuple):
    """The bytes are no frame. `reason` says which check failed, with the values."""

    reason: str


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record as plain Python.

    A struct, not a tuple: it is made in less than half the time, and gives the garbage collector nothing
    to walk through when a reader holds a million of them.
    """

    offset: int
    timestamp_us: int
    """The event time if the producer gave one, else the time of the append."""
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders


class Frame:
    """A frame whose header and checksums have been verified. Holds on to the bytes it came from."""

    __slots__ = ("buffer", "header", "position")

    def __init__(self, header: FrameHeader, buffer: Bytes, position: int) -> None:
        self.header = header
        self.buffer = buffer
        self.position = position

    @property
    def data(self) -> memoryview:
        """Header and body, as they stand."""
        return memoryview(self.buffer)[self.position : self.position + self.header.size]

    @property
    def body(self) -> memoryview:
        start = self.position + HEADER_SIZE
        return memoryview(self.buffer)[start : start + self.header.body_size]

    def columns(self, limit: int = DEFAULT_LIMIT) -> Columns:
        """The body's columns, decompressed and checked; raises `CorruptFrame`."""
        header = self.header
        return unpack_columns(header.flags, header.count, self.unpacked_body(limit))

    def unpacked_body(self, limit: int = DEFAULT_LIMIT) -> memoryview:
        """The body before compression, in place where there was none; raises `CorruptFrame`."""
        header = self.header
        if header.encoding != _RECORDS:
            raise CorruptFrame(f"frame at offset {header.base_offset} has encoding {header.encoding}")
        body = self.body
        return body if header.codec == _UNPACKED else decompress(header.codec, body, limit)

    @property
    def unpacked_size(self) -> int:
        """How many bytes its body has before compression, by what it says of itself."""
        header = self.header
        return header.body_size if header.codec == _UNPACKED else unpacked_size(self.body, FRAME_LIMIT)

    def records(self, limit: int = DEFAULT_LIMIT) -> list[Record]:
        header = self.header
        base = header.base_offset
        value = lone_value(self)
        if value is not None:
            return [Record(base, header.append_time_us, None, bytes(value), ())]
        columns = self.columns(limit)
        times = columns.times
        return list(
            map(
                Record,
                range(base, base + header.count),
                repeat(header.append_time_us) if times is None else times,
                columns.keys.to_list() if columns.keys else repeat(None),
                columns.values.to_list(),
                map(decode_record_headers, columns.headers.to_list()) if columns.headers else repeat(()),
            )
        )


def lone_value(frame: Frame) -> memoryview | None:
    """The value of a frame that is one plain record and nothing else; None for any other frame.

    Frames of one record are what a topic of impatient producers is made of, and finding columns in each
    costs several times this.
    """
    header = frame.header
    if header.count != 1 or header.flags or header.codec or header.encoding:
        return None
    start = frame.position + HEADER_SIZE
    first, size = _LONE_ENDS.unpack_from(frame.buffer, start)
    if first or size < 0 or header.body_size != (size + 15) & ~7:
        return None
    if size & 7:
        (last_word,) = _WORD.unpack_from(frame.buffer, start + header.body_size - 8)
        if last_word >> 8 * (size & 7):
            return None  # padding that is not zeros: for those to refuse who look at all columns
    return memoryview(frame.buffer)[start + 8 : start + 8 + size]


def encode(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamps_us: Sequence[int] | None = None,
    headers: Sequence[RecordHeaders] | None = None,
    codec: Codec = Codec.NONE,
    producer_id: int = 0,
    sequence: int = 0,
) -> bytes:
    """Make a frame of these records, ready to send. The leader's fields are still zero."""
    flags, body = pack_columns(values, keys, timestamps_us, headers)
    return seal(flags, len(values), body, codec, producer_id, sequence)


def seal(flags: int, count: int, body: bytes, codec: Codec, producer_id: int, sequence: int) -> bytes:
    """Make a frame of a body that is laid out already: compress it, and put the header before it."""
    if codec != _UNPACKED:
        body = compress(codec, body)
        check_body_size(len(body))
    try:
        first = _PRODUCER_PART.pack(
            MAGIC, VERSION, flags, codec, _RECORDS, len(body), count, producer_id, sequence
        )
    except struct.error as error:
        raise BadRequest(
            f"producer {producer_id!r} at sequence {sequence!r}: {error}",
            hint="Both are whole numbers from 0 to 2**64 - 1.",
        ) from error
    head = first + _BODY_CRC_AND_LEADER_PART.pack(crc32c(body, crc32c(first)), 0, 0, 0)
    return b"".join((head, _CRC.pack(crc32c(head)), body))


def reidentified(frame: Frame, producer_id: int, sequence: int) -> bytes:
    """The same records under another producer and sequence, ready to send: the body is copied as it stands,
    under new checksums, since they cover whose it is (A7)."""
    header = frame.header
    first = _PRODUCER_PART.pack(*header[:7], producer_id, sequence)
    body = frame.body
    head = first + _BODY_CRC_AND_LEADER_PART.pack(crc32c(body, crc32c(first)), 0, 0, 0)
    return b"".join((head, _CRC.pack(crc32c(head)), body))


def stamp(frame: bytearray | memoryview, base_offset: int, segment: int, append_time_us: int) -> None:
    """Write the leader's fields into a frame that was received whole. The body is not touched."""
    _LEADER_PART.pack_into(frame, _LEADER_AT, base_offset, segment, append_time_us)
    _CRC.pack_into(frame, _CRC_AT, crc32c(memoryview(frame)[:_CRC_AT]))


def decode(buffer: Bytes, position: int = 0, *, limit: int = DEFAULT_LIMIT) -> Frame | Incomplete | Corrupt:
    """The frame that starts at `position`, if it is there in full and every checksum holds."""
    header = decode_header(buffer, position, limit=limit)
    if not isinstance(header, FrameHeader):
        return header
    missing = position + HEADER_SIZE + header.body_size - len(buffer)
    if missing > 0:
        return Incomplete(missing)
    if not body_is_intact(header, buffer, position):
        return Corrupt(f"body checksum does not match (frame of {header.count} records, {header.size} bytes)")
    return Frame(header, buffer, position)


def decode_header(
    buffer: Bytes, position: int = 0, *, limit: int = DEFAULT_LIMIT
) -> FrameHeader | Incomplete | Corrupt:
    """The header alone; its own checksum holds, the body's has not been looked at."""
    have = len(buffer) - position
    if have < HEADER_SIZE:
        start = bytes(buffer[position : position + 4])
        if not MAGIC.startswith(start):
            return Corrupt(f"no frame starts with {start!r}")
        return Incomplete(HEADER_SIZE - have)
    fields = _HEADER.unpack_from(buffer, position)
    magic, version, flags, codec, encoding, body_size, count, _, _, _, base_offset, _, _, header_crc = fields
    if magic != MAGIC:
        return Corrupt(f"no frame starts with {magic!r}")
    if header_crc != crc32c(memoryview(buffer)[position : position + _CRC_AT]):
        return Corrupt("header checksum does not match")
    if version != VERSION:
        return Corrupt(f"frame version {version}; this build reads version {VERSION}")
    if codec > _LAST_CODEC:
        return Corrupt(f"unknown codec {codec}")
    if encoding > _LAST_ENCODING:
        return Corrupt(f"unknown encoding {encoding}")
    if flags & _UNKNOWN_FLAGS:
        return Corrupt(f"unknown flags {flags:#x}")
    if HEADER_SIZE + body_size > limit:
        return Corrupt(f"frame of {HEADER_SIZE + body_size} bytes is over the limit of {limit}")
    if count == 0 or count > _MAX_COUNT:
        return Corrupt(f"impossible count {count}")
    if base_offset > _LAST_BASE_OFFSET:
        return Corrupt(f"impossible base offset {base_offset}")
    if body_size & 7:
        return Corrupt(f"body of {body_size} bytes is not a multiple of 8")
    if codec == _UNPACKED and body_size < 4 * (count + 1):
        return Corrupt(f"{count} records cannot be in a body of {body_size} bytes")
    return _new_tuple(FrameHeader, fields)


def base_and_count(frame: Bytes) -> tuple[int, int]:
    """Where a frame that is known to be good begins, and how many records it has."""
    return _WORD.unpack_from(frame, _LEADER_AT)[0], _CRC.unpack_from(frame, _COUNT_AT)[0]


def body_is_intact(header: FrameHeader, buffer: Bytes, position: int = 0) -> bool:
    view = memoryview(buffer)
    start = position + HEADER_SIZE
    crc = crc32c(view[start : start + header.body_size], crc32c(view[position : position + 32]))
    return crc == header.body_crc


def frames_in(buffer: Bytes, *, limit: int = DEFAULT_LIMIT) -> list[Frame]:
    """All frames of a buffer that holds whole frames and nothing else; raises `CorruptFrame`."""
    found: list[Frame] = []
    position = 0
    while position < len(buffer):
        frame = decode(buffer, position, limit=limit)
        if not isinstance(frame, Frame):
            what = frame.reason if isinstance(frame, Corrupt) else f"{frame.missing} bytes are missing"
            raise CorruptFrame(f"no frame at byte {position} of {len(buffer)}: {what}")
        found.append(frame)
        position += frame.header.size
    return found


def check_structure(
    header: FrameHeader, buffer: Bytes, position: int = 0, *, limit: int = DEFAULT_LIMIT
) -> None:
    """What a broker checks of a body that it need not unpack: that readers can take it.

    The values must lie within it; compressed, it must not say that it unpacks beyond the limit that
    readers have. Beyond that it is taken on its checksum; every reader checks the columns in full.
    """
    if header.encoding != _RECORDS:
        return
    start = position + HEADER_SIZE
    body = memoryview(buffer)[start : start + header.body_size]
    if header.codec != _UNPACKED:
        size = unpacked_size(body, limit)
        if size < 4 * (header.count + 1):
            raise CorruptFrame(f"{header.count} records cannot be in a body that unpacks to {size} bytes")
    elif not value_column_fits(header.flags, header.count, body):
        raise CorruptFrame(f"the values of {header.count} records leave a body of {header.body_size} bytes")


def admit(frame: bytearray | memoryview) -> FrameHeader:
    """The header of a frame that a broker may append: whole, intact, readable. Raises `CorruptFrame`.

    The same checks as `decode` and `check_structure`, in one pass for the plain case that comes a hundred
    thousand times a second; whatever does not pass it is looked at again by those two, for the reason.
    """
    if len(frame) >= HEADER_SIZE + 8:
        fields = _HEADER.unpack_from(frame)
        magic, version, flags, codec, encoding, body_size, count, _, _, body_crc, _, _, _, header_crc = fields
        view = memoryview(frame)
        first = crc32c(view[:32])
        values_at = HEADER_SIZE + 4 * count + 4
        if (
            magic == MAGIC
            and version == VERSION
            and codec == _UNPACKED
            and encoding == _RECORDS
            and not flags & _NOT_PLAIN
            and body_size + HEADER_SIZE == len(frame)
            and not body_size & 7
            and count > 0
            and values_at <= len(frame)
            and _CRC.unpack_from(frame, values_at - 4)[0] <= len(frame) - values_at
            and header_crc == crc32c(view[32:_CRC_AT], first)
            and body_crc == crc32c(view[HEADER_SIZE:], first)
        ):
            return _new_tuple(FrameHeader, fields)
    return _admit_slowly(frame)


def _admit_slowly(frame: bytearray | memoryview) -> FrameHeader:
    found = decode(frame, limit=max(len(frame), HEADER_SIZE))
    match found:
        case Incomplete(missing):
            raise CorruptFrame(f"{missing} bytes of the frame are missing")
        case Corrupt(reason):
            raise CorruptFrame(reason)
        case Frame(header=header):
            if header.size != len(frame):
                raise CorruptFrame(f"a frame of {header.size} bytes came in a payload of {len(frame)}")
            if header.encoding != _RECORDS:
                raise CorruptFrame(f"encoding {header.encoding} is reserved, and cannot be appended yet")
            check_structure(header, frame)
            return header
