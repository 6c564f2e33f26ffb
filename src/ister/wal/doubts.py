"""What a replica remembers of a tail that it cut: rot in what was acknowledged looks like a torn write (P3).

    <segment path>.doubt    the position up to which the log was in use, with a checksum

It is written before the cut is made. Otherwise the next start would find a clean, shorter log, and a recovery
would count this replica among those that never had more. The doubt ends when the log reaches that position
again: all that can have been acknowledged from here lay below it, and replicas have the same bytes at the
same positions.
"""

from __future__ import annotations

from ister.errors import CorruptSegment
from ister.io.disk import Disk
from ister.wal.number_file import read_number, write_number

SUFFIX = ".doubt"
FOR_EVER = (1 << 63) - 1
_MAGIC = b"ISTD"


def doubtful_until(disk: Disk, path: str) -> int:
    """Below this position the log of this segment was in use once; 0 if nothing was ever cut. Blocking."""
    try:
        return read_number(disk, path + SUFFIX, _MAGIC, hint="") or 0
    except CorruptSegment:
        return FOR_EVER  # something was cut, and nobody knows any more how much


def remember_doubt(disk: Disk, path: str, until: int) -> None:
    """Durable when it returns. Blocking."""
    write_number(disk, path + SUFFIX, _MAGIC, until)
