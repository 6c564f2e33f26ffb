"""Topics whose old segments only the history has, through a real Spark session."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import DataFrame, SparkSession

from ister import sync

if TYPE_CHECKING:
    from conftest import BrokerProcess

pytestmark = pytest.mark.spark

VALUE = b"x" * 1_000
SEGMENTS, RECORDS = 4, 500


@pytest.fixture(scope="module")
def released(keeper: BrokerProcess) -> str:
    """A topic with an open segment, and four that are on no node any more."""
    topic = "released"
    with sync.connect(keeper.address) as log:
        log.create_topic(topic, segment_records=RECORDS, local_retention_ms=1)
        for _ in range(SEGMENTS):
            log.append(topic, [VALUE] * RECORDS)
        log.append(topic, [VALUE] * 10)
        deadline = time.monotonic() + 60
        while sum(bool(one.name) and not one.replicas for one in log.history(topic).entries) < SEGMENTS:
            assert time.monotonic() < deadline, log.history(topic)
            time.sleep(0.2)
    return topic


def table(spark: SparkSession, keeper: BrokerProcess, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("ister").option("bootstrap.servers", keeper.address)
    return reader.option("subscribe", topic).options(**options).load()


def test_a_topic_whose_segments_were_released_is_read_and_brokers_send_next_to_nothing(
    spark: SparkSession, keeper: BrokerProcess, kept: sync.Log, released: str
) -> None:
    end = SEGMENTS * RECORDS + 10
    before = kept.stats().metrics
    rows = table(spark, keeper, released).select("offset", "value").collect()
    after = kept.stats().metrics
    assert sorted(row.offset for row in rows) == list(range(end))
    assert all(bytes(row.value) == VALUE for row in rows)
    sent = after["bytes_out_total"] - before["bytes_out_total"]
    assert sent < 100_000 < len(VALUE) * end  # the ten that are not in the history, and a few descriptions
    assert after["history_read_bytes_total"] == before["history_read_bytes_total"]


def test_each_tier_by_itself_and_a_plan_that_shows_no_secret(
    spark: SparkSession, keeper: BrokerProcess, released: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nobody-sees-this")
    end = SEGMENTS * RECORDS
    of_history = table(spark, keeper, released, **{"read.tier": "history"})
    assert of_history.agg({"offset": "max"}).first()[0] == end - 1  # type: ignore[index]
    of_nodes = table(spark, keeper, released, **{"read.tier": "hot"})
    assert sorted(row.offset for row in of_nodes.collect()) == list(range(end, end + 10))
    shown = spark._jvm.PythonSQLUtils.explainString(of_history._jdf.queryExecution(), "extended")  # type: ignore[union-attr,operator]
    assert "nobody-sees-this" not in shown
