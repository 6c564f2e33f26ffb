"""Frames written by the first version of the format are read the same for ever.

The file is made by tests/data/make_frames.py, and is not made again when the code changes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ister.arrow import to_record_batch
from ister.columns import Codec
from ister.frame import Record, frames_in

DATA = Path(__file__).parent.parent / "data"
sys.path.insert(0, str(DATA))

from make_frames import FIRST_OFFSET, FIRST_TIME_US, GOLDEN, SEGMENT, all_kinds, make  # noqa: E402


def test_every_kind_of_frame_that_was_ever_written_is_read_as_it_was_meant() -> None:
    frames = frames_in(GOLDEN.read_bytes())
    assert len(frames) == len(all_kinds()) == 48
    offset = FIRST_OFFSET
    for number, (frame, (codec, rows, _)) in enumerate(zip(frames, all_kinds(), strict=True), start=1):
        header = frame.header
        assert (header.codec, header.count, header.producer_id) == (codec, len(rows), number)
        assert (header.base_offset, header.sequence, header.segment) == (offset, offset, SEGMENT)
        assert header.append_time_us == FIRST_TIME_US + number
        expected = [
            Record(offset + row, time or header.append_time_us, key, value, headers or ())
            for row, (value, key, time, headers) in enumerate(rows)
        ]
        assert frame.records() == expected
        offset += len(rows)


def test_the_whole_file_is_one_arrow_batch() -> None:
    batch = to_record_batch(frames_in(GOLDEN.read_bytes()))
    rows = [row for _, rows, _ in all_kinds() for row in rows]
    assert batch.column("value").to_pylist() == [row[0] for row in rows]
    assert batch.column("key").to_pylist() == [row[1] for row in rows]
    pairs = [
        [(pair["key"], pair["value"]) for pair in row or []] for row in batch.column("headers").to_pylist()
    ]
    assert pairs == [row[3] for row in rows]


def test_frames_that_are_not_compressed_are_written_as_they_were() -> None:
    """Compressors may choose other bytes from release to release; the layout may not."""
    stored, made = frames_in(GOLDEN.read_bytes()), frames_in(make())
    for old, new in zip(stored, made, strict=True):
        if old.header.codec == Codec.NONE:
            assert bytes(old.data) == bytes(new.data)
        else:
            assert bytes(old.unpacked_body()) == bytes(new.unpacked_body())
