"""The side file of a segment: sparse index and checkpoints, so that opening a segment is no scan of it.

It is a sequence of blocks, each written and synced after the log it speaks of was synced:

    magic "ISTC"  size u32  crc u32 (CRC-32C of the payload)  payload: msgpack `Checkpoint`

A checkpoint claims: the log up to `position` was durable before this block was written; it ends at
`end_offset`; its last append time and producers are these; and here are the index entries since the
previous block. The claims of all intact blocks from the start, read in order, are true after any crash. A
torn or missing block costs time, never records: recovery scans the log from the last intact one.

The side file holds nothing that the log does not: without it, all of it is rebuilt.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

import msgspec

from ister.frame import crc32c
from ister.io.disk import File
from ister.wal.producers import ProducerRow, ProducerTable

INDEX_INTERVAL_BYTES = 64 * 1024
CHECKPOINT_INTERVAL_BYTES = 16 * 1024 * 1024
CHECKPOINT_WORTH_BYTES = 1024 * 1024
"""What a look around now and then finds worth a checkpoint, so that many slow logs open quickly too."""

_BLOCK = struct.Struct("<4sII")
_MAGIC = b"ISTC"


class IndexEntry(msgspec.Struct, array_like=True, frozen=True):
    """A frame's place: `base_offset` starts at byte `position`."""

    base_offset: int
    position: int
    append_time_us: int


class Checkpoint(msgspec.Struct, array_like=True, frozen=True):
    position: int
    end_offset: int
    last_append_time_us: int
    producers: list[ProducerRow]
    entries: list[IndexEntry]


class SparseIndex:
    """Where some of the frames are: one for each 64 KiB of log, ascending."""

    def __init__(self) -> None:
        self._offsets = array("Q")
        self._positions = array("Q")
        self._times = array("q")
        self._unsaved = 0

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, base_offset: int, position: int, append_time_us: int) -> None:
        """Tell of a frame; kept only if the last one kept is far enough behind."""
        if self._positions and position - self._positions[-1] < INDEX_INTERVAL_BYTES:
            return
        self._offsets.append(base_offset)
        self._positions.append(position)
        self._times.append(append_time_us)

    def load(self, entries: list[IndexEntry]) -> None:
        """Take entries that a checkpoint has kept."""
        for entry in entries:
            self._offsets.append(entry.base_offset)
            self._positions.append(entry.position)
            self._times.append(entry.append_time_us)
        self._unsaved = len(self._offsets)

    def unsaved_below(self, position: int) -> list[IndexEntry]:
        end = bisect_left(self._positions, position)
        return [
            IndexEntry(self._offsets[i], self._positions[i], self._times[i])
            for i in range(self._unsaved, end)
        ]

    def mark_saved(self, count: int) -> None:
        self._unsaved += count

    def position_for(self, offset: int) -> int:
        """A frame's position at or before the frame that holds `offset`."""
        place = bisect_right(self._offsets, offset) - 1
        return self._positions[place] if place >= 0 else 0

    def position_behind(self, offset: int) -> int | None:
        """The first known frame start whose frame has no record before `offset`; None if none is known."""
        place = bisect_left(self._offsets, offset)
        return self._positions[place] if place < len(self._positions) else None

    def position_for_time(self, time_us: int) -> int:
        """A frame's position at or before the first frame appended at or after `time_us`."""
        place = bisect_left(self._times, time_us) - 1
        return self._positions[place] if place >= 0 else 0

    def offset_at(self, position: int) -> int | None:
        """The offset of the frame that starts there, if it is one of those that are known."""
        place = bisect_left(self._positions, position)
        is_known = place < len(self._positions) and self._positions[place] == position
        return self._offsets[place] if is_known else None

    def offset_behind(self, position: int) -> int | None:
        """The offset of the first frame known that starts behind `position`; None if none is known."""
        place = bisect_right(self._positions, position)
        return self._offsets[place] if place < len(self._positions) else None

    def place_behind(self, position: int) -> int | None:
        """The first known frame start behind `position`; None if none is known."""
        place = bisect_right(self._positions, position)
        return self._positions[place] if place < len(self._positions) else None

    def last_place_up_to(self, position: int) -> tuple[int, int]:
        """The last known frame start at or before `position`, and its offset; 0 and 0 if none is known."""
        place = bisect_right(self._positions, position) - 1
        return (self._positions[place], self._offsets[place]) if place >= 0 else (0, 0)


def checkpoint_block(
    index: SparseIndex, producers: ProducerTable, position: int, end_offset: int, last_append_time_us: int
) -> bytes:
    """A block that tells of the log up to here, and of the index entries that no block has told of yet."""
    entries = index.unsaved_below(position)
    index.mark_saved(len(entries))
    return encode_block(Checkpoint(position, end_offset, last_append_time_us, producers.rows(), entries))


def write_block(file: File, position: int, block: bytes) -> int:
    """Add a block where the intact ones end, durably; returns where the next one goes."""
    file.truncate(position)
    file.write([block], position)
    file.sync()
    return position + len(block)


def encode_block(checkpoint: Checkpoint) -> bytes:
    payload = msgspec.msgpack.encode(checkpoint)
    return _BLOCK.pack(_MAGIC, len(payload), crc32c(payload)) + payload


class Block(NamedTuple):
    checkpoint: Checkpoint
    end: int
    """Where the next block begins."""


def read_blocks(file: File) -> list[Block]:
    """Every intact checkpoint from the start."""
    data = file.read(file.size(), 0)
    found: list[Block] = []
    position = 0
    while len(data) - position >= _BLOCK.size:
        magic, size, crc = _BLOCK.unpack_from(data, position)
        payload = memoryview(data)[position + _BLOCK.size : position + _BLOCK.size + size]
        if magic != _MAGIC or len(payload) != size or crc32c(payload) != crc:
            break
        try:
            checkpoint = msgspec.msgpack.decode(payload, type=Checkpoint)
        except (msgspec.DecodeError, ValueError):
            break
        position += _BLOCK.size + size
        found.append(Block(checkpoint, position))
    return found
