"""A table as an audit holds it against its topic: as it is at one moment, cut into what tasks compare.

A table goes on while it is audited: a job tiers into it. So it is looked at once, before the topic is, and
has nothing then that the topic has not. Its dead letters are committed before the records beside them: they
may be further on, and are looked at second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ister.errors import TableMismatch
from ister.spark.jobs.auditing.against import TableShare
from ister.spark.jobs.auditing.findings import TABLE, Finding, shown
from ister.spark.jobs.lake.opening import Target, find_dead_letters, find_table
from ister.spark.jobs.lake.table import UNKNOWN, Coverage, DataFile, LakeTable, Origin
from ister.spark.jobs.snapshot import Share, Snapshot, shares
from ister.spark.jobs.tiering.decoding import make_decoding
from ister.spark.jobs.tiering.plan import WritePlan, table_schema
from ister.spark.ranges import OffsetRange

WINDOW_BYTES = 64 * 1024 * 1024
"""Of the log: both sides of so much are in memory at once."""
WINDOW_OFFSETS = 2_000_000
"""Of what the log has not any more: so many are in memory at once."""
_LAST_OFFSET = (1 << 63) - 1


@dataclass(frozen=True)
class TableLook:
    """A table at one moment."""

    name: str
    origin: Origin
    plan: WritePlan
    """How it was written, by what it says itself."""
    covered: Coverage | None
    files: list[DataFile]
    dead_files: list[DataFile]
    dead_next: int
    """How far its dead letters are."""

    def check_topic(self, snapshot: Snapshot) -> None:
        """Raises if it is another topic's."""
        if (self.origin.cluster, self.origin.uid) != (snapshot.cluster, snapshot.uid):
            raise TableMismatch(
                f"the table {self.name} has {self.origin.topic} with uid {self.origin.uid} of the cluster "
                f"{self.origin.cluster}; {snapshot.topic} has uid {snapshot.uid} of {snapshot.cluster}",
                hint="Audit it against the topic that it was made of.",
            )


def look_at_table(bootstrap: str, target: Target, topic: str) -> TableLook:
    table = find_table(target, topic)
    origin = table.origin()
    covered, files = _at_one_moment(table)
    decoding = None if origin.decode == "none" else make_decoding(origin.decode, origin.schema, origin.nested)
    dead = None if decoding is None else find_dead_letters(target, origin)
    dead_covered, dead_files = (None, []) if dead is None else _at_one_moment(dead)
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
    dead_next = 0 if dead_covered is None else dead_covered.next
    return TableLook(target.name_of(origin), origin, plan, covered, files, dead_files, dead_next)


def _at_one_moment(table: LakeTable) -> tuple[Coverage | None, list[DataFile]]:
    covered = table.coverage()
    while True:
        files = table.files()
        before, covered = covered, table.coverage()
        if covered == before:
            return covered, files


def check_reach(look: TableLook, start: int, end: int) -> list[Finding]:
    """How far the table is by its own commits, held against a topic from `start` to before `end`."""
    if look.covered is None:
        if start == end:
            return []
        what = f"{shown(start, end)}: the table has no commit, and the topic has records"
        return [Finding(TABLE, start, end, what)]
    if look.covered.next > end:
        what = f"the table goes up to offset {look.covered.next - 1}, and the topic ended at {end}"
        return [Finding(TABLE, end, look.covered.next, what)]
    return []


def windows(snapshot: Snapshot, look: TableLook, covered: Coverage) -> Iterator[TableShare]:
    """All offsets there are: those that both have, those that only the table can have, and those that it
    should not have."""
    first, behind = max(covered.first, snapshot.start), min(covered.next, snapshot.end)
    for share in shares(snapshot, first, behind, WINDOW_BYTES):
        yield TableShare(share, _overlapping(share, look.files), _overlapping(share, look.dead_files))
    trimmed = min(snapshot.start, covered.next)
    for start in range(covered.first, trimmed, WINDOW_OFFSETS):
        share = _share(snapshot, start, min(start + WINDOW_OFFSETS, trimmed))
        yield _out_of_the_log(share, look.files, look.dead_files, wanted=True)
    unwanted = [
        _out_of_the_log(_share(snapshot, 0, covered.first), look.files, look.dead_files, wanted=False),
        _out_of_the_log(_share(snapshot, covered.next, _LAST_OFFSET), look.files, (), wanted=False),
        _out_of_the_log(
            _share(snapshot, max(covered.next, look.dead_next), _LAST_OFFSET),
            (),
            look.dead_files,
            wanted=False,
        ),
    ]
    yield from (part for part in unwanted if part.files or part.dead_files)


def _share(snapshot: Snapshot, start: int, end: int) -> Share:
    return Share(OffsetRange(snapshot.topic, snapshot.uid, start, end), 0)


def _out_of_the_log(
    share: Share, files: Sequence[DataFile], dead: Sequence[DataFile], *, wanted: bool
) -> TableShare:
    return TableShare(share, _overlapping(share, files), _overlapping(share, dead), False, wanted)


def _overlapping(share: Share, files: Sequence[DataFile]) -> tuple[str, ...]:
    """Files that may have some of these offsets: all that say nothing about theirs, too."""
    start, end = share.range.start, share.range.end
    if start >= end:
        return ()
    return tuple(
        file.path
        for file in files
        if UNKNOWN in (file.first_offset, file.last_offset)
        or (file.first_offset < end and file.last_offset >= start)
    )
