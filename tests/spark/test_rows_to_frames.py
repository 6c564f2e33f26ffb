"""Arrow batches cut and joined into frames of bounded size, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister import sync
from ister.errors import BadRequest, InvalidTopicName
from ister.spark.sink.appending import append_rows
from ister.spark.sink.rows import FRAME_BYTES, FRAME_RECORDS, bounded, by_topic


def batch(values: list[bytes], topics: list[str | None] | None = None) -> pa.RecordBatch:
    columns = {"value": pa.array(values, pa.binary())}
    if topics is not None:
        columns["topic"] = pa.array(topics, pa.string())
    return pa.RecordBatch.from_pydict(columns)


@given(st.lists(st.sampled_from("abc")))
def test_each_row_goes_to_its_topic_once_and_in_order(topics: list[str]) -> None:
    rows = batch([b"%d" % row for row in range(len(topics))], list(topics))
    found: dict[str, list[bytes]] = {}
    for topic, part in by_topic(rows, None):
        assert topic not in found
        found[topic] = part.column("value").to_pylist()
        assert part.schema.names == ["value"]
    expected = {
        name: [b"%d" % row for row, topic in enumerate(topics) if topic == name] for name in set(topics)
    }
    assert {name: values for name, values in found.items() if values} == expected


def test_a_row_without_a_topic_is_refused() -> None:
    with pytest.raises(BadRequest, match="1 of 2 rows have no topic"):
        list(by_topic(batch([b"a", b"b"], ["t", None]), None))


@pytest.mark.parametrize("sizes", [[10] * 25_000, [FRAME_BYTES // 3] * 10, [5 * FRAME_BYTES, 1, 1], []])
def test_parts_are_bounded_and_a_larger_row_goes_alone(sizes: list[int]) -> None:
    rows = batch([b"x" * size for size in sizes])
    parts = list(bounded(rows))
    assert [len(value) for part in parts for value in part.column("value").to_pylist()] == sizes
    for part in parts:
        assert part.num_rows == 1 or (part.num_rows <= FRAME_RECORDS and part.nbytes <= FRAME_BYTES)


def test_small_batches_become_one_frame_for_each_topic(bootstrap: str, log: sync.Log) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(100):
            yield batch([b"%d" % number] * 2, ["joined-a", "joined-b"])

    counts = append_rows(bootstrap, None, batches())
    assert counts == {"default/joined-a": 100, "default/joined-b": 100}
    for topic in ("joined-a", "joined-b"):
        (frame,) = log.read(topic).frames()
        assert [record.value for record in frame.records()] == [b"%d" % number for number in range(100)]
        assert frame.header.producer_id != 0  # A5: a repeated request is recognised


def test_no_rows_need_no_broker() -> None:
    assert append_rows("127.0.0.1:1", "t", iter([batch([])])) == {}


def test_a_name_that_is_no_topic_fails_the_task(bootstrap: str) -> None:
    with pytest.raises(InvalidTopicName):
        append_rows(bootstrap, None, iter([batch([b"x"], ["no:topic"])]))


def test_rows_arrive_once_although_the_broker_is_killed_meanwhile(own_broker: Any) -> None:
    """A5: what was on its way is sent again over a new connection, and recognised if it had arrived."""

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(40):
            if number in (10, 25):
                own_broker.kill()
                own_broker.start()
            yield batch([b"%d" % (number * FRAME_RECORDS + row) for row in range(FRAME_RECORDS)])

    assert append_rows(own_broker.address, "killed", batches()) == {"default/killed": 40 * FRAME_RECORDS}
    with sync.connect(own_broker.address) as log:
        found = [int(record.value or b"") for record in log.read("killed")]
    assert found == list(range(40 * FRAME_RECORDS))
