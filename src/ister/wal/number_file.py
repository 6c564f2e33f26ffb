"""A number in a small file beside a log: a promise, or a doubt, that must outlive the process.

    magic, 4 bytes   number u64   crc u32 (CRC-32C of what is before it)

Fault model: power may be lost at any step of writing. The file is written aside, synced, renamed, and its
directory synced, so it has the old number or the new one, and the new one for good once `write_number` has
returned. A file that is there and cannot be read is `CorruptSegment`: what it said is not known, which is not
the same as nothing.
"""

from __future__ import annotations

import struct

from ister.errors import CorruptSegment
from ister.frame import crc32c
from ister.io.disk import Disk, parent, read_whole, write_whole

_LAYOUT = struct.Struct("<4sQI")
_CHECKED_BYTES = 12


def write_number(disk: Disk, path: str, magic: bytes, number: int) -> None:
    """Durable when it returns. The directory is made if it is not there."""
    disk.make_directory(parent(path))
    data = _LAYOUT.pack(magic, number, 0)[:_CHECKED_BYTES]
    write_whole(disk, path, data + crc32c(data).to_bytes(4, "little"))


def read_number(disk: Disk, path: str, magic: bytes, *, hint: str) -> int | None:
    """The number, or None if there is no such file."""
    try:
        data = read_whole(disk, path)
    except FileNotFoundError:
        return None
    if len(data) == _LAYOUT.size:
        found, number, crc = _LAYOUT.unpack(data)
        if found == magic and crc == crc32c(data[:_CHECKED_BYTES]):
            return int(number)
    raise CorruptSegment(f"{disk.location}/{path} is damaged: its {len(data)} bytes are no number", hint=hint)
