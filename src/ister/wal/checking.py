"""A look at frames that come from a disk or from another node: how far they are as they were written.

Fault model: any bit may have changed since, or a frame of another place may have been written there. What
passes is whole, intact by both of its checksums, and follows the frame before it without a gap.

`check_frames` is done for every byte that is read from a disk to be served, so the plain case is one pass
with nothing made on the way: per frame less than half of what `decode` takes, and for large frames the time
of their checksums. `check_run` is for who takes frames into a log, or answers for one: it also looks whose
they are, and gives their headers.
"""

from __future__ import annotations

import struct
from itertools import product
from typing import Final, NamedTuple

from ister.columns import Codec, Flags
from ister.frame import (
    FRAME_LIMIT,
    HEADER_SIZE,
    MAGIC,
    VERSION,
    Bytes,
    Corrupt,
    Encoding,
    Frame,
    FrameHeader,
    Incomplete,
    crc32c,
    decode,
)
from ister.wal.marks import uid_of

_FIELDS = struct.Struct("<QII16xIQ16xI")
"""Start, body size, count, the body's checksum, base offset, the header's checksum."""
_START = struct.Struct("<4sBBBB")
_ALL_FLAGS: Final = sum(Flags)
_STARTS: Final = frozenset(
    int.from_bytes(_START.pack(MAGIC, VERSION, flags, codec, encoding), "little")
    for flags, codec, encoding in product(range(_ALL_FLAGS + 1), Codec, Encoding)
)
"""The first eight bytes of every header that this build can read, as numbers."""


def check_frames(data: Bytes, base_offset: int) -> tuple[int, int, str]:
    """How far these are good frames from `base_offset` on: the position and the offset where that ends, and
    what is wrong there; nothing, if it is the end of them all."""
    position, expected = 0, base_offset
    while True:
        position, expected = _skip_plain(data, position, expected)
        if position == len(data):
            return position, expected, ""
        found = decode(data, position, limit=FRAME_LIMIT)
        if isinstance(found, Corrupt):
            return position, expected, found.reason
        if isinstance(found, Incomplete):
            return position, expected, f"{found.missing} bytes of a frame are missing"
        if found.header.base_offset != expected:
            return position, expected, f"a frame at offset {found.header.base_offset} follows"
        position, expected = position + found.header.size, found.header.end_offset


def _skip_plain(data: Bytes, position: int, expected: int) -> tuple[int, int]:
    """Behind all that is good without a doubt; what stops it is for `decode` to judge."""
    view, last = memoryview(data), len(data) - HEADER_SIZE
    unpack, crc = _FIELDS.unpack_from, crc32c
    while position <= last:
        start, body_size, count, body_crc, base_offset, header_crc = unpack(view, position)
        body = position + HEADER_SIZE
        end = body + body_size
        first = crc(view[position : position + 32])
        if (
            start not in _STARTS
            or base_offset != expected
            or not 0 < 4 * count < body_size
            or body_size & 7
            or end > len(view)
            or header_crc != crc(view[position + 32 : position + 60], first)
            or body_crc != crc(view[body:end], first)
        ):
            break
        position, expected = end, base_offset + count
    return position, expected


class Run(NamedTuple):
    """Frames of one segment, each intact and right behind the one before it, and what comes then."""

    headers: list[FrameHeader]
    size: int
    """How many bytes they take."""
    end_offset: int
    missing: int = 0
    """At least so many bytes of the next frame are not there; 0 if the data ends with a frame."""
    wrong: str = ""
    """Why what comes next is not the next frame, whatever else comes; empty if the data ends before that."""

    @property
    def ends_because(self) -> str:
        """What is wrong, for who must have whole frames only; empty if these are all that was given."""
        return f"{self.missing} bytes of a frame are missing" if self.missing else self.wrong


def check_run(data: Bytes, uid: int, base_offset: int, limit_offset: int | None = None) -> Run:
    """The segment's frames from `base_offset` on that the data begins with, as far as the limit."""
    headers: list[FrameHeader] = []
    position, expected = 0, base_offset
    while position < len(data):
        found = next_frame(data, position, uid, expected)
        if isinstance(found, Incomplete):
            return Run(headers, position, expected, missing=found.missing)
        if isinstance(found, Corrupt):
            return Run(headers, position, expected, wrong=found.reason)
        end = found.end_offset
        if limit_offset is not None and end > limit_offset:
            return Run(headers, position, expected, wrong=f"a frame reaches to {end}, past {limit_offset}")
        headers.append(found)
        position, expected = position + found.size, end
    return Run(headers, position, expected)


def next_frame(data: Bytes, position: int, uid: int, offset: int) -> FrameHeader | Incomplete | Corrupt:
    """Of the frame there, if it is intact, of this segment, and begins with this offset."""
    found = decode(data, position, limit=FRAME_LIMIT)
    if not isinstance(found, Frame):
        return found
    header = found.header
    if uid_of(header) != uid:
        return Corrupt(f"a frame of segment {uid_of(header)}, and not of {uid}")
    if header.base_offset != offset:
        return Corrupt(f"a frame at offset {header.base_offset}, {offset} is next")
    return header
