"""What a replica remembers of records that it may have lost, and may have acknowledged (P3).

    <segment path>.doubt    the position up to which the log was in use, with a checksum

Of a tail that was cut: rot in what was acknowledged looks like a torn write. And of a log that is missing, or
empty without the head that it was made with: nobody knows how far it went, and the doubt is for ever.

It is written before the cut is made, or anything in the log's place. Otherwise the next start would find a
clean, shorter log, and a recovery would count this replica among those that never had more. The doubt ends
when the log reaches that position again: all that can have been acknowledged from here lay below it, and
replicas have the same bytes at the same positions. It also ends (`forget_doubt`) when the log reaches an end
that a recovery chose, or one that its leader called committed after it had heard where this log ends.
"""

from __future__ import annotations

from ister.errors import CorruptSegment
from ister.io.disk import Disk, File
from ister.wal.number_file import read_number, write_number

SUFFIX = ".doubt"
FOR_EVER = (1 << 63) - 1
HEAD_BYTES = 1
"""A log is made with so many zeros, which its first frame replaces: one that is emptied is not a new one."""
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


def forget_doubt(disk: Disk, path: str) -> None:
    """After a power cut it may be remembered all the same, which costs a wait and no records. Blocking."""
    disk.remove(path + SUFFIX)


def doubt_what_is_missing(disk: Disk, path: str) -> None:
    """If the log of a segment that was opened is not there, or has no head: remember that. Blocking."""
    if not has_head(disk, path):
        remember_doubt(disk, path, FOR_EVER)


def cut_log(file: File, position: int) -> None:
    """Nothing is left behind `position`, nor in the place of the head. Blocking; to be synced."""
    file.truncate(position)
    if position < HEAD_BYTES:
        file.truncate(HEAD_BYTES)


def has_head(disk: Disk, path: str) -> bool:
    """Whether there is a log that was made to its end and not emptied since. Blocking."""
    try:
        file = disk.open(path + ".log")
    except FileNotFoundError:
        return False
    try:
        return file.size() >= HEAD_BYTES
    finally:
        file.close()
