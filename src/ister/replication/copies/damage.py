"""That a sealed copy was found damaged, kept beside its log until it is mended (C2).

    <segment path>.damaged    with a checksum

A reader or the scrub may be the only one that ever finds it: the log opens well, and ends where it should. If
only this process knew, the next one would call the copy whole, and another would be removed for that.

Fault model: process or power may be lost before the mark is durable; then the damage is found again, or not,
as if this one had not found it. One that cannot be read is a mark too. It goes after what is mended is
durable: a crash in between costs one more replacement.
"""

from __future__ import annotations

from ister.errors import CorruptSegment
from ister.io.disk import Disk
from ister.wal.number_file import read_number, write_number

SUFFIX = ".damaged"
_MAGIC = b"ISTX"


def remember_damage(disk: Disk, path: str) -> None:
    """Durable when it returns. Blocking."""
    if not was_damaged(disk, path):
        write_number(disk, path + SUFFIX, _MAGIC, 1)


def was_damaged(disk: Disk, path: str) -> bool:
    """Blocking."""
    try:
        return read_number(disk, path + SUFFIX, _MAGIC, hint="") is not None
    except CorruptSegment:
        return True


def forget_damage(disk: Disk, path: str) -> None:
    """Blocking."""
    disk.remove(path + SUFFIX)
