"""Writes frames-v1.bin: a few frames of every kind, as version 1 of the format has them.

Run once when the format was made. Run again only for a new version, into a new file: frames that were
written once must stay readable, and `test_frame_golden.py` holds today's code to that.

    python tests/data/make_frames.py
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

from ister.columns import Codec
from ister.frame import encode, stamp

GOLDEN = Path(__file__).parent / "frames-v1.bin"
FIRST_OFFSET = 9_000_000_000
FIRST_TIME_US = 1_700_000_000_000_000
SEGMENT = 77

Row = tuple[bytes | None, bytes | None, int | None, list[tuple[str, bytes]]]


def rows_of(number: int, nulls: bool, keys: bool, times: bool, headers: bool) -> list[Row]:
    """The records of one frame: (value, key, event time, headers)."""
    return [
        (
            None if nulls and row % 3 == 1 else b"value %d of frame %d;" % (row, number) * row,
            b"key-%d" % row if keys and row % 4 != 2 else None,
            1_600_000_000_000_000 - row * 1_000_003 if times else None,
            [(f"näme-{n}", bytes(range(n * row))) for n in range(row % 3)] if headers else [],
        )
        for row in range(1 + number % 9)
    ]


def all_kinds() -> list[tuple[Codec, list[Row], tuple[bool, bool, bool, bool]]]:
    kinds = product(Codec, product((False, True), repeat=4))
    return [(codec, rows_of(number, *shape), shape) for number, (codec, shape) in enumerate(kinds, start=1)]


def make() -> bytes:
    made = bytearray()
    offset = FIRST_OFFSET
    for number, (codec, rows, (_, keys, times, headers)) in enumerate(all_kinds(), start=1):
        frame = bytearray(
            encode(
                [row[0] for row in rows],
                keys=[row[1] for row in rows] if keys else None,
                timestamps_us=[row[2] or 0 for row in rows] if times else None,
                headers=[row[3] for row in rows] if headers else None,
                codec=codec,
                producer_id=number,
                sequence=offset,
            )
        )
        stamp(frame, offset, SEGMENT, FIRST_TIME_US + number)
        made += frame
        offset += len(rows)
    return bytes(made)


if __name__ == "__main__":
    GOLDEN.write_bytes(make())
