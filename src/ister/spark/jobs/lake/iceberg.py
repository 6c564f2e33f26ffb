"""Iceberg tables, by `pyiceberg`, in any of its catalogs; sqlite under the table's path when none is named.

How far the table has come is in a property of the table, set in the very commit that adds the files. The
commit asserts the snapshot that it was made on, so that of two jobs one fails. `pyiceberg` would by itself
do a commit that failed so once more on top of the other one, and the files of both would be in the table: it
is told not to.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ister.errors import ConfigError, DependencyMissing, StoreUnavailable, TableMismatch
from ister.spark.jobs.lake.leftovers import old_files, remove
from ister.spark.jobs.lake.table import UNKNOWN, Coverage, DataFile, Origin
from ister.spark.jobs.lake.told import shown

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_ORIGIN: Final = "ister.origin"
_COVERS: Final = "ister.covers"
_RETRIES: Final = "commit.retry.num-retries"
_ATTEMPTS: Final = 5
_TRANSFORMS: Final = {"date": "day", "hour": "hour"}


class IcebergTable:
    has_partition_columns = False

    def __init__(self, catalog: Catalog, name: str, table: Table) -> None:
        self._catalog = catalog
        self._name = name
        self._table = table
        told = table.properties.get(_ORIGIN)
        if told is None:
            raise TableMismatch(f"the Iceberg table {name} was not made by Ister")
        self._origin = Origin.from_text(told)

    @classmethod
    def open(cls, catalog: Catalog, name: str) -> IcebergTable | None:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return cls(catalog, name, catalog.load_table(name))
        except NoSuchTableError:
            return None

    @classmethod
    def create(cls, catalog: Catalog, name: str, origin: Origin, schema: pa.Schema) -> IcebergTable:
        """Make it, or open the one that somebody else made at this moment."""
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        try:
            if "." in name:
                _make_namespace(catalog, name.rpartition(".")[0])
            with catalog.create_table_transaction(
                name, schema, properties={_ORIGIN: origin.to_text()}
            ) as making:
                transform = _TRANSFORMS.get(origin.partition_by)
                if transform is not None:
                    with making.update_spec() as spec:
                        spec.add_field("timestamp", transform, f"timestamp_{transform}")
        except (TableAlreadyExistsError, CommitFailedException):
            found = cls.open(catalog, name)
            if found is None:
                raise
            return found
        return cls(catalog, name, catalog.load_table(name))

    @property
    def location(self) -> str:
        return f"{self._table.location().removeprefix('file://').rstrip('/')}/data"

    def origin(self) -> Origin:
        return self._origin

    def schema(self) -> pa.Schema:
        return self._table.schema().as_arrow()

    def coverage(self) -> Coverage | None:
        self._table.refresh()
        return self._coverage()

    def _coverage(self) -> Coverage | None:
        told = self._table.properties.get(_COVERS)
        return None if told is None else Coverage.from_object(json.loads(told))

    def commit(self, files: Sequence[DataFile], before: Coverage | None, after: Coverage) -> bool:
        from pyiceberg.exceptions import CommitFailedException

        for _ in range(_ATTEMPTS):
            if self.coverage() != before:
                return False
            try:
                self._commit_once(files, after)
            except CommitFailedException as error:
                refused = error
            else:
                return True
        # Somebody else's commit, such as compaction, would have been in the way once or twice.
        if self.coverage() != before:
            return False
        raise StoreUnavailable(
            f"the Iceberg table {self._name} took no commit in {_ATTEMPTS} attempts: {refused}"
        ) from refused

    def _commit_once(self, files: Sequence[DataFile], after: Coverage) -> None:
        """A snapshot also where there are no files: to set the property alone asserts nothing, and would take
        back what another job has committed at this moment."""
        covers = json.dumps(after.to_object())
        # In memory alone: others who write to the table may go on repeating their commits.
        self._table.metadata.properties[_RETRIES] = "0"
        with self._table.transaction() as commit:
            commit.set_properties({_COVERS: covers})
            commit.add_files(
                [f"{self.location}/{file.path}" for file in files],
                snapshot_properties={_COVERS: covers},
                check_duplicate_files=False,  # their names are of this attempt, and of nobody else
            )

    def files(self) -> list[DataFile]:
        self._table.refresh()
        rows: list[dict[str, Any]] = self._table.inspect.files().to_pylist()
        return [self._file(row) for row in rows if row["content"] == 0]

    def _file(self, row: dict[str, Any]) -> DataFile:
        path = row["file_path"].removeprefix("file://").removeprefix(self.location).lstrip("/")
        bounds = (row.get("readable_metrics") or {}).get("offset") or {}
        low, high = bounds.get("lower_bound"), bounds.get("upper_bound")
        return DataFile(
            path,
            row["file_size_in_bytes"],
            row["record_count"],
            UNKNOWN if low is None else low,
            UNKNOWN if high is None else high,
        )

    def compact(self, file_bytes: int) -> None:
        """`pyiceberg` has no rewriting of files of its own."""
        return

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> bool:
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.io.pyarrow import parquet_files_to_data_files

        self._table.refresh()
        files = [task.file for task in self._table.scan().plan_files()]
        there = {file.file_path.removeprefix("file://"): file for file in files}
        going = [there.get(f"{self.location}/{file.path}") for file in old]
        if None in going:
            return False
        coming = [f"{self.location}/{file.path}" for file in new]
        covers = {_COVERS: self._table.properties[_COVERS]}
        self._table.metadata.properties[_RETRIES] = "0"
        try:
            with self._table.transaction() as commit:
                made = list(parquet_files_to_data_files(self._table.io, commit.table_metadata, iter(coming)))
                with commit.update_snapshot(snapshot_properties=covers).overwrite() as change:
                    for gone in going:
                        assert gone is not None
                        change.delete_data_file(gone)
                    for come in made:
                        change.append_data_file(come)
        except CommitFailedException:
            return False
        return True

    def expire(self, older_than_s: float) -> int:
        self._table.refresh()
        before = len(self._table.snapshots())
        moment = datetime.now(UTC) - timedelta(seconds=older_than_s)
        self._table.maintenance.expire_snapshots().older_than(moment.replace(tzinfo=None)).commit()
        self._table.refresh()
        return before - len(self._table.snapshots())

    def vacuum(self, older_than_s: float) -> list[str]:
        """What no snapshot names."""
        old = list(old_files(self.location, self._origin, older_than_s))
        self._table.refresh()  # looked at last: what was committed meanwhile is kept
        named = {path.removeprefix("file://") for path in self._all_files()}
        return remove(self.location, [each for each in old if f"{self.location}/{each}" not in named])

    def _all_files(self) -> list[str]:
        found: list[str] = self._table.inspect.all_files().column("file_path").to_pylist()
        return found


def open_catalog(path: str | None, name: str | None, properties: Mapping[str, str]) -> Catalog:
    """The catalog of that name, as pyiceberg knows it by its own configuration and these properties."""
    # It would warn of each column that has no bounds, with each file.
    logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as error:
        raise DependencyMissing(
            "Iceberg tables need the package pyiceberg", hint="pip install 'ister[lake]'"
        ) from error
    if name is not None:
        try:
            return load_catalog(name, **{**_store_of_environment(), **properties})
        except ValueError as error:
            raise ConfigError(
                f"the catalog {name!r} can't be opened: {shown(error)}",
                hint="Give --catalog-property type=... and uri=..., or describe it in ~/.pyiceberg.yaml.",
            ) from None  # what it says may have a password
    if path is None:
        raise ConfigError(
            "neither a path nor a catalog is given", hint="Give --path DIRECTORY, or --catalog NAME."
        )
    if "://" in path.removeprefix("file://"):
        raise ConfigError(
            f"an Iceberg table at {path} needs a catalog: a bucket holds its files, and no catalog",
            hint="Give --catalog NAME --catalog-property uri=... --catalog-property warehouse=s3://...",
        )
    root = Path(path.removeprefix("file://")).absolute()
    root.mkdir(parents=True, exist_ok=True)
    given = {
        "type": "sql",
        "uri": f"sqlite:///{root}/catalog.db",
        "warehouse": f"file://{root}",
        **properties,
    }
    try:
        return load_catalog("ister", **given)
    except Exception:  # of a new one, another job may have made the tables at this moment
        return load_catalog("ister", **given)


def _store_of_environment() -> dict[str, str]:
    """A server that speaks S3, which other libraries find by the environment and this one does not. Never the
    credentials: properties are shown, and those it finds by itself."""
    given = {"s3.endpoint": os.environ.get("AWS_ENDPOINT_URL"), "s3.region": os.environ.get("AWS_REGION")}
    return {name: value for name, value in given.items() if value}


def _make_namespace(catalog: Catalog, name: str) -> None:
    try:
        catalog.create_namespace_if_not_exists(name)
    except Exception:  # the database's own, if another job was faster by a moment
        if not catalog.namespace_exists(name):
            raise
