"""Opening a table by what a person says of it: a format and a path, or a catalog and a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ister.errors import BadRequest, ConfigError, ObjectNotFound
from ister.spark.jobs.lake.folders import open_folder
from ister.spark.jobs.lake.table import DEAD_LETTERS, PARTITION_COLUMNS, LakeTable, Origin, check_same
from ister.spark.jobs.lake.told import ToldTable, told

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS: Final = ("parquet", "delta", "iceberg")


@dataclass(frozen=True)
class Target:
    """Which table."""

    to: str
    path: str | None = None
    catalog: str | None = None
    catalog_properties: Mapping[str, str] = field(default_factory=dict)
    table: str | None = None
    """Its name in the catalog; else that of the topic."""

    def check(self) -> None:
        if self.to not in FORMATS:
            raise ConfigError(f"there is no format {self.to!r}", hint=f"Choose {', '.join(FORMATS)}.")
        if self.path is None and (self.to != "iceberg" or self.catalog is None):
            raise ConfigError(
                f"a {self.to} table needs a path", hint="Give --path: where the table is to be."
            )
        if self.to != "iceberg" and (self.catalog or self.table or self.catalog_properties):
            raise ConfigError(f"a {self.to} table has no catalog", hint="Leave --catalog and --table out.")
        if self.path is not None and "://" not in self.path:
            path = Path(self.path).absolute()
            there = next(each for each in (path, *path.parents) if each.exists())
            if not there.is_dir():
                raise ConfigError(
                    f"{there} is a file, and a table is a directory", hint="Give another --path."
                )

    def name_of(self, origin: Origin) -> str:
        """As a person would name it; of Iceberg, the name in the catalog."""
        suffix = "_dead_letters" if origin.holds == DEAD_LETTERS else ""
        if self.to == "iceberg":
            return (self.table or origin.topic.replace("/", ".")) + suffix
        assert self.path is not None
        return self.path.rstrip("/") + suffix


def open_table(target: Target, origin: Origin, schema: pa.Schema) -> LakeTable:
    """The table as it is, or a new one of this origin. Raises if it is another topic's, or otherwise made."""
    target.check()
    name = target.name_of(origin)
    columns = PARTITION_COLUMNS[origin.partition_by]
    with told(name):
        found = _find(target, name)
        if found is None:
            found = _create(target, name, origin, schema, columns)
    check_same(name, found.origin(), origin)
    return ToldTable(name, found)


def find_table(target: Target, topic: str) -> LakeTable:
    """A table that is there; raises if there is none."""
    target.check()
    name = target.name_of(Origin("", topic, 0))
    with told(name):
        found = _find(target, name)
    if found is None:
        raise ObjectNotFound(
            f"there is no {target.to} table {name}",
            hint="`ister pipeline tier` makes one; check --path and --to.",
        )
    return ToldTable(name, found)


def format_at(path: str) -> str:
    """Which format the table at a path has; raises if there is none."""
    if path and "://" not in path:
        for name, to in (("_ister", "parquet"), ("_delta_log", "delta"), ("catalog.db", "iceberg")):
            if Path(path, name).exists():
                return to
        raise ObjectNotFound(
            f"there is no table at {path}", hint="`ister pipeline tier` makes one; check the path."
        )
    return "parquet" if open_folder(path).read("_ister/table.json") is not None else "delta"


def find_dead_letters(target: Target, origin: Origin) -> LakeTable | None:
    name = target.name_of(replace(origin, holds=DEAD_LETTERS))
    with told(name):
        found = _find(target, name)
    return None if found is None else ToldTable(name, found)


def _find(target: Target, name: str) -> LakeTable | None:
    if target.to == "iceberg":
        from ister.spark.jobs.lake.iceberg import IcebergTable, open_catalog

        return IcebergTable.open(open_catalog(target.path, target.catalog, target.catalog_properties), name)
    if target.to == "delta":
        from ister.spark.jobs.lake.delta import DeltaTable

        return DeltaTable.open(name)
    from ister.spark.jobs.lake.parquet import ParquetTable

    return ParquetTable.open(name)


def _create(
    target: Target, name: str, origin: Origin, schema: pa.Schema, columns: Sequence[str]
) -> LakeTable:
    if target.to == "iceberg":
        from ister.spark.jobs.lake.iceberg import IcebergTable, open_catalog

        catalog = open_catalog(target.path, target.catalog, target.catalog_properties)
        return IcebergTable.create(catalog, name, origin, schema)
    full = with_partition_columns(schema, columns)
    if target.to == "delta":
        from ister.spark.jobs.lake.delta import DeltaTable

        return DeltaTable.create(name, origin, full, columns)
    from ister.spark.jobs.lake.parquet import ParquetTable

    return ParquetTable.create(name, origin, full, columns)


def with_partition_columns(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    import pyarrow as pa

    kinds = {"date": pa.date32(), "hour": pa.int32()}
    for name in columns:
        if name in schema.names:
            raise BadRequest(
                f"the values have a column {name!r}, by which the table is partitioned too",
                hint="Choose another --partition-by, or give --nested to put the values' columns into one.",
            )
        schema = schema.append(pa.field(name, kinds[name]))
    return schema
