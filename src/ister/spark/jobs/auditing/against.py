"""The audit's task over a table: its rows of some offsets, beside the log's.

Each row of the table must be one record of the log and each record one row, with the same contents: the log's
records are decoded as the table's were, and compared column by column. Only where columns differ is it looked
which rows do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ister.errors import IsterError, OffsetOutOfRange
from ister.spark.jobs.auditing.findings import TABLE, Finding, runs, shown
from ister.spark.jobs.lake.leftovers import filesystem_of
from ister.spark.jobs.snapshot import Share
from ister.spark.jobs.tiering.plan import WritePlan, dead_letter_schema, log_schema
from ister.spark.jobs.tiering.writing import shape
from ister.spark.ranges import Loss
from ister.spark.source.reading import read_range

MAX_FINDINGS: Final = 100
"""Of each kind from one task: a table that has nothing in common with the log needs no list of it."""


@dataclass(frozen=True)
class TableShare:
    """Offsets, and the files that may have some of them."""

    share: Share
    files: tuple[str, ...]
    dead_files: tuple[str, ...]
    in_log: bool = True
    """False: the log does not have them any more, or never did; then only the offsets are looked at."""
    wanted: bool = True
    """False: no row may be there."""


class _Unreadable(Loss):
    """What the log does not have can't be compared; its own audit tells of it."""

    holes: list[tuple[int, int]]

    def __new__(cls) -> _Unreadable:
        made = super().__new__(cls, False)
        made.holes = []
        return made

    def report(
        self,
        topic: str,
        start: int,
        end: int | None,
        why: str,
        kind: type[IsterError] = OffsetOutOfRange,
    ) -> None:
        if end is None:
            raise kind(f"offsets from {start} on of {topic} are not there: {why}")
        self.holes.append((start, end))


def compare_table(
    plan: WritePlan, gaps: tuple[tuple[int, int], ...], parts: Sequence[TableShare]
) -> list[list[Finding]]:
    return [_compare(plan, gaps, part) for part in parts]


def _compare(plan: WritePlan, gaps: tuple[tuple[int, int], ...], part: TableShare) -> list[Finding]:
    findings: list[Finding] = []
    start, end = part.share.range.start, part.share.range.end
    only_offsets = not part.in_log
    rows = _read(plan.location, part.files, plan.schema, start, end, findings, only_offsets)
    letters = _read(
        plan.dead_location, part.dead_files, dead_letter_schema(), start, end, findings, only_offsets
    )
    if not part.in_log:
        offsets = pa.chunked_array(
            [*rows.column("offset").chunks, *letters.column("offset").chunks], pa.int64()
        )
        there = pa.table({"offset": offsets}).sort_by("offset").column("offset")
        expected = range(start, end) if part.wanted else range(0)
        if len(there) == len(expected) and _are_rising(there):
            return findings  # so many different ones of these can only be these
        return findings + _offsets_differ(list(expected), there.to_pylist(), gaps)
    loss = _Unreadable()
    wanted, wanted_letters = _expected(plan, part, loss)
    holes = (*gaps, *loss.holes)
    # One that is in a gap of the table should not be there, nor be missed.
    findings += _tables_differ(_outside(wanted, gaps), _outside(rows, loss.holes), holes)
    findings += _tables_differ(_outside(wanted_letters, gaps), _outside(letters, loss.holes), holes)
    return findings


def _expected(plan: WritePlan, part: TableShare, loss: Loss) -> tuple[pa.Table, pa.Table]:
    good, bad = [], []
    for batch in read_range(plan.bootstrap, part.share.range, log_schema(), loss):
        rows, letters = shape(plan, batch)
        good.append(rows)
        if letters is not None:
            bad.append(letters)
    return pa.Table.from_batches(good, plan.schema), pa.Table.from_batches(bad, dead_letter_schema())


def _read(
    location: str,
    files: Sequence[str],
    schema: pa.Schema,
    start: int,
    end: int,
    findings: list[Finding],
    only_offsets: bool,
) -> pa.Table:
    """The rows of these offsets, in order. Columns that the table is partitioned by are in no file."""
    names = ["offset"] if only_offsets else schema.names
    wanted = pa.schema([schema.field(name) for name in names])
    tables = []
    for file in files:
        filesystem, root = filesystem_of(location)
        try:
            found = pq.read_table(
                f"{root}/{file}",
                filesystem=filesystem,
                columns=names,
                filters=[("offset", ">=", start), ("offset", "<", end)],
                partitioning=None,
            )
            tables.append(found.select(names).cast(wanted))
        except (OSError, pa.ArrowException, KeyError) as error:
            findings.append(Finding(TABLE, start, end, f"the file {file} can't be read: {error}"))
    return _in_order(pa.concat_tables(tables)) if tables else wanted.empty_table()


def _in_order(rows: pa.Table) -> pa.Table:
    """By offset. They mostly are already, and to sort them would copy every value."""
    return rows if _are_rising(rows.column("offset")) else rows.sort_by("offset")


def _are_rising(offsets: pa.ChunkedArray) -> bool:
    whole = offsets.combine_chunks()
    return len(whole) < 2 or bool(pc.all(pc.less(whole[:-1], whole[1:])).as_py())


def _outside(rows: pa.Table, holes: Sequence[tuple[int, int]]) -> pa.Table:
    for start, end in holes:
        offset = pc.field("offset")
        rows = rows.filter((offset < start) | (offset >= end))
    return rows


def _tables_differ(wanted: pa.Table, found: pa.Table, gaps: Sequence[tuple[int, int]]) -> list[Finding]:
    if wanted.column("offset").equals(found.column("offset")):
        return _contents_differ(wanted, found)
    ours, theirs = wanted.column("offset").to_pylist(), found.column("offset").to_pylist()
    findings = _offsets_differ(ours, theirs, gaps)
    # The rest is compared as well: one row too many must not hide another that is wrong.
    once = _first_of_each(found.filter(pc.field("offset").isin(ours)))
    return findings + _contents_differ(wanted.filter(pc.field("offset").isin(theirs)), once)


def _first_of_each(rows: pa.Table) -> pa.Table:
    offsets = rows.column("offset").to_pylist()
    places = [place for place, offset in enumerate(offsets) if not place or offsets[place - 1] != offset]
    return rows.take(pa.array(places, pa.int64()))


def _offsets_differ(
    wanted: Sequence[int], found: Sequence[int], gaps: Sequence[tuple[int, int]]
) -> list[Finding]:
    there, ours = set(found), set(wanted)
    missing = [
        offset
        for offset in wanted
        if offset not in there and not any(start <= offset < end for start, end in gaps)
    ]
    extra = sorted(offset for offset in there if offset not in ours)
    doubled = sorted({offset for before, offset in pairwise(found) if before == offset})
    return [
        *_findings(missing, "in the log and not in the table"),
        *_findings(doubled, "in the table more than once"),
        *_findings(extra, "in the table and not among the records that it should have"),
    ]


def _contents_differ(wanted: pa.Table, found: pa.Table) -> list[Finding]:
    """Of the same offsets, in the same order."""
    findings: list[Finding] = []
    offsets: list[int] | None = None
    for name in wanted.schema.names:
        ours, theirs = wanted.column(name), found.column(name)
        if ours.equals(theirs):
            continue
        if offsets is None:
            offsets = wanted.column("offset").to_pylist()
        pairs = zip(offsets, ours.to_pylist(), theirs.to_pylist(), strict=True)
        differing = [offset for offset, one, other in pairs if not _same(one, other)]
        findings += _findings(differing, f"another {name} in the table than in the log")
    return findings


def _same(one: Any, other: Any) -> bool:
    """NaN is NaN, here: it was written as that."""
    return bool(one == other) or repr(one) == repr(other)


def _findings(offsets: Sequence[int], what: str) -> list[Finding]:
    found = runs(offsets)
    findings = [Finding(TABLE, start, end, f"{shown(start, end)}: {what}") for start, end in found]
    if len(findings) > MAX_FINDINGS:
        rest = f"offsets up to {found[-1][1] - 1}, in {len(found) - MAX_FINDINGS} more ranges: {what}"
        findings[MAX_FINDINGS:] = [Finding(TABLE, found[MAX_FINDINGS][0], found[-1][1], rest)]
    return findings
