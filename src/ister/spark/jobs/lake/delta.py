"""Delta tables, by `deltalake`: no jar, and no JVM in the way of the data.

How far the table has come is in application transactions of the very commit that adds the files. Delta keeps
the last version of each through checkpoints, and fails a commit if another one with the same application came
in between: that is the condition of ours. Commits of others, such as compaction, do not disturb it.

| application | version |
|---|---|
| `ister/<cluster>/<topic>/<uid>` | the next offset |
| ... `/first` | the first offset |
| ... `/gaps` | how many gaps there are |
| ... `/gap/0/start`, ... `/gap/0/end` | the first of them |
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ister.errors import DependencyMissing, StoreUnavailable, TableMismatch
from ister.spark.jobs.lake.leftovers import parquet_files, remove
from ister.spark.jobs.lake.table import UNKNOWN, Coverage, DataFile, Origin

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable as Table

_ORIGIN: Final = "ister.origin"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class DeltaTable:
    has_partition_columns = True

    def __init__(self, location: str, table: Table) -> None:
        self._location = location
        self._table = table
        told = table.metadata().configuration.get(_ORIGIN)
        if told is None:
            raise TableMismatch(f"the Delta table {location} was not made by Ister")
        self._origin = Origin.from_text(told)
        self._application = f"ister/{self._origin.cluster}/{self._origin.topic}/{self._origin.uid}"

    @classmethod
    def open(cls, location: str) -> DeltaTable | None:
        library = _library()
        location = _full(location)
        if not library.DeltaTable.is_deltatable(location):
            return None
        return cls(location, library.DeltaTable(location))

    @classmethod
    def create(
        cls, location: str, origin: Origin, schema: pa.Schema, partition_by: Sequence[str]
    ) -> DeltaTable:
        """Make it, or open the one that somebody else made at this moment."""
        library = _library()
        location = _full(location)
        if "://" not in location:
            Path(location).mkdir(parents=True, exist_ok=True)
        try:
            library.DeltaTable.create(
                location,
                schema=schema,
                mode="error",
                partition_by=list(partition_by),
                configuration={_ORIGIN: origin.to_text()},
                raise_if_key_not_exists=False,
            )
        except library.exceptions.DeltaError:
            if not library.DeltaTable.is_deltatable(location):
                raise
        found = cls.open(location)
        assert found is not None
        return found

    @property
    def location(self) -> str:
        return self._location

    def origin(self) -> Origin:
        return self._origin

    def schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema(self._table.schema().to_arrow())

    def coverage(self) -> Coverage | None:
        self._table.update_incremental()
        return self._coverage()

    def _coverage(self) -> Coverage | None:
        behind = self._version("")
        if behind is None:
            return None
        gaps = tuple(
            (self._version(f"/gap/{place}/start") or 0, self._version(f"/gap/{place}/end") or 0)
            for place in range(self._version("/gaps") or 0)
        )
        return Coverage(self._version("/first") or 0, behind, gaps)

    def _version(self, of: str) -> int | None:
        found: int | None = self._table.transaction_version(self._application + of)
        return found

    def commit(self, files: Sequence[DataFile], before: Coverage | None, after: Coverage) -> bool:
        library = _library()
        if self.coverage() != before:
            return False
        versions = {"": after.next, "/first": after.first, "/gaps": len(after.gaps)}
        for place, (start, end) in enumerate(after.gaps):
            versions |= {f"/gap/{place}/start": start, f"/gap/{place}/end": end}
        properties = library.CommitProperties(
            custom_metadata={"ister": after.to_object()},
            app_transactions=[
                library.Transaction(self._application + of, version) for of, version in versions.items()
            ],
        )
        try:
            self._table.create_write_transaction(
                [_add_action(file) for file in files],
                "append",
                self._table.schema(),
                self._table.metadata().partition_columns,
                commit_properties=properties,
            )
        except library.exceptions.CommitFailedError as error:
            now = self.coverage()
            if now == before:
                raise StoreUnavailable(f"the Delta table {self._location} took no commit: {error}") from error
            return False
        return True

    def files(self) -> list[DataFile]:
        import pyarrow as pa

        self._table.update_incremental()
        partitions = self._table.metadata().partition_columns
        rows: list[dict[str, Any]] = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        return [
            DataFile(
                row["path"],
                row["size_bytes"],
                _or_unknown(row["num_records"]),
                _or_unknown(row.get("min.offset")),
                _or_unknown(row.get("max.offset")),
                partition=tuple((name, str(row[f"partition.{name}"])) for name in partitions),
            )
            for row in rows
        ]

    def compact(self, file_bytes: int) -> tuple[int, int] | None:
        self._table.update_incremental()
        done = self._table.optimize.compact(target_size=file_bytes)
        return done["numFilesRemoved"], done["numFilesAdded"]

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> bool:
        raise NotImplementedError("Delta's own library compacts")

    def expire(self, older_than_s: float) -> int:
        """The log of commits goes as far as the table's own `logRetentionDuration` lets it."""
        self._table.update_incremental()
        self._table.create_checkpoint()
        self._table.cleanup_metadata()
        return len(self._remove(older_than_s, also_unnamed=False))

    def vacuum(self, older_than_s: float) -> list[str]:
        return self._remove(older_than_s, also_unnamed=True)

    def _remove(self, older_than_s: float, *, also_unnamed: bool) -> list[str]:
        """What the log has as removed, and files of ours that it never had. Delta's own vacuum in full would
        remove all that it does not know: also another table that lies below this one."""
        there = list(parquet_files(self._location, self._origin))
        self._table.update_incremental()  # looked at last: what was committed meanwhile is kept
        hours = ceil(older_than_s / 3600)
        replaced = self._unneeded(hours, full=False)
        unneeded = self._unneeded(hours, full=True) if also_unnamed else set()
        going = [
            path
            for path, is_ours, age_s in there
            if path in replaced or (path in unneeded and is_ours and age_s > older_than_s)
        ]
        return remove(self._location, going)

    def _unneeded(self, hours: int, *, full: bool) -> set[str]:
        """By Delta's own rule for that age. Some of what its log has as removed is not there any more."""
        found = self._table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=full)
        return {path.removeprefix(self._location).lstrip("/") for path in found}


def _full(location: str) -> str:
    return location if "://" in location else str(Path(location).absolute())


def _or_unknown(number: int | None) -> int:
    return UNKNOWN if number is None else number


def _add_action(file: DataFile) -> Any:
    from deltalake.transaction import AddAction

    stats = {
        "numRecords": file.records,
        "minValues": {"offset": file.first_offset, "timestamp": _milliseconds(file.first_time_us)},
        # Cut to milliseconds as Delta has them, it must not become less than what is in the file.
        "maxValues": {"offset": file.last_offset, "timestamp": _milliseconds(file.last_time_us + 999)},
        "nullCount": {"offset": 0, "timestamp": 0},
    }
    return AddAction(
        file.path, file.size, dict(file.partition), int(time.time() * 1000), True, json.dumps(stats)
    )


def _milliseconds(time_us: int) -> str:
    moment = _EPOCH + timedelta(microseconds=time_us)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03}Z"


def _library() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError as error:
        raise DependencyMissing(
            "Delta tables need the package deltalake", hint="pip install 'ister[lake]'"
        ) from error
    return deltalake
