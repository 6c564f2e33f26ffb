"""The raw limit: what this disk does for a loop that does nothing else.

Each cycle is one write at the end of the file and one fdatasync, like a broker's group commit; nothing is
checked or acknowledged. Space is reserved ahead, as brokers do, because that is faster: a limit that can be
beaten is none. It runs right beside the measured phase, in the same directory and with the same bytes in
cycles of the same size, so that the two share whatever else the machine is doing.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ister.io.clock import monotonic
from ister.io.disk import File, LocalDisk

now = monotonic

_PATTERN_BYTES: Final = 1 << 20
_RESERVE_BYTES: Final = 1 << 24


@contextmanager
def raw_file(directory: Path) -> Iterator[File]:
    """A new file on the disk that is measured. It is gone, and the disk knows it, before the next phase."""
    disk = LocalDisk(directory, threads=1)
    name = f"raw-{len(disk.list(''))}-{threading.get_ident()}"
    file = disk.open(name, create=True)
    try:
        yield file
    finally:
        file.close()
        disk.remove(name)
        disk.sync_directory("")
        disk.close()


def filler(size: int) -> bytes:
    pattern = hashlib.shake_128(b"raw").digest(min(size, _PATTERN_BYTES))
    return (pattern * (size // max(len(pattern), 1) + 1))[:size]


def time_writes(file: File, total: int, cycle: int, *, position: int = 0) -> list[float]:
    """Seconds of each cycle of write and sync, until `total` bytes are there. The last one may be shorter."""
    cycle = max(1, min(cycle, total))
    data, end, reserved = filler(cycle), position + total, file.size()
    seconds: list[float] = []
    while position < end:
        part = data if end - position >= cycle else data[: end - position]
        began = now()
        if position + len(part) > reserved:
            reserved = position + max(len(part), _RESERVE_BYTES)
            file.allocate(reserved)
        file.write([part], position)
        file.sync()
        seconds.append(now() - began)
        position += len(part)
    return seconds


def time_reads(file: File, total: int, piece: int) -> float:
    """Seconds to read so many bytes once, in pieces; from the page cache, if that is where they are."""
    began = now()
    for position in range(0, total, piece):
        file.read(min(piece, total - position), position)
    return now() - began
