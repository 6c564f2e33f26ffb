"""Values as columns: what parses is typed, what does not is set aside with its reason, and nothing moves."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.errors import ConfigError
from ister.spark.jobs.tiering.decoding import Decoding, decode_values
from ister.spark.jobs.tiering.plan import table_schema

pytestmark = pytest.mark.spark

COLUMNS = pa.schema([("n", pa.int64()), ("w", pa.string())])
JSON = Decoding("json", "n bigint, w string", COLUMNS)
AVRO_TEXT = json.dumps(
    {
        "type": "record",
        "name": "order",
        "fields": [
            {"name": "n", "type": "long"},
            {"name": "w", "type": ["null", "string"]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
        ],
    }
)


def decoded(values: list[bytes | None], by: Decoding = JSON) -> tuple[dict[int, Any], dict[int, str]]:
    """Rows and errors by the places of the values."""
    found = decode_values(by, pa.array(values, pa.binary()))
    rows = dict(zip(found.good.to_pylist(), found.columns.to_pylist(), strict=True))
    return rows, dict(zip(found.bad, found.errors, strict=True))


def test_objects_become_columns() -> None:
    rows, bad = decoded([b'{"n": 1, "w": "a"}', b' {"w": "b", "other": [1]}\n', b'{\n "n": 3\n}'])
    assert rows == {0: {"n": 1, "w": "a"}, 1: {"n": None, "w": "b"}, 2: {"n": 3, "w": None}}
    assert bad == {}


def test_a_record_without_a_value_has_nulls() -> None:
    rows, bad = decoded([None, b'{"n": 1}', None])
    assert rows == {0: {"n": None, "w": None}, 1: {"n": 1, "w": None}, 2: {"n": None, "w": None}}
    assert bad == {}


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"  ",
        b"no json",
        b"[1]",
        b"1",
        b"null",
        b'{"n": 1',
        b'{"n": "many"}',
        b'{"n": 1}{"n": 2}',
        b'{"n": 1}\n{"n": 2}',
        b'{"w": "\xff"}',
        b'{"n": 99999999999999999999999}',
    ],
)
def test_what_is_no_such_object_is_set_aside(value: bytes) -> None:
    rows, bad = decoded([b'{"n": 0}', value, b'{"n": 2}'])
    assert {place: row["n"] for place, row in rows.items()} == {0: 0, 2: 2}
    assert list(bad) == [1]
    assert bad[1]


def test_an_object_in_two_values_is_no_object_in_either() -> None:
    """Joined they would parse, and with one that has two objects the number of rows would be right."""
    rows, bad = decoded([b'{"n":', b"1}", b'{"n": 2}{"n": 3}', b'{"w": {}', b'"x": 1}'])
    assert rows == {}
    assert sorted(bad) == [0, 1, 2, 3, 4]


@given(
    st.lists(
        st.one_of(
            st.none(),
            st.binary(max_size=12),
            st.integers(-(1 << 62), 1 << 62).map(lambda n: b'{"n": %d}' % n),
            st.text(max_size=8).map(lambda w: json.dumps({"w": w}).encode()),
            st.sampled_from([b"{", b"}", b"{}", b'{"n":1}{"n":2}', b'{"n":', b"1}", b"\n", b"{} "]),
        ),
        max_size=20,
    )
)
def test_each_value_is_decoded_as_if_it_were_alone(values: list[bytes | None]) -> None:
    rows, bad = decoded(values)
    assert sorted([*rows, *bad]) == list(range(len(values)))
    for place, value in enumerate(values):
        alone_rows, alone_bad = decoded([value])
        assert (place in bad) == (0 in alone_bad)
        if place in rows:
            assert rows[place] == alone_rows[0]


def avro(record: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(AVRO_TEXT)), record)
    return out.getvalue()


def test_avro_records_become_columns() -> None:
    from ister.spark.jobs.tiering.decoding import make_decoding

    by = make_decoding("avro", AVRO_TEXT)
    assert by.columns.types == [pa.int64(), pa.string(), pa.timestamp("us", "UTC"), pa.list_(pa.string())]
    good = avro({"n": 7, "w": "x", "at": 1_763_510_400_000, "tags": ["a", "b"]})
    rows, bad = decoded([good, good + b"\0", b"\x02", None], by)
    assert list(rows) == [0, 3]
    assert (rows[0]["n"], rows[0]["w"], rows[0]["tags"]) == (7, "x", ["a", "b"])
    assert rows[0]["at"].isoformat() == "2025-11-19T00:00:00+00:00"
    assert rows[3] == {"n": None, "w": None, "at": None, "tags": None}
    assert sorted(bad) == [1, 2]
    assert "1 bytes are left" in bad[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("not json", "can't be read"),
        ('{"type": "string"}', "is no record"),
        ('{"type": "record", "name": "r", "fields": []}', "no fields"),
        (
            '{"type": "record", "name": "r", "fields": [{"name": "u", "type": ["int", "string"]}]}',
            "several types",
        ),
    ],
)
def test_a_schema_that_makes_no_columns_is_refused(text: str, said: str) -> None:
    from ister.spark.jobs.tiering.decoding import make_decoding

    with pytest.raises(ConfigError, match=said):
        make_decoding("avro", text)


def test_a_column_that_the_log_has_too_asks_for_nested_ones() -> None:
    taken = Decoding("json", "", pa.schema([("offset", pa.int64())]))
    with pytest.raises(ConfigError, match="that the log has too: offset") as caught:
        table_schema(taken)
    assert "--nested" in caught.value.hint
    nested = table_schema(Decoding("json", "", taken.columns, nested=True))
    assert nested.field("value").type == pa.struct([("offset", pa.int64())])
