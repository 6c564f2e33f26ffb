"""What a tier job writes, decided on the driver and carried to every task: columns, places, decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from ister.errors import ConfigError
from ister.spark.schema import COLUMNS, arrow_schema

if TYPE_CHECKING:
    from ister.spark.jobs.tiering.decoding import Decoding

TABLE_COLUMNS: Final = ("offset", "timestamp", "timestampType", "key", "value", "headers")
"""Of the source; `topic` and `partition` would say the same in each row of a table that is one topic's."""


def log_schema() -> pa.Schema:
    """The columns of undecoded records."""
    return arrow_schema(StructType([StructField(name, COLUMNS[name]) for name in TABLE_COLUMNS]))


def dead_letter_schema() -> pa.Schema:
    """What could not be decoded is kept as it came, with the reason."""
    return log_schema().append(pa.field("error", pa.string()))


@dataclass(frozen=True)
class WritePlan:
    """The part of a tier job that each of its tasks needs."""

    bootstrap: str
    location: str
    schema: pa.Schema
    """Of the files, without the columns that are in their paths."""
    partition_by: str
    file_bytes: int
    skip_missing: bool
    decoding: Decoding | None = None
    dead_location: str = ""
    dead_from: int = 0
    """The dead letters before this offset are in their table already."""


def table_schema(decoding: Decoding | None) -> pa.Schema:
    """The columns of the table: the log's, with the decoded ones in the place of `value`."""
    schema = log_schema()
    if decoding is None:
        return schema
    place = schema.get_field_index("value")
    if decoding.nested:
        return schema.set(place, pa.field("value", pa.struct(list(decoding.columns))))
    schema = schema.remove(place)
    taken = [field.name for field in decoding.columns if field.name in (*schema.names, "value")]
    if taken:
        raise ConfigError(
            f"the values have columns that the log has too: {', '.join(taken)}",
            hint="Give --nested: all columns of the values are then in one column `value`.",
        )
    for at, field in enumerate(decoding.columns):
        schema = schema.insert(place + at, field)
    return schema
