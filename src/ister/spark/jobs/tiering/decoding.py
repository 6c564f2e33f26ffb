"""Values as typed columns: JSON a batch at a time, Avro record by record; what does not parse is set aside.

JSON: the values of a batch are joined and parsed by Arrow in one go. That gives a row for each value only if
each has exactly one object; so each must begin with `{` and end with `}`. No object can then reach from one
value into the next: after a `}` within an object there is never a `{`, and within a string no newline. A
batch that does not parse is halved until those are found that don't.

A record without a value has nulls in all columns. Fields that the schema does not name are left out.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ister.errors import ConfigError, DependencyMissing

KINDS: Final = ("json", "avro")
_ERROR_CHARACTERS: Final = 300
_BLOCK_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True)
class Decoding:
    """How values become columns."""

    kind: str
    text: str
    """The schema as it was given: Avro needs it to read, and the table to remember."""
    columns: pa.Schema
    nested: bool = False


class Decoded(NamedTuple):
    good: pa.Array
    """Rows that parsed, by their places."""
    columns: pa.StructArray
    """Their columns, in that order."""
    bad: list[int]
    errors: list[str]
    """Why not, for each of `bad`."""


def make_decoding(kind: str, text: str, nested: bool = False) -> Decoding:
    """Of what a person gave. JSON takes Spark's DDL (`region string, amount bigint`) or Spark's schema as
    JSON, Avro the schema of a record."""
    if kind not in KINDS:
        raise ConfigError(f"there is no decoding {kind!r}", hint=f"Choose {' or '.join(KINDS)}.")
    try:
        columns = _json_columns(text) if kind == "json" else _avro_columns(text)
    except (DependencyMissing, ConfigError):
        raise
    except Exception as error:
        hint = "For json: `name string, amount bigint`; for avro: an .avsc file with a record."
        raise ConfigError(f"the schema for {kind} can't be read: {error}", hint=hint) from error
    if not len(columns):
        raise ConfigError("the schema has no fields", hint="Name at least one.")
    return Decoding(kind, text, columns, nested)


def decode_values(decoding: Decoding, values: pa.Array) -> Decoded:
    decode = _decode_json if decoding.kind == "json" else _decode_avro
    return decode(decoding, values)


# JSON.


def _json_columns(text: str) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    given = (
        StructType.fromJson(json.loads(text)) if text.lstrip().startswith("{") else StructType.fromDDL(text)
    )
    if not isinstance(given, StructType):
        raise ConfigError("the schema is no row", hint="Give it as `name string, amount bigint`.")
    return to_arrow_schema(given, timezone="UTC")


def _decode_json(decoding: Decoding, values: pa.Array) -> Decoded:
    there = pc.indices_nonzero(pc.is_valid(values)).cast(pa.int64())
    bad: list[int] = []
    errors: list[str] = []
    parts = _parse(decoding.columns, values, there, bad, errors)
    without = pc.indices_nonzero(pc.is_null(values)).cast(pa.int64())
    if len(without):
        empty = pa.nulls(len(without), pa.struct(list(decoding.columns)))
        parts.append((without, _filled(empty, decoding.columns)))
    return _joined(decoding.columns, parts, bad, errors)


Part = tuple[pa.Array, pa.StructArray]


def _parse(
    columns: pa.Schema, values: pa.Array, rows: pa.Array, bad: list[int], errors: list[str]
) -> list[Part]:
    """The rows that parse, in runs; the others are added to `bad`."""
    if not len(rows):
        return []
    error = "this is no JSON object"
    taken = values.take(rows)
    if _are_objects(taken):
        try:
            return [(rows, _read_json(columns, taken))]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as reason:
            error = str(reason)
    if len(rows) == 1:
        bad.append(rows[0].as_py())
        errors.append(error[:_ERROR_CHARACTERS])
        return []
    half = len(rows) // 2
    return [
        *_parse(columns, values, rows.slice(0, half), bad, errors),
        *_parse(columns, values, rows.slice(half), bad, errors),
    ]


def _are_objects(values: pa.Array) -> bool:
    for each in (values, None):
        looked_at = _trimmed(values) if each is None else each
        first = pc.equal(pc.binary_slice(looked_at, 0, 1), b"{")
        last = pc.equal(pc.binary_slice(looked_at, -1, None), b"}")
        if pc.all(pc.and_(first, last)).as_py():
            return True
    return False


def _trimmed(values: pa.Array) -> pa.Array:
    """Without white space at the ends. Bytes that are no text are none the worse for it."""
    text = pa.Array.from_buffers(pa.string(), len(values), values.buffers(), offset=values.offset)
    trimmed = pc.ascii_trim(text, characters=" \t\r\n")
    return pa.Array.from_buffers(pa.binary(), len(trimmed), trimmed.buffers(), offset=trimmed.offset)


def _read_json(columns: pa.Schema, values: pa.Array) -> pa.StructArray:
    from pyarrow import json as arrow_json

    joined = b"\n".join(values.to_pylist())
    table = arrow_json.read_json(
        io.BytesIO(joined),
        # One block: where another one begins, an object could be cut.
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=max(_BLOCK_BYTES, len(joined) + 1)),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=columns, newlines_in_values=True, unexpected_field_behavior="ignore"
        ),
    )
    if table.num_rows != len(values):
        raise ValueError(f"{table.num_rows} objects in {len(values)} values")
    table = table.select(columns.names).cast(columns).combine_chunks()
    table.validate(full=True)
    batch = table.to_batches()[0]
    return pa.StructArray.from_arrays(batch.columns, fields=list(columns))


# Avro.


def _avro_columns(text: str) -> pa.Schema:
    schema = json.loads(text)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConfigError(
            "the Avro schema is no record", hint='It must be {"type": "record", "fields": ...}.'
        )
    return pa.schema(list(_avro_type(schema, {})))


_AVRO_PRIMITIVES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "null": pa.null(),
}
_AVRO_LOGICAL: Final = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("string", "uuid"): pa.string(),
}


def _avro_type(schema: Any, named: dict[str, pa.DataType]) -> pa.DataType:
    if isinstance(schema, str):
        if schema in named:
            return named[schema]
        if schema not in _AVRO_PRIMITIVES:
            raise ConfigError(f"the Avro type {schema!r} is not known here", hint="Use Avro's own types.")
        return _AVRO_PRIMITIVES[schema]
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise ConfigError(
                f"the Avro union {schema} is of several types",
                hint="A column has one type: only unions of one type and null can be columns.",
            )
        return _avro_type(others[0], named)
    kind = schema["type"]
    if kind == "record":
        made = pa.struct(
            [pa.field(each["name"], _avro_type(each["type"], named)) for each in schema["fields"]]
        )
    elif kind == "enum":
        made = pa.string()
    elif kind == "array":
        return pa.list_(_avro_type(schema["items"], named))
    elif kind == "map":
        return pa.map_(pa.string(), _avro_type(schema["values"], named))
    elif schema.get("logicalType") == "decimal":
        made = pa.decimal128(schema["precision"], schema.get("scale", 0))
    elif kind == "fixed":
        made = pa.binary()
    else:
        return _AVRO_LOGICAL.get((kind, schema.get("logicalType"))) or _avro_type(kind, named)
    if "name" in schema:
        named[schema["name"]] = made
    return made


@lru_cache(8)
def _avro_parsed(text: str) -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise DependencyMissing(
            "Avro values need the package fastavro", hint="pip install 'ister[lake]'"
        ) from error
    return fastavro.parse_schema(json.loads(text))


def _decode_avro(decoding: Decoding, values: pa.Array) -> Decoded:
    import fastavro

    schema = _avro_parsed(decoding.text)
    names = decoding.columns.names
    rows: list[dict[str, Any] | None] = []
    good: list[int] = []
    bad: list[int] = []
    errors: list[str] = []
    for place, value in enumerate(values.to_pylist()):
        if value is None:
            rows.append(dict.fromkeys(names))
            good.append(place)
            continue
        data = io.BytesIO(value)
        try:
            found = fastavro.schemaless_reader(data, schema, None)
            if data.tell() != len(value):
                raise ValueError(f"{len(value) - data.tell()} bytes are left behind the record")
        except Exception as error:  # whatever fastavro makes of bytes that are none of this schema
            bad.append(place)
            errors.append(
                (f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)[
                    :_ERROR_CHARACTERS
                ]
            )
            continue
        rows.append(found)  # type: ignore[arg-type]
        good.append(place)
    return Decoded(pa.array(good, pa.int64()), pa.array(rows, pa.struct(list(decoding.columns))), bad, errors)


# Joining what was parsed in parts.


def _filled(empty: pa.StructArray, columns: pa.Schema) -> pa.StructArray:
    """Rows whose columns are null, and not rows that are null."""
    return pa.StructArray.from_arrays(
        [pa.nulls(len(empty), field.type) for field in columns], fields=list(columns)
    )


def _joined(columns: pa.Schema, parts: Sequence[Part], bad: list[int], errors: list[str]) -> Decoded:
    if len(parts) == 1:
        return Decoded(*parts[0], bad, errors)
    if not parts:
        return Decoded(pa.array([], pa.int64()), pa.array([], pa.struct(list(columns))), bad, errors)
    rows = pa.concat_arrays([each for each, _ in parts])
    made = pa.concat_arrays([each for _, each in parts])
    order = pc.sort_indices(rows)
    return Decoded(rows.take(order), made.take(order), bad, errors)
