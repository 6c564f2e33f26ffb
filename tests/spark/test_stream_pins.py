"""A running stream query is known to the brokers, and one that ends or dies holds nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ister import sync
from ister.protocol.messages import PinDescription
from ister.spark.source.offsets import TopicPlace
from ister.spark.source.pinning import ABOUT, TTL_S, BrokerPins


def eventually(look: Callable[[], Any]) -> Any:
    """What it finds, once that is true."""
    for _ in range(600):
        found = look()
        if found:
            return found
        _pause()
    raise AssertionError("that did not become true within a minute")


def _pause() -> None:
    from threading import Event

    Event().wait(0.1)


def pins(log: sync.Log, topic: str) -> list[PinDescription]:
    return [pin for pin in log.pins() if pin.topic == f"default/{topic}"]


def test_a_pin_follows_the_reader_and_goes_when_it_stops(log: sync.Log) -> None:
    log.append("pinned", [b"x"] * 10)
    uid = log.describe_topic("pinned").uid
    held = BrokerPins(log, renew_s=0.05)
    held.hold("query-1", {"default/pinned": TopicPlace(uid, 0, 3)})
    (pin,) = eventually(lambda: pins(log, "pinned"))
    assert (pin.name, pin.offset, pin.topic_uid, pin.about) == ("query-1", 3, uid, ABOUT)
    assert pin.expires_at_us - pin.renewed_at_us == TTL_S * 1_000_000
    eventually(lambda: pins(log, "pinned")[0].renewed_at_us > pin.renewed_at_us)
    held.hold("query-1", {"default/pinned": TopicPlace(uid, 0, 7)})
    eventually(lambda: pins(log, "pinned")[0].offset == 7)
    held.release("query-1")
    assert pins(log, "pinned") == []


def test_a_pin_is_never_set_on_a_topic_that_was_made_again(log: sync.Log) -> None:  # I3
    uid = log.create_topic("pinned-again").uid
    log.append("pinned-other", [b"x"])
    other = log.describe_topic("pinned-other").uid
    log.delete_topic("pinned-again")
    log.create_topic("pinned-again")
    held = BrokerPins(log, renew_s=0.05)
    held.hold(
        "query-2",
        {"default/pinned-again": TopicPlace(uid, 0, 0), "default/pinned-other": TopicPlace(other, 0, 0)},
    )
    eventually(lambda: pins(log, "pinned-other"))
    assert pins(log, "pinned-again") == []
    held.release("query-2")


@pytest.mark.spark
def test_a_stream_query_is_shown_while_it_runs(
    spark: SparkSession, bootstrap: str, log: sync.Log, tmp_path: Path
) -> None:
    log.append("watched", [b"x"] * 10)
    table = spark.readStream.format("ister").option("bootstrap.servers", bootstrap)
    stream = table.option("subscribe", "watched").option("startingOffsets", "earliest").load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    try:
        (pin,) = eventually(lambda: pins(log, "watched"))
        assert (pin.is_live, pin.about) == (True, ABOUT)
        eventually(lambda: pins(log, "watched")[0].offset == 10)
    finally:
        query.stop()
