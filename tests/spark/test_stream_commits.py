"""What the stream writer does with what its tasks told, against real brokers and without Spark: its calls
are made by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType
from tests.spark.sink_world import Died, dies_at

import ister
from ister import sync
from ister.errors import OtherCluster
from ister.spark.options import parse_write_options
from ister.spark.sink.committing import Committer
from ister.spark.sink.origin import Origin
from ister.spark.sink.staging import Staged, stage_rows
from ister.spark.sink.stream_writer import IsterStreamWriter, StagedBatch

VALUE = StructType([StructField("value", BinaryType())])


class Query:
    """Batches of one query, each staged by two tasks and committed by a driver of its own."""

    def __init__(self, query_id: str, bootstrap: str, topic: str) -> None:
        self.origin = Origin.of_query(query_id)
        self._id = query_id
        self.bootstrap = bootstrap
        self._topic = topic

    def stage(self, *values: bytes) -> list[Staged]:
        return [self._task(values[::2]), self._task(values[1::2])]

    def _task(self, values: tuple[bytes, ...]) -> Staged:
        rows: Iterator[Any] = iter([pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})])
        return asyncio.run(stage_rows(self.bootstrap, self.origin.stage, self._topic, rows))

    def commit(self, batch: int, *values: bytes) -> None:
        self.commit_staged(batch, self.stage(*values))

    def commit_staged(self, batch: int, staged: list[Staged]) -> None:
        options = parse_write_options(
            {"bootstrap.servers": self.bootstrap, "topic": self._topic}, is_stream=True
        )
        writer = IsterStreamWriter(options, VALUE, overwrite=False)
        writer.commit([StagedBatch(self._id, batch, part) for part in staged], batch)

    def die_in(self, batch: int, step: str, *values: bytes) -> None:
        staged = self.stage(*values)

        async def commit() -> None:
            async with ister.connect(self.bootstrap) as log:
                await Committer(log, self.origin, dies_at(step)).commit(batch, staged)

        with pytest.raises(Died):
            asyncio.run(commit())


def values(log: sync.Log, topic: str) -> list[bytes | None]:
    return [record.value for record in log.read(topic)]


@pytest.mark.parametrize("step", ["manifest", "half-appended", "appended"])
def test_a_batch_without_rows_finishes_the_one_that_was_decided_before_it(
    step: str, bootstrap: str, log: sync.Log
) -> None:
    """Else its rows would come with the next batch that has any, which may be never."""
    query = Query(f"empty-{step}", bootstrap, f"before-an-empty-one-{step}")
    query.commit(0, b"a", b"b")
    query.die_in(1, step, b"c", b"d")
    for batch in (2, 3):
        query.commit(batch)
        assert values(log, f"before-an-empty-one-{step}") == [b"a", b"b", b"c", b"d"]


def test_a_batch_that_has_no_rows_any_more_is_what_was_decided_of_it(bootstrap: str, log: sync.Log) -> None:
    """What it was made of may be gone since, with failOnDataLoss=false."""
    query = Query("shrunk", bootstrap, "shrunk")
    query.die_in(0, "manifest", b"a", b"b")
    query.commit(0)
    assert values(log, "shrunk") == [b"a", b"b"]


def test_a_query_that_never_had_rows_makes_no_topic(bootstrap: str, log: sync.Log) -> None:
    query = Query("no-rows", bootstrap, "no-rows")
    for batch in range(3):
        query.commit(batch)
    assert log.list_topics("default/no-rows") == []


# Whose cluster it is.


def test_a_checkpoint_that_is_used_with_another_cluster_appends_nothing_there(
    bootstrap: str, log: sync.Log, own_broker: Any
) -> None:
    """I1: half of batch 1 is in the one, and the whole of it would be in the other."""
    query = Query("moved", bootstrap, "moved")
    query.commit(0, b"a")
    query.die_in(1, "half-appended", b"b", b"c")
    query.bootstrap = own_broker.address
    for rows in ((b"b", b"c"), ()):
        with pytest.raises(OtherCluster, match=r"no _spark/query-moved\.ledger.* another cluster") as told:
            query.commit(1, *rows)
    assert "bootstrap.servers" in told.value.hint
    with sync.connect(own_broker.address) as other:
        assert other.list_topics("default/") == []
    query.bootstrap = bootstrap
    query.commit(1)
    assert values(log, "moved") == [b"a", b"b", b"c"]


def test_a_query_whose_first_batches_had_no_rows_is_known_by_its_ledger(
    bootstrap: str, log: sync.Log
) -> None:
    query = Query("late-rows", bootstrap, "late-rows")
    query.commit(0)
    query.commit(1, b"a")
    assert values(log, "late-rows") == [b"a"]


def test_a_query_whose_ledger_was_deleted_goes_on_only_when_somebody_says_so(
    bootstrap: str, log: sync.Log
) -> None:
    query = Query("deleted-ledger", bootstrap, "deleted-ledger")
    query.commit(0, b"a")
    log.delete_topic(query.origin.ledger)
    with pytest.raises(OtherCluster) as told:
        query.commit(1, b"b")
    assert f"ister topic create {query.origin.ledger}" in told.value.hint
    log.create_topic(query.origin.ledger)
    query.commit(1, b"b")
    assert values(log, "deleted-ledger") == [b"a", b"b"]


def test_a_driver_that_reaches_another_cluster_than_its_tasks_decides_nothing(
    bootstrap: str, own_broker: Any
) -> None:
    query = Query("split", bootstrap, "split")
    staged = query.stage(b"a")
    query.bootstrap = own_broker.address
    with pytest.raises(OtherCluster, match=r"staged on _spark/query-split\.staged of cluster"):
        query.commit_staged(0, staged)
    with sync.connect(own_broker.address) as other:
        assert other.list_topics("default/") == []
