"""The catalog of segments as a table, and topics as views that a prompt can rely on."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from history_helpers import filled
from pyspark.sql import SparkSession

from ister import sync
from ister.cli.spark_shell import keep_fresh
from ister.spark import segments
from ister.spark.sessions.views import SEGMENTS_VIEW, Views, view_names

if TYPE_CHECKING:
    from conftest import BrokerProcess

pytestmark = pytest.mark.spark


@pytest.fixture
def own_log(own_broker: BrokerProcess) -> Iterator[sync.Log]:
    with sync.connect(own_broker.address) as found:
        yield found


def test_names_that_sql_does_not_take_become_views_and_no_two_topics_are_one_view() -> None:
    topics = ["ns/x", "default/ns_x", "default/Orders", "default/orders", "default/a-b.c", "a/ister_segments"]
    assert view_names([*topics, "default/ister_segments"]) == {
        "Orders": "default/Orders",
        "a_b_c": "default/a-b.c",
        "a_ister_segments": "a/ister_segments",
        "ister_segments_2": "default/ister_segments",
        "ns_x": "default/ns_x",
        "ns_x_2": "ns/x",
        "orders_2": "default/orders",
    }


def test_each_segment_is_a_row_with_its_offsets_place_size_and_times(
    spark: SparkSession, own_broker: BrokerProcess, own_log: sync.Log
) -> None:
    own_log.create_topic("rolled", segment_records=10)
    appended = [own_log.append("rolled", [b"x" * 100] * 10) for _ in range(2)]
    own_log.create_topic("empty")
    rows = segments(spark, own_broker.address).orderBy("topic", "segment").collect()
    described = own_log.describe_topic("rolled").segments
    assert [(row.topic, row.segment, row.start, row.end) for row in rows] == [
        ("default/empty", 1, 0, 0),
        ("default/rolled", 1, 0, 10),
        ("default/rolled", 2, 10, 20),
        *([("default/rolled", 3, 20, 20)] if len(described) == 3 else []),
    ]
    empty, first = rows[:2]
    assert (empty.size, empty.first_time, empty.last_time) == (0, None, None)
    assert (first.leader, first.replicas, first.tier, first.state) == (1, [1], "hot", "sealed")
    assert first.size == described[0].bytes
    assert first.last_time.astimezone(UTC) == datetime.fromtimestamp(appended[0].append_time_us / 1e6, UTC)
    assert first.first_time <= first.last_time
    assert (first.object, first.object_size, first.checksum) == (None, None, None)


def test_a_segment_in_the_history_has_its_object_and_the_revision_that_says_so(
    spark: SparkSession, keeper: BrokerProcess, kept: sync.Log
) -> None:
    filled(kept, "catalogued", 2)
    rows = segments(spark, keeper.address).where("topic = 'default/catalogued'").orderBy("segment").collect()
    listed = kept.history("catalogued")
    assert [row.tier for row in rows] == ["history", "history", "hot"]
    assert [(row.object, row.object_size, row.checksum) for row in rows[:2]] == [
        (entry.name, entry.size, f"{entry.crc:08x}") for entry in listed.entries[:2]
    ]
    assert rows[2].object is None
    assert len({row.revision for row in rows}) == 1 and 0 < rows[0].revision <= listed.index


def test_a_new_query_sees_new_segments_and_new_records_and_new_topics(
    spark: SparkSession, own_broker: BrokerProcess, own_log: sync.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_log.append("ns/seen", [b"x"] * 3)
    views = Views(spark, own_log, own_broker.address)
    views.refresh()
    monkeypatch.setattr(spark, "sql", spark.sql)  # put back at the end: other tests share the session
    monkeypatch.setattr(spark, "table", spark.table)
    keep_fresh(spark, views)

    def first(query: str) -> int:
        return spark.sql(query).first()[0]

    of_segments = f"select max(end) from {SEGMENTS_VIEW} where topic = 'ns/seen'"
    assert (first("select count(*) from ns_seen"), first(of_segments)) == (3, 3)
    own_log.append("ns/seen", [b"x"] * 4)
    own_log.append("just-made", [b"x"])
    assert (first("select count(*) from NS_SEEN"), first(of_segments)) == (7, 7)
    assert spark.table("just_made").count() == 1
    own_log.delete_topic("just-made")
    views.refresh()
    assert not spark.catalog.tableExists("just_made")
