"""Writing a task's rows into Parquet files, one for each partition, synced before anybody hears of them.

What can fail: the task dies anywhere. Its files then bear names that no commit has, and are the vacuum's. Two
attempts at one task never write to one file: each name has a part of its own.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from ister.spark.jobs.lake.leftovers import filesystem_of
from ister.spark.jobs.lake.table import FILE_PREFIX, DataFile

ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
OPEN_FILES: Final = 32
"""Records may bear any time: no more partitions than this are written at once."""
_DAY_US: Final = 86_400_000_000
_HOUR_US: Final = 3_600_000_000
_ZSTD_LEVEL: Final = 1
_COUNTED: Final = {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"}


class FileSet:
    """The files of one task in one table."""

    def __init__(
        self, location: str, schema: pa.Schema, partition_by: str, file_bytes: int, stem: str, typed: bool
    ) -> None:
        self._location = location
        self._filesystem, self._root = filesystem_of(location)
        self._schema = schema
        self._partition_by = partition_by
        self._file_bytes = file_bytes
        self._stem = stem
        self._typed = typed
        self._attempt = uuid.uuid4().hex[:12]
        self._open: dict[int, _File] = {}
        self._made: list[_File] = []
        self._done: list[DataFile] = []

    def add(self, rows: pa.RecordBatch) -> None:
        for unit, part in by_partition(rows, self._partition_by):
            file = self._open.pop(unit, None) or self._new(unit)
            file.add(part)
            if file.size >= self._file_bytes:
                self._finish(file)
            else:
                self._open[unit] = file  # the one used last is last
        while len(self._open) > OPEN_FILES:
            self._finish(self._open.pop(next(iter(self._open))))

    def finish(self) -> list[DataFile]:
        for file in self._open.values():
            self._finish(file)
        self._open = {}
        if "://" not in self._location:
            for folder in self._folders():
                _sync(folder)
        return self._done

    def _folders(self) -> set[Path]:
        """All that lead to the files: of a partition that is new, its own name must last too."""
        root = Path(self._root)
        return {
            folder
            for file in self._done
            for folder in Path(self._root, file.path).parents
            if folder == root.parent or folder.is_relative_to(root)
        }

    def abandon(self) -> None:
        """The task has failed: take back what was written, as far as that goes."""
        for file in self._made:
            with contextlib.suppress(Exception):
                file.close()
            with contextlib.suppress(Exception):
                self._filesystem.delete_file(file.full_path)

    def _new(self, unit: int) -> _File:
        partition = partition_of(unit, self._partition_by)
        folder = "".join(f"{name}={value}/" for name, value in partition)
        path = f"{folder}{FILE_PREFIX}{self._stem}-{self._attempt}-{len(self._made)}.parquet"
        file = _File(self._filesystem, f"{self._root}/{path}", path, partition, self._schema, self._typed)
        self._made.append(file)
        return file

    def _finish(self, file: _File) -> None:
        file.close()
        if "://" not in self._location:
            _sync(Path(file.full_path))
        self._done.append(file.described())


@dataclass
class _Bounds:
    low: int = 1 << 63
    high: int = -(1 << 63)

    def widen(self, column: pa.Array) -> None:
        found = pc.min_max(column)
        self.low = min(self.low, found["min"].as_py())
        self.high = max(self.high, found["max"].as_py())


class _File:
    def __init__(
        self,
        filesystem: Any,
        full_path: str,
        path: str,
        partition: tuple[tuple[str, str], ...],
        schema: pa.Schema,
        typed: bool,
    ) -> None:
        self.path = path
        self.full_path = full_path
        self._filesystem = filesystem
        self._partition = partition
        if isinstance(filesystem, LocalFileSystem):  # a bucket has no folders
            filesystem.create_dir(full_path.rpartition("/")[0], recursive=True)
        self._sink = filesystem.open_output_stream(full_path)
        self._writer = pq.ParquetWriter(self._sink, schema, **_writer_options(schema, typed))
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._records = 0
        self._offsets = _Bounds()
        self._times = _Bounds()

    def add(self, rows: pa.RecordBatch) -> None:
        self._records += rows.num_rows
        self._offsets.widen(rows.column("offset"))
        self._times.widen(rows.column("timestamp").view(pa.int64()))
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting)
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._waiting, self._waiting_bytes = [], 0

    @property
    def size(self) -> int:
        found: int = self._sink.tell()
        return found

    def close(self) -> None:
        self._flush()
        self._writer.close()
        self._size = self._sink.tell()
        self._sink.close()

    def described(self) -> DataFile:
        return DataFile(
            self.path,
            self._size,
            self._records,
            self._offsets.low,
            self._offsets.high,
            self._times.low,
            self._times.high,
            self._partition,
        )


def _writer_options(schema: pa.Schema, typed: bool) -> dict[str, Any]:
    """Values and keys that nobody decoded are bytes: a dictionary of them costs more than it saves."""
    known = ("offset", "timestamp", "value")
    dictionary: list[str] = []
    for field in schema:
        if field.name not in known or (typed and field.name not in known[:2]):
            dictionary += _leaves(field)
    bounded = [
        name for field in schema if field.name not in ("value", "headers") or typed for name in _leaves(field)
    ]
    return {
        "compression": "zstd",
        "compression_level": _ZSTD_LEVEL,
        "use_dictionary": dictionary,
        "column_encoding": _COUNTED,
        "write_statistics": bounded,
        "store_schema": False,
    }


def _leaves(field: pa.Field) -> list[str]:
    """The paths of a column's leaves as Parquet names them."""
    kind = field.type
    if pa.types.is_struct(kind):
        return [f"{field.name}.{leaf}" for each in kind for leaf in _leaves(each)]
    if pa.types.is_map(kind):
        inner = [*_leaves(pa.field("key", kind.key_type)), *_leaves(pa.field("value", kind.item_type))]
        return [f"{field.name}.key_value.{leaf}" for leaf in inner]
    if pa.types.is_list(kind):
        return [f"{field.name}.list.{leaf}" for leaf in _leaves(pa.field("element", kind.value_type))]
    return [field.name]


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# Partitions.


def by_partition(rows: pa.RecordBatch, partition_by: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each day or hour, in their order; most batches are of one."""
    if not rows.num_rows:
        return
    if partition_by == "none":
        yield 0, rows
        return
    unit_us = _DAY_US if partition_by == "date" else _HOUR_US
    times = rows.column("timestamp").view(pa.int64())
    bounds = pc.min_max(times)
    first, last = bounds["min"].as_py() // unit_us, bounds["max"].as_py() // unit_us
    if first == last:
        yield first, rows
        return
    units = _floored(times, unit_us)
    order = pc.sort_indices(units)  # stable: offsets stay in order within a partition
    sorted_units, sorted_rows = units.take(order), rows.take(order)
    runs = pc.run_end_encode(sorted_units)
    start = 0
    for unit, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield unit, sorted_rows.slice(start, end - start)
        start = end


def _floored(times: pa.Array, unit_us: int) -> pa.Array:
    """Whole units since 1970, rounded down also before it: Arrow's division rounds to zero."""
    units = pc.divide(times, unit_us)
    is_over = pc.greater(pc.multiply(units, unit_us), times)
    return pc.subtract(units, is_over.cast(pa.int64()))


def partition_of(unit: int, partition_by: str) -> tuple[tuple[str, str], ...]:
    """The columns of a partition, as text."""
    from datetime import date, timedelta

    if partition_by == "none":
        return ()
    days, hour = (unit, 0) if partition_by == "date" else divmod(unit, 24)
    day = (date(1970, 1, 1) + timedelta(days=days)).isoformat()
    return (("date", day),) if partition_by == "date" else (("date", day), ("hour", str(hour)))


def total(files: Sequence[DataFile]) -> tuple[int, int]:
    """Records and bytes."""
    return sum(file.records for file in files), sum(file.size for file in files)
