"""Tier, replay and mirror of a topic that only the history has: from the store, past the brokers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from history_helpers import filled, objects_of, until_released
from job_helpers import new_topic, offsets_of, read_delta, values_of

from ister import sync
from ister.errors import CorruptSegment, ReceiptMismatch
from ister.spark import mirror, replay, tier
from ister.spark.jobs.copying.receipts import read_receipt, write_receipt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEGMENTS, RECORDS = 3, 500
END = SEGMENTS * RECORDS + 10


def value(offset: int) -> bytes:
    return b"%08d" % offset + b"x" * 400


@pytest.fixture(scope="module")
def released(keeper: BrokerProcess) -> str:
    topic = new_topic("released-jobs")
    with sync.connect(keeper.address) as log:
        log.create_topic(topic, segment_records=RECORDS, local_retention_ms=1)
        for start in range(0, END, RECORDS):
            log.append(topic, [value(offset) for offset in range(start, min(start + RECORDS, END))])
        until_released(log, topic, SEGMENTS)
    return topic


def sent(log: sync.Log) -> tuple[float, float]:
    """Bytes to clients, and bytes that the broker itself has had from the store."""
    metrics = log.stats().metrics
    return metrics["bytes_out_total"], metrics["history_read_bytes_total"]


def test_a_table_is_made_past_the_brokers(
    spark: SparkSession, keeper: BrokerProcess, kept: sync.Log, released: str, tmp_path: Path
) -> None:
    before = sent(kept)
    done = tier(spark, released, to="delta", path=str(tmp_path / "t"), bootstrap=keeper.address)
    after = sent(kept)
    assert done.records == END
    table = read_delta(tmp_path / "t")
    assert list(offsets_of(table)) == list(range(END))
    assert values_of(table) == [value(offset) for offset in range(END)]
    assert after[0] - before[0] < 100_000 and after[1] == before[1]


def test_a_replay_and_a_mirror_are_made_past_the_brokers_and_a_receipt_names_the_catalogs_revision(
    spark: SparkSession, keeper: BrokerProcess, kept: sync.Log, released: str, tmp_path: Path
) -> None:
    before = sent(kept)
    where = {"bootstrap": keeper.address}
    revision = kept.history(released).index
    once = replay(spark, released, to=f"{released}-again", start=100, until=1_400, **where)
    assert once.receipt is not None and once.receipt.revision >= revision > 0
    copied = mirror(spark, released, to=f"{released}-mirrored", **where)
    assert copied.is_complete and copied.records == END
    assert sent(kept)[1] == before[1]
    assert [record.value for record in kept.read(f"{released}-again")] == [
        value(offset) for offset in range(100, 1_400)
    ]
    assert [record.value for record in kept.read(f"{released}-mirrored")] == [
        value(offset) for offset in range(END)
    ]
    # The receipt is one on paper, too; and what an older Ister wrote is still one.
    write_receipt(tmp_path / "receipt", once.receipt)
    assert read_receipt(tmp_path / "receipt") == once.receipt
    told = json.loads((tmp_path / "receipt").read_text())
    assert told.pop("revision") == once.receipt.revision
    (tmp_path / "old").write_text(json.dumps(told))
    twice = replay(spark, released, to=f"{released}-twice", receipt=read_receipt(tmp_path / "old"), **where)
    assert twice.records == 1_300
    told["ranges"][0]["checksum"] = "0" * len(told["ranges"][0]["checksum"])
    (tmp_path / "other").write_text(json.dumps(told))
    with pytest.raises(ReceiptMismatch):
        replay(spark, released, to=f"{released}-no", receipt=read_receipt(tmp_path / "other"), **where)


def test_a_job_says_which_object_is_missing_and_writes_nothing_of_it(
    spark: SparkSession, keeper: BrokerProcess, kept: sync.Log, tmp_path: Path
) -> None:
    topic = new_topic("lacking")
    filled(kept, topic, 3, local_retention_ms=1)
    until_released(kept, topic, 3)
    missing = objects_of(kept, topic)[1]
    missing.unlink()
    where = {"to": "delta", "path": str(tmp_path / "t"), "bootstrap": keeper.address}
    with pytest.raises(CorruptSegment, match=f"offsets 10 to 19 .*{missing.name}"):
        tier(spark, topic, **where)  # type: ignore[arg-type]
    done = tier(spark, topic, skip_missing=True, **where)  # type: ignore[arg-type]
    assert done.gaps == [(10, 20)]
    assert list(offsets_of(read_delta(tmp_path / "t"))) == [*range(10), *range(20, 35)]
