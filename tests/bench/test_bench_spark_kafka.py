"""What is made of the benches of Spark with Kafka's connector beside: without Spark, Kafka or a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from bench.peers.kafka_load import KafkaLoad
from bench.peers.peer import Found, Missing
from bench.spark import kafka
from bench.spark.formats import Rows
from bench.spark.kafka import SCANS, KafkaBroker, KafkaFormat
from bench.spark.writes import in_turns, summarise


class Topics:
    """In place of the driver in Java."""

    def __init__(self) -> None:
        self.made: list[tuple[str, int]] = []

    def create_topic(self, topic: str, options: Sequence[str], *, partitions: int, replicas: int) -> None:
        self.made.append((topic, partitions))


class Origin:
    """The rows are there already."""

    name = "origin"

    def fill(self, spark: Any, rows: Rows) -> None:
        raise AssertionError("filled twice")

    def table(self, spark: Any, columns: Sequence[str]) -> Any:
        assert tuple(columns) == ("key", "value")


def test_formats_with_as_many_partitions_read_one_topic_which_is_filled_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topics, written = Topics(), []
    monkeypatch.setattr(kafka, "write", lambda table, bootstrap, topic, options: written.append(topic))
    broker = KafkaBroker("b:1", cast(KafkaLoad, topics))
    for name in SCANS:
        KafkaFormat(name, broker, Origin()).fill(cast(Any, None), Rows(10, 10))
    assert topics.made == [("scanned-1", 1), ("scanned-4", 4)]
    assert written == ["scanned-1", "scanned-4"]


def test_without_the_connector_nothing_is_compared_and_how_to_get_it_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Here:
        def find(self) -> Found:
            return Found("4", "")

    monkeypatch.setattr(kafka, "Kafka", Here)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kafka.find() == Missing(kafka.INSTALL)
    assert kafka.spark_conf() == {}
    with kafka.kafka_formats(tmp_path, Origin()) as found:
        assert found == []


def test_each_write_goes_to_a_new_topic_and_the_first_turn_warms_up() -> None:
    topics: list[str] = []

    def write(table: Any, topic: str) -> None:
        topics.append(topic)

    taken = in_turns({"ister": write, "kafka": write}, lambda: cast(Any, None), 2)
    assert len(set(topics)) == 6
    assert {name: len(seconds) for name, seconds in taken.items()} == {"ister": 2, "kafka": 2}


def test_the_ratio_is_how_many_times_kafka_s_rate() -> None:
    taken = {"ister": [1.0, 9.0, 1.0], "ister_at_least_once": [0.5], "kafka_tuned": [2.0, 2.0, 3.0]}
    found = summarise(taken, Rows(1000, 200))
    assert found["rows_per_s"] == {"ister": 1000.0, "ister_at_least_once": 2000.0, "kafka_tuned": 500.0}
    assert found["times_kafka"] == {
        "ister": {"kafka_tuned": 2.0},
        "ister_at_least_once": {"kafka_tuned": 4.0},
    }
