"""`tier --optimize`: few large files in the place of many small ones, with the same rows.

Tables with a library that compacts leave it to that. Of others the small files of each partition are
gathered, in the order of their offsets, and tasks write each lot anew; the driver then commits the exchange,
which changes nothing about how far the table is. What can fail: a task or the driver dies, or somebody else
changes the table. Then the old files stay, and the new ones are in no commit and the vacuum's. Nothing is
removed here: a commit whose answer was lost may be there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ister.spark.jobs.lake.leftovers import filesystem_of
from ister.spark.jobs.lake.table import DataFile, LakeTable
from ister.spark.jobs.running import Stop, run_tasks
from ister.spark.jobs.tiering.files import FileSet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ATTEMPTS: Final = 5
"""Other commits come in between."""
_BATCH_ROWS: Final = 65_536


@dataclass(frozen=True)
class RewritePlan:
    """What each task needs."""

    location: str
    schema: pa.Schema
    partition_by: str
    file_bytes: int
    is_typed: bool


def optimize_table(
    spark: SparkSession, table: LakeTable, plan: RewritePlan, *, at_once: int, stop: Stop
) -> tuple[int, int]:
    """How many files went, and how many came."""
    done = table.compact(plan.file_bytes)
    if done is not None:
        return done
    lots = list(small_together(table.files(), plan.file_bytes))
    removed = added = 0
    for number, new in run_tasks(spark, partial(rewrite, plan), lots, at_once=at_once, stop=stop):
        if any(table.replace(lots[number], new) for _ in range(_ATTEMPTS)):
            removed, added = removed + len(lots[number]), added + len(new)
    return removed, added


def small_together(files: Sequence[DataFile], file_bytes: int) -> Iterator[list[DataFile]]:
    """Files of less than half the size, of one folder, which is one partition, until they make one."""
    small = [file for file in files if file.size < file_bytes // 2]
    for _, of_folder in groupby(sorted(small, key=lambda file: (_folder(file), file.first_offset)), _folder):
        lot: list[DataFile] = []
        for file in of_folder:
            if len(lot) > 1 and sum(one.size for one in lot) + file.size > file_bytes:
                yield lot
                lot = []
            lot.append(file)
        if len(lot) > 1:
            yield lot


def _folder(file: DataFile) -> str:
    return file.path.rpartition("/")[0]


def rewrite(plan: RewritePlan, files: Sequence[DataFile]) -> list[DataFile]:
    """Their rows, in files that no commit names yet."""
    filesystem, root = filesystem_of(plan.location)
    stem = f"{files[0].first_offset:020}-{files[-1].last_offset + 1:020}"
    made = FileSet(plan.location, plan.schema, plan.partition_by, plan.file_bytes, stem, plan.is_typed)
    try:
        for file in files:
            with filesystem.open_input_file(f"{root}/{file.path}") as source:
                for rows in pq.ParquetFile(source).iter_batches(_BATCH_ROWS, columns=plan.schema.names):
                    made.add(rows.select(plan.schema.names).cast(plan.schema))
        return made.finish()
    except BaseException:
        made.abandon()
        raise
