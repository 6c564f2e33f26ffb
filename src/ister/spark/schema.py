"""The columns of a topic as a table, which are the Kafka connector's, and what may be written to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ister.errors import BadRequest
from ister.settings import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

EVENT_TIME: Final = 0
"""`timestampType` where the producer gave the time."""
APPEND_TIME: Final = 1
"""`timestampType` where the time is that of the append."""

HEADERS_TYPE: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
COLUMNS: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS_TYPE,
}
_MAY_BE_NULL: Final = ("key", "value", "headers")
_LEFT_OUT: Final = ("partition", "offset", "timestamp", "timestampType")


def table_schema(include_headers: bool) -> StructType:
    """All columns nullable, as the Kafka connector has them."""
    return StructType(
        [StructField(name, kind) for name, kind in COLUMNS.items() if include_headers or name != "headers"]
    )


def check_read_schema(schema: StructType) -> None:
    """A schema given by the user is a choice of our columns; it can't rename or convert them."""
    names = [field.name for field in schema]
    if not names or len(set(names)) != len(names):
        raise BadRequest(f"the schema has columns {names}", hint="Name at least one column, and none twice.")
    for field in schema:
        kind = COLUMNS.get(field.name)
        if kind is None:
            raise BadRequest(
                f"there is no column {field.name!r}{did_you_mean(field.name, COLUMNS)}",
                hint=f"Choose from {', '.join(COLUMNS)}.",
            )
        if field.dataType != kind:
            raise BadRequest(
                f"column {field.name} is {kind.simpleString()}, not {field.dataType.simpleString()}",
                hint="Read it as it is, and cast it in the query.",
            )
        if field.name in _MAY_BE_NULL and not field.nullable:
            raise BadRequest(f"column {field.name} may be null", hint="Leave out its NOT NULL.")


def arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark compares the first batch of each task with, and reads the later ones by."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def check_write_schema(schema: StructType, topic_is_given: bool) -> tuple[str, ...]:
    """Raises unless the rows can become records; returns the columns that will be left out."""
    types = {field.name: field.dataType for field in schema}
    if len(types) != len(schema):
        raise BadRequest(f"a column is named twice in {schema.names}", hint="Leave one of them.")
    if "value" not in types:
        raise BadRequest(
            f"there is no column `value` among {schema.names}",
            hint="Make one, for example with to_json(struct('*')).alias('value').",
        )
    _check_type(types, "value", (BinaryType, StringType), "string or binary")
    _check_type(types, "key", (BinaryType, StringType), "string or binary")
    _check_type(types, "topic", (StringType,), "string")
    if "headers" in types and not _are_headers(types["headers"]):
        wanted = HEADERS_TYPE.simpleString()
        raise BadRequest(
            f"column headers is {types['headers'].simpleString()}, not {wanted}", hint=f"Cast it to {wanted}."
        )
    if "topic" not in types and not topic_is_given:
        raise BadRequest(
            "neither option topic nor a column `topic` is given", hint="Say .option('topic', 'name')."
        )
    return _left_out(schema.names)


def _check_type(
    types: dict[str, DataType], name: str, allowed: tuple[type[DataType], ...], wanted: str
) -> None:
    if name in types and not isinstance(types[name], allowed):
        raise BadRequest(
            f"column {name} is {types[name].simpleString()}, not {wanted}",
            hint=f"Cast it in the query, for example CAST({name} AS STRING).",
        )


def _are_headers(kind: DataType) -> bool:
    """The right names and types; whether nulls are allowed in there is no matter of the type."""
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    pairs = [(field.name, type(field.dataType)) for field in kind.elementType]
    return pairs == [("key", StringType), ("value", BinaryType)]


def _left_out(names: Sequence[str]) -> tuple[str, ...]:
    """What reading a topic gave and writing has no use for; anything else is somebody's data."""
    written = ("key", "value", "headers", "topic")
    for name in names:
        if name not in written and name not in _LEFT_OUT:
            raise BadRequest(
                f"column {name!r} has no place in a record{did_you_mean(name, written)}",
                hint="Select key, value, headers and topic; put the rest into value or headers.",
            )
    return tuple(name for name in names if name in _LEFT_OUT)
