"""The fence of a replica: its durable promise to a recovery to take no more appends to a segment (F1, F2).

    <segment path>.fence    the recovery's number, with a checksum

Fault model: the process or the power may be lost at any step; then the fence stands as it did before, or as
it was to be, and certainly so once `write_fence` has returned: nobody is answered before. A number is never
lowered, since a later recovery relies on what was promised to it. A fence file that cannot be read is an
error and never "no fence": a replica that forgot its promise would acknowledge what the recovery does not
know of.

A segment has one owner on its node, and so have its fences: two calls for the same segment never run at once.
"""

from __future__ import annotations

from ister.errors import SegmentFenced, invariant
from ister.io.disk import Disk
from ister.wal.number_file import read_number, write_number

SUFFIX = ".fence"
_MAGIC = b"ISTR"
_HINT = (
    "Restore the file from a copy. Until then this replica takes no appends to the segment and answers no "
    "recovery; the others go on without it. Do not remove it: it is a promise that they rely on."
)


def write_fence(disk: Disk, path: str, recovery: int) -> None:
    """Promise `recovery`, durably. Blocking. `path` is the segment's, without suffix.

    The same number again is written again: that it can be read does not say that it is durable (P2). Raises
    `SegmentFenced` if a higher one was promised; an `OSError` means that nothing was promised for certain.
    """
    invariant(recovery > 0, f"a fence has the number of a recovery, and {recovery} is none")
    standing = read_fence(disk, path)
    if standing > recovery:
        raise SegmentFenced(
            f"recovery {recovery} of {path} comes too late: recovery {standing} has fenced it",
            hint="A later recovery has taken over; the topic goes on by that one.",
        )
    write_number(disk, path + SUFFIX, _MAGIC, recovery)


def read_fence(disk: Disk, path: str) -> int:
    """The highest recovery that was promised anything; 0 if none was. Blocking."""
    return read_number(disk, path + SUFFIX, _MAGIC, hint=_HINT) or 0
