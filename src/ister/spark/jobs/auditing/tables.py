"""Which offsets of a table are compared by which task, and with which of its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ister.spark.jobs.auditing.against import TableShare
from ister.spark.jobs.lake.opening import Target, find_dead_letters
from ister.spark.jobs.lake.table import UNKNOWN, Coverage, DataFile, LakeTable
from ister.spark.jobs.snapshot import Share, Snapshot, shares
from ister.spark.jobs.tiering.decoding import make_decoding
from ister.spark.jobs.tiering.plan import WritePlan, table_schema
from ister.spark.ranges import OffsetRange

WINDOW_BYTES = 64 * 1024 * 1024
"""Of the log: both sides of so much are in memory at once."""
_LAST_OFFSET = (1 << 63) - 1


def plan_of(bootstrap: str, target: Target, table: LakeTable) -> tuple[WritePlan, list[DataFile]]:
    """How the table was written, by what it says itself; and the files of its dead letters."""
    origin = table.origin()
    decoding = None if origin.decode == "none" else make_decoding(origin.decode, origin.schema, origin.nested)
    dead = None if decoding is None else find_dead_letters(target, origin)
    plan = WritePlan(
        bootstrap,
        table.location,
        table_schema(decoding),
        origin.partition_by,
        0,
        True,
        decoding,
        "" if dead is None else dead.location,
    )
    return plan, [] if dead is None else dead.files()


def windows(
    snapshot: Snapshot, covered: Coverage, files: Sequence[DataFile], dead: Sequence[DataFile]
) -> Iterator[TableShare]:
    """All offsets there are: those that both have, those that only the table can have, and those that it
    should not have."""
    first, behind = max(covered.first, snapshot.start), min(covered.next, snapshot.end)
    for share in shares(snapshot, first, behind, WINDOW_BYTES):
        yield _window(share, files, dead)
    for start, end, wanted in (
        (0, covered.first, False),
        (covered.first, min(snapshot.start, covered.next), True),
        (covered.next, _LAST_OFFSET, False),
    ):
        if start >= end:
            continue
        share = Share(OffsetRange(snapshot.topic, snapshot.uid, start, end), 0, 0, 0, ())
        window = _window(share, files, dead)
        if wanted or window.files or window.dead_files:
            yield TableShare(share, window.files, window.dead_files, in_log=False, wanted=wanted)


def _window(share: Share, files: Sequence[DataFile], dead: Sequence[DataFile]) -> TableShare:
    return TableShare(share, _overlapping(share, files), _overlapping(share, dead))


def _overlapping(share: Share, files: Sequence[DataFile]) -> tuple[str, ...]:
    """Files that may have some of these offsets: all that say nothing about theirs, too."""
    start, end = share.range.start, share.range.end
    return tuple(
        file.path
        for file in files
        if UNKNOWN in (file.first_offset, file.last_offset)
        or (file.first_offset < end and file.last_offset >= start)
    )
