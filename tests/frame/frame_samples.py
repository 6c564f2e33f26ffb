"""What the frame's tests share: batches of every shape, and frames whose checksums hold over any bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import product
from typing import Any

from hypothesis import strategies as st

from ister.columns import Codec, Flags
from ister.frame import Frame, Record, crc32c, decode, encode, stamp

ALL_FLAGS = [int(Flags.NULL_VALUES) * n + int(Flags.KEYS) * k + int(Flags.TIMES) * t + int(Flags.HEADERS) * h
             for n, k, t, h in product((0, 1), repeat=4)]  # fmt: skip
ALL_SHAPES = list(product(ALL_FLAGS, Codec))

BASE_OFFSET = 1_000_000_007
SEGMENT = 42
APPEND_TIME_US = 1_700_000_000_000_000

_HEADER = struct.Struct("<4sBBBBIIQQIQQqI")
_values = st.binary(max_size=40)
_times = st.integers(-(1 << 62), (1 << 62))
_row_headers = st.lists(st.tuples(st.text(max_size=6), st.binary(max_size=6)), max_size=3)


@dataclass(frozen=True)
class Batch:
    """Records as a producer hands them in."""

    values: list[bytes | None]
    keys: list[bytes | None] | None
    timestamps_us: list[int] | None
    headers: list[list[tuple[str, bytes]]] | None

    def encode(self, codec: Codec = Codec.NONE, **fields: int) -> bytes:
        return encode(
            self.values,
            keys=self.keys,
            timestamps_us=self.timestamps_us,
            headers=self.headers,
            codec=codec,
            **fields,
        )

    def records(self) -> list[Record]:
        """What a reader must get back once the leader has stamped the frame."""
        return [
            Record(
                BASE_OFFSET + row,
                self.timestamps_us[row] if self.timestamps_us else APPEND_TIME_US,
                self.keys[row] if self.keys else None,
                value,
                (self.headers[row] or ()) if self.headers else (),
            )
            for row, value in enumerate(self.values)
        ]


@st.composite
def batches(draw: st.DrawFn, flags: int, max_count: int = 20) -> Batch:
    """Batches whose frame has exactly these flags."""
    count = draw(st.integers(1, max_count))

    def rows(strategy: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(strategy, min_size=count, max_size=count))

    values: list[bytes | None] = rows(_values)
    if flags & Flags.NULL_VALUES:
        for row in draw(st.sets(st.integers(0, count - 1), min_size=1)):
            values[row] = None
    return Batch(
        values,
        rows(st.none() | _values) if flags & Flags.KEYS else None,
        rows(_times) if flags & Flags.TIMES else None,
        rows(_row_headers) if flags & Flags.HEADERS else None,
    )


def sample(flags: int, count: int = 5) -> Batch:
    """One plain batch with these flags, the same every time."""
    values: list[bytes | None] = [b"value-%d" % row * (row + 1) for row in range(count)]
    if flags & Flags.NULL_VALUES:
        values[count // 2] = None
    return Batch(
        values,
        [None if row == 1 else b"key-%d" % row for row in range(count)] if flags & Flags.KEYS else None,
        [1_600_000_000_000_000 + row for row in range(count)] if flags & Flags.TIMES else None,
        [[("name", b"%d" % row)] * (row % 3) for row in range(count)] if flags & Flags.HEADERS else None,
    )


def stamped(data: bytes, base_offset: int = BASE_OFFSET) -> Frame:
    """The frame as a reader gets it from a leader."""
    received = bytearray(data)
    stamp(received, base_offset, SEGMENT, APPEND_TIME_US)
    return whole(bytes(received))


def whole(data: bytes) -> Frame:
    frame = decode(data)
    assert isinstance(frame, Frame), frame
    return frame


def forge(body: bytes, *, flags: int = 0, count: int = 1, codec: int = 0, encoding: int = 0) -> bytes:
    """A frame with any body at all and checksums that hold: what a broken producer could send."""
    first = struct.pack("<4sBBBBIIQQ", b"ISTF", 1, flags, codec, encoding, len(body), count, 0, 0)
    head = first + struct.pack("<IQQq", crc32c(body, crc32c(first)), 0, 0, 0)
    return head + struct.pack("<I", crc32c(head)) + body


def fix_header_crc(data: bytearray) -> None:
    struct.pack_into("<I", data, 60, crc32c(bytes(data[:60])))
