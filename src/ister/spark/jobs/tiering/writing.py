"""One task of a tier job, on an executor: offsets to files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ister.spark.jobs.gaps import AllThere, Noted
from ister.spark.jobs.lake.table import DataFile
from ister.spark.jobs.snapshot import Share
from ister.spark.jobs.tiering.decoding import decode_values
from ister.spark.jobs.tiering.files import FileSet
from ister.spark.jobs.tiering.plan import WritePlan, dead_letter_schema, log_schema
from ister.spark.source.reading import read_range


@dataclass(frozen=True)
class Written:
    """What became of a share."""

    files: list[DataFile]
    dead_files: list[DataFile]
    records: int
    """Read from the log."""
    gaps: tuple[tuple[int, int], ...]


def write_share(plan: WritePlan, share: Share) -> Written:
    """Write the records of a share into files that nobody has heard of yet."""
    wanted = share.range
    stem = f"{wanted.uid}-{wanted.start:020}-{wanted.end:020}"
    files = FileSet(
        plan.location, plan.schema, plan.partition_by, plan.file_bytes, stem, plan.decoding is not None
    )
    dead = FileSet(plan.dead_location, dead_letter_schema(), plan.partition_by, plan.file_bytes, stem, False)
    loss = Noted() if plan.skip_missing else AllThere()
    records = 0
    try:
        for rows in read_range(plan.bootstrap, wanted, log_schema(), loss):
            records += rows.num_rows
            good, letters = shape(plan, rows)
            if good.num_rows:
                files.add(good)
            if letters is not None:
                dead.add(letters)
        gaps = loss.gaps(plan.bootstrap, wanted) if isinstance(loss, Noted) else ()
        return Written(files.finish(), dead.finish(), records, gaps)
    except BaseException:
        files.abandon()
        dead.abandon()
        raise


def shape(plan: WritePlan, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """Rows of the log as rows of the table, and as dead letters where they can't be that."""
    decoding = plan.decoding
    if decoding is None:
        return rows, None
    decoded = decode_values(decoding, rows.column("value"))
    kept = rows if len(decoded.good) == rows.num_rows else rows.take(decoded.good)
    columns: dict[str, Any] = {name: kept.column(name) for name in rows.schema.names if name != "value"}
    if decoding.nested:
        columns["value"] = decoded.columns
    else:
        columns |= {field.name: decoded.columns.field(at) for at, field in enumerate(decoding.columns)}
    good = pa.RecordBatch.from_arrays([columns[name] for name in plan.schema.names], schema=plan.schema)
    return good, _dead_letters(rows, decoded.bad, decoded.errors, plan.dead_from)


def _dead_letters(
    rows: pa.RecordBatch, bad: list[int], errors: list[str], first_offset: int
) -> pa.RecordBatch | None:
    if not bad:
        return None
    letters = rows.take(pa.array(bad, pa.int64()))
    letters = letters.append_column(pa.field("error", pa.string()), pa.array(errors, pa.string()))
    offsets = letters.column("offset").to_pylist()
    fresh = [place for place, offset in enumerate(offsets) if offset >= first_offset]
    if not fresh:
        return None
    letters = letters if len(fresh) == len(offsets) else letters.take(pa.array(fresh, pa.int64()))
    return pa.RecordBatch.from_arrays(letters.columns, schema=dead_letter_schema())
