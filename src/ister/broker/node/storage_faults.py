"""What is said of a segment whose disk has failed."""

from __future__ import annotations

import errno

from ister.errors import SAME_PRODUCER_HINT, IsterError, SegmentFenced, StorageFailed
from ister.wal.segment import Segment

_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


def storage_fault(node_id: int, segment: Segment, error: OSError, *, during_sync: bool) -> IsterError:
    """A full disk is `StorageFailed`: if no other node can lead, the segment is cut back and goes on.
    Anything else is `SegmentFenced`, and ends it (P1)."""
    key, end = segment.identity.key, segment.committed_end
    if error.errno in _FULL_DISK and not during_sync:
        return StorageFailed(
            f"the disk of node {node_id} is full; {key} stays at offset {end}",
            hint="Free space on the broker's disk; the client's retry then succeeds.",
        )
    what = "sync" if during_sync else "write"
    return SegmentFenced(
        f"{what} of {key} failed at offset {end}: {error}",
        hint="Check the disk and the kernel's log on the broker, then retry. Nothing acknowledged was lost.",
    )


def doubt(segment: Segment, why: str) -> StorageFailed:
    """For appends of which nobody can say whether they will be found again."""
    key, end = segment.identity.key, segment.committed_end
    return StorageFailed(
        f"{why}; this batch may or may not be in {key}, at or past offset {end}",
        hint=SAME_PRODUCER_HINT,
    )
