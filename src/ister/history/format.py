"""What an object of the history is made of: a segment's frames, end to end, and a footer.

    frames            as they are in the log, byte for byte
    footer            msgpack `Footer`: what this is, and where to find an offset or a time in it
    trailer, 24 bytes, little-endian
         0  footer_size u32  footer_crc u32 (CRC-32C of the footer)
         8  object_crc u32 (CRC-32C of all that is before this field)
        12  version u16  reserved u16
        16  trailer_crc u32 (CRC-32C of bytes 0..16 of the trailer)
        20  magic "ISTH"

So a reader asks for the last bytes, which tell it everything else, and then for the ranges that it needs. Who
reads all of it, in order, knows at its end that nothing is missing and no bit has changed.

Fault model: any bit of what is read may be wrong, and any part may be missing. Reading says what is wrong, as
`CorruptSegment`; it never takes another segment's object for this one's (I3), and never takes more memory for
a footer than `MAX_FOOTER_BYTES`.
"""

from __future__ import annotations

import struct
from array import array
from typing import Final, NamedTuple

import msgspec

from ister.errors import CorruptSegment, invariant
from ister.frame import HEADER_SIZE, Bytes, FrameHeader, crc32c
from ister.wal.checking import check_run
from ister.wal.side_file import INDEX_INTERVAL_BYTES, IndexEntry, SparseIndex

MAGIC: Final = b"ISTH"
VERSION: Final = 1
MAX_PLACES: Final = 1 << 16
"""In an object's index. A segment so large that one each 64 KiB were more has them further apart."""
MAX_FOOTER_BYTES: Final = 4 << 20

_TRAILER = struct.Struct("<IIIHHI4s")
TRAILER_SIZE: Final = _TRAILER.size
_CRC_AT = 8
_TRAILER_CRC_AT = 16


class Footer(msgspec.Struct, array_like=True, frozen=True):
    """Grows at the end."""

    cluster_id: str
    topic: str
    topic_uid: int
    segment: int
    segment_uid: int
    start_offset: int
    end_offset: int
    """Behind the last record."""
    frames: int
    frames_size: int
    """Where the frames end and this begins."""
    first_append_time_us: int
    last_append_time_us: int
    offsets: bytes
    """Of some of the frames, ascending: u64 each. So are:"""
    positions: bytes
    times: bytes
    """Their append times, i64 each."""

    def index(self) -> SparseIndex:
        found = SparseIndex()
        columns = array("Q", self.offsets), array("Q", self.positions), array("q", self.times)
        found.load([IndexEntry(*entry) for entry in zip(*columns, strict=True)])
        return found


class Exported(NamedTuple):
    """The sealed segment that an object is of, as the metadata has it: committed records only (E1)."""

    cluster_id: str
    topic: str
    topic_uid: int
    segment: int
    segment_uid: int
    start_offset: int
    end_offset: int
    frames_size: int


class Trailer(NamedTuple):
    footer_size: int
    footer_crc: int
    object_crc: int


def index_interval(frames_size: int) -> int:
    """How far the places of an object's index are apart, at least."""
    return max(INDEX_INTERVAL_BYTES, frames_size // MAX_PLACES + 1)


class FramesOf:
    """Takes a segment's frames, in order, and knows at their end what comes behind them.

    The same for who makes an object and for who verifies one: what was taken is whole, intact, this segment's
    and without a gap, or `CorruptSegment` says why not.
    """

    def __init__(self, segment: Exported, where: str) -> None:
        """`where` is for people: what is being read."""
        self.segment = segment
        self.offset = segment.start_offset
        self.position = 0
        self.frames = 0
        self.crc = 0
        self.missing = 0
        """How many bytes more the next frame needs, at least, where nothing was taken."""
        self._where = where
        self._interval = index_interval(segment.frames_size)
        self._index_at = 0
        self._first_us = self._last_us = 0
        self._offsets, self._positions, self._times = array("Q"), array("Q"), array("q")

    def take(self, data: Bytes) -> int:
        """The whole frames that this begins with; how many bytes they are. Blocking."""
        run = check_run(data, self.segment.segment_uid, self.offset, self.segment.end_offset)
        if run.wrong:
            self._take_headers(run.headers)
            raise self.damaged(run.wrong)
        self._take_headers(run.headers)
        self.missing = 0 if run.headers else run.missing or HEADER_SIZE
        self.crc = crc32c(memoryview(data)[: run.size], self.crc)
        return run.size

    def _take_headers(self, headers: list[FrameHeader]) -> None:
        for header in headers:
            if self.position >= self._index_at:
                self._offsets.append(header.base_offset)
                self._positions.append(self.position)
                self._times.append(header.append_time_us)
                self._index_at = self.position + self._interval
            if not self.frames:
                self._first_us = header.append_time_us
            self._last_us = header.append_time_us
            self.frames += 1
            self.position += header.size
            self.offset = header.end_offset

    def damaged(self, reason: str) -> CorruptSegment:
        return CorruptSegment(
            f"{self._where} is damaged at byte {self.position}, offset {self.offset}: {reason}",
            hint="It is made anew from another copy of the segment, if there is one.",
        )

    def footer(self) -> Footer:
        """All frames were taken; `CorruptSegment` if these were not all."""
        segment = self.segment
        if self.offset != segment.end_offset:
            raise self.damaged(f"it ends at offset {self.offset}, the segment at {segment.end_offset}")
        if self.position != segment.frames_size:
            raise self.damaged(f"its frames are {self.position} bytes, the segment's {segment.frames_size}")
        return Footer(
            segment.cluster_id,
            segment.topic,
            segment.topic_uid,
            segment.segment,
            segment.segment_uid,
            segment.start_offset,
            segment.end_offset,
            self.frames,
            self.position,
            self._first_us,
            self._last_us,
            self._offsets.tobytes(),
            self._positions.tobytes(),
            self._times.tobytes(),
        )

    def ending(self) -> bytes:
        """Footer and trailer of the object."""
        footer = msgspec.msgpack.encode(self.footer())
        invariant(len(footer) <= MAX_FOOTER_BYTES, f"the footer has {len(footer)} bytes")
        return footer + self._trailer(footer)

    def _trailer(self, footer: bytes) -> bytes:
        head = struct.pack("<II", len(footer), crc32c(footer))
        crc = crc32c(head, crc32c(footer, self.crc))
        checked = head + struct.pack("<IHH", crc, VERSION, 0)
        return checked + struct.pack("<I4s", crc32c(checked), MAGIC)


class WholeObject:
    """Takes the bytes of an object, in order, and knows at their end whether they are those that were
    published, verified frame by frame: each bit of them is under the checksum that its descriptor has, or
    under the trailer's own."""

    def __init__(self, size: int, crc: int, where: str) -> None:
        self._left = size
        self._expected = crc
        self._where = where
        self._crc = 0
        self._tail = b""

    def take(self, data: Bytes) -> None:
        """Blocking."""
        checked = max(0, min(len(data), self._left - TRAILER_SIZE + _CRC_AT))
        self._crc = crc32c(memoryview(data)[:checked], self._crc)
        self._left -= len(data)
        if self._left < TRAILER_SIZE:
            self._tail = (self._tail + bytes(memoryview(data)[-TRAILER_SIZE:]))[-TRAILER_SIZE:]

    def end(self) -> None:
        """All was taken; `CorruptSegment` if it was not all, or is not what it should be."""
        if self._left:
            raise CorruptSegment(f"{self._where} ends {self._left} bytes early")
        told = read_trailer(self._tail, self._where).object_crc
        if not self._crc == told == self._expected:
            raise CorruptSegment(
                f"{self._where} is damaged: its checksum is {self._crc:08x}, by its end {told:08x}, and by "
                f"its descriptor {self._expected:08x}"
            )


def object_crc(ending: bytes) -> int:
    """Of the object that ends like this."""
    found: int = _TRAILER.unpack(ending[-TRAILER_SIZE:])[2]
    return found


def whole_crc(frames_crc: int, ending: bytes) -> int:
    """The checksum of an object whose frames have that one: what its trailer should say."""
    return crc32c(memoryview(ending)[: len(ending) - TRAILER_SIZE + _CRC_AT], frames_crc)


def read_trailer(data: bytes, where: str) -> Trailer:
    """From the last bytes of an object."""
    if len(data) < TRAILER_SIZE:
        raise CorruptSegment(f"{where} has {len(data)} bytes: it is no object of the history")
    tail = data[-TRAILER_SIZE:]
    footer_size, footer_crc, crc, version, _, trailer_crc, magic = _TRAILER.unpack(tail)
    if magic != MAGIC:
        raise CorruptSegment(f"{where} ends with {magic!r}: it is no object of the history, or is cut short")
    if trailer_crc != crc32c(tail[:_TRAILER_CRC_AT]):
        raise CorruptSegment(f"{where} is damaged: the checksum of its last {TRAILER_SIZE} bytes is wrong")
    if version != VERSION:
        raise CorruptSegment(
            f"{where} is of version {version}, and this build reads version {VERSION}",
            hint="Upgrade this node.",
        )
    if footer_size > MAX_FOOTER_BYTES:
        raise CorruptSegment(f"{where} says that its footer has {footer_size} bytes, over {MAX_FOOTER_BYTES}")
    return Trailer(footer_size, footer_crc, crc)


def read_footer(data: bytes, size: int, where: str) -> Footer:
    """From the last bytes of an object of this size: as many as its trailer says, or more."""
    trailer = read_trailer(data, where)
    payload = data[-TRAILER_SIZE - trailer.footer_size : -TRAILER_SIZE]
    if len(payload) != trailer.footer_size or crc32c(payload) != trailer.footer_crc:
        raise CorruptSegment(f"{where} is damaged: the checksum of its footer is wrong")
    try:
        footer = msgspec.msgpack.decode(payload, type=Footer)
        footer.index()
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptSegment(f"{where} is damaged: its footer cannot be read: {error}") from error
    if footer.frames_size + trailer.footer_size + TRAILER_SIZE != size:
        raise CorruptSegment(
            f"{where} has {size} bytes, and {footer.frames_size} of frames with {trailer.footer_size} of "
            f"footer are not that many"
        )
    return footer
