"""`tier` when something is in its way: a death, another job, values that don't parse, lost records."""

from __future__ import annotations

import json
import os
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from job_helpers import (
    data_files,
    flip_a_byte,
    new_topic,
    numbered,
    offsets_of,
    read_delta,
    read_parquet,
    read_table,
    values_of,
)

from ister import sync
from ister.errors import CorruptSegment, TableMismatch
from ister.spark import audit, tier
from ister.spark.jobs.lake.opening import Target, open_table
from ister.spark.jobs.lake.table import DEAD_LETTERS, Coverage, Origin
from ister.spark.jobs.snapshot import shares, take_snapshot
from ister.spark.jobs.tiering.decoding import make_decoding
from ister.spark.jobs.tiering.plan import WritePlan, dead_letter_schema, log_schema, table_schema
from ister.spark.jobs.tiering.writing import write_share

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FORMATS = ("parquet", "delta", "iceberg")
LONG_AGO = (1_000_000_000, 1_000_000_000)


@pytest.fixture
def run(spark: SparkSession, bootstrap: str) -> Any:
    return partial(tier, spark, bootstrap=bootstrap)


@pytest.mark.parametrize("to", FORMATS)
def test_a_death_between_files_and_commit_costs_nothing_but_the_files(
    run: Any, log: sync.Log, bootstrap: str, tmp_path: Path, to: str
) -> None:
    topic = new_topic("killed")
    log.append(topic, numbered(0, 100))
    run(topic, to=to, path=str(tmp_path))
    named = set(data_files(tmp_path))
    log.append(topic, numbered(100, 200))
    # What the tasks of a job do, without the commit that its driver did not live to see.
    snapshot = take_snapshot(log, topic)
    table = open_table(
        Target(to, str(tmp_path)),
        Origin(snapshot.cluster, snapshot.topic, snapshot.uid, partition_by="date"),
        log_schema(),
    )
    plan = WritePlan(bootstrap, table.location, log_schema(), "date", 1 << 20, False)
    for share in shares(snapshot, 100, 200, 1 << 20):
        assert write_share(plan, share).files
    orphans = set(data_files(tmp_path)) - named
    assert orphans
    for each in orphans:
        os.utime(each, LONG_AGO)
    done = run(topic, to=to, path=str(tmp_path), vacuum_older_than_s=3600.0)
    assert (done.start_offset, done.records, done.vacuumed) == (100, 100, len(orphans))
    assert not orphans & set(data_files(tmp_path))
    table_read = read_table(to, tmp_path, topic)
    assert offsets_of(table_read) == list(range(200))
    assert values_of(table_read) == numbered(0, 200)


@pytest.mark.parametrize("to", FORMATS)
def test_two_jobs_at_once_make_one_table(run: Any, log: sync.Log, tmp_path: Path, to: str) -> None:
    topic = new_topic("both")
    log.append(topic, numbered(0, 300))
    together = threading.Barrier(2)
    errors: list[BaseException] = []

    def job() -> None:
        together.wait()
        try:
            run(topic, to=to, path=str(tmp_path))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=job) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert offsets_of(read_table(to, tmp_path, topic)) == list(range(300))


# Values that don't parse.

DDL = "n bigint, w string"


def orders(start: int, end: int) -> list[bytes]:
    """Every tenth is no order."""
    return [
        b"not an order" if number % 10 == 3 else json.dumps({"n": number, "w": f"w{number}"}).encode()
        for number in range(start, end)
    ]


@pytest.mark.parametrize("to", FORMATS)
def test_values_are_typed_and_what_does_not_parse_is_in_a_table_of_its_own(
    run: Any, spark: SparkSession, bootstrap: str, log: sync.Log, tmp_path: Path, to: str
) -> None:
    topic = new_topic("orders")
    path = tmp_path / "lake"
    for start in (0, 50):
        log.append(topic, orders(start, start + 50))
        done = run(topic, to=to, path=str(path), decode="json", schema=DDL)
        assert (done.records, done.dead_letters) == (50, 5)
    table = read_table(to, path, topic)
    good = [number for number in range(100) if number % 10 != 3]
    assert offsets_of(table) == good
    assert table.column("n").to_pylist() == good
    assert table.column("w").to_pylist() == [f"w{number}" for number in good]
    assert "value" not in table.schema.names
    dead = read_table(to, *dead_letters_of(to, path, topic))
    assert offsets_of(dead) == [number for number in range(100) if number % 10 == 3]
    assert set(values_of(dead)) == {b"not an order"}
    assert set(dead.column("error").to_pylist()) == {"this is no JSON object"}
    assert audit(spark, topic, bootstrap=bootstrap, against=str(path)).is_clean


def dead_letters_of(to: str, path: Path, topic: str) -> tuple[Path, str]:
    if to == "iceberg":
        return path, f"{topic}_dead_letters"
    return path.with_name(f"{path.name}_dead_letters"), topic


def test_a_death_between_the_two_tables_repeats_no_dead_letter(
    run: Any, log: sync.Log, bootstrap: str, tmp_path: Path
) -> None:
    topic = new_topic("between")
    path = tmp_path / "lake"
    log.append(topic, orders(0, 40))
    run(topic, to="delta", path=str(path), decode="json", schema=DDL)
    log.append(topic, orders(40, 80))
    snapshot = take_snapshot(log, topic)
    decoding = make_decoding("json", DDL)
    origin = Origin(
        snapshot.cluster, snapshot.topic, snapshot.uid, DEAD_LETTERS, "date", decoding.kind, decoding.text
    )
    dead = open_table(Target("delta", str(path)), origin, dead_letter_schema())
    plan = WritePlan(
        bootstrap, str(path), table_schema(decoding), "date", 1 << 20, False, decoding, dead.location, 40
    )
    (share,) = shares(snapshot, 40, 80, 1 << 30)
    assert dead.commit(write_share(plan, share).dead_files, Coverage(0, 40), Coverage(0, 80))
    log.append(topic, orders(80, 90))
    done = run(topic, to="delta", path=str(path), decode="json", schema=DDL)
    assert (done.start_offset, done.records, done.dead_letters) == (40, 50, 1)
    assert offsets_of(read_delta(path)) == [number for number in range(90) if number % 10 != 3]
    letters = read_delta(dead.location)
    assert offsets_of(letters) == [number for number in range(90) if number % 10 == 3]


def test_a_table_that_has_more_than_its_topic_is_not_gone_on_with(
    run: Any, log: sync.Log, tmp_path: Path
) -> None:
    """A log without fsync may lose its end: other records get the offsets."""
    topic = new_topic("ahead")
    log.append(topic, numbered(0, 10))
    snapshot = take_snapshot(log, topic)
    origin = Origin(snapshot.cluster, snapshot.topic, snapshot.uid, partition_by="date")
    table = open_table(Target("parquet", str(tmp_path)), origin, log_schema())
    assert table.commit([], None, Coverage(0, 50))
    with pytest.raises(TableMismatch, match=r"goes up to offset 49, and .* ends at 10"):
        run(topic, to="parquet", path=str(tmp_path))


def test_a_changed_schema_is_another_table(run: Any, log: sync.Log, tmp_path: Path) -> None:
    topic = new_topic("changed")
    log.append(topic, orders(0, 5))
    run(topic, to="parquet", path=str(tmp_path), decode="json", schema=DDL)
    with pytest.raises(TableMismatch, match="schema 'n bigint, w string', not 'n bigint'"):
        run(topic, to="parquet", path=str(tmp_path), decode="json", schema="n bigint")


# Records that are gone.


def test_damage_stops_a_job_and_can_be_left_out(spark: SparkSession, own_broker: Any, tmp_path: Path) -> None:
    with sync.connect(own_broker.address) as log:
        topic = new_topic("damaged")
        log.create_topic(topic, segment_records=100)
        for start in range(0, 250, 50):
            log.append(topic, numbered(start, start + 50))
    own_broker.stop()
    flip_a_byte(own_broker.data_dir, behind=b"record 160")
    own_broker.start()
    job = partial(
        tier, spark, topic, to="parquet", path=str(tmp_path / "table"), bootstrap=own_broker.address
    )
    with pytest.raises(CorruptSegment, match=r"are not there: .* offsets 150 to 199 cannot") as caught:
        job(file_bytes=1_000)
    first, behind = caught.value.offsets or (0, 0)
    assert 150 <= first < behind <= 200
    assert "--skip-missing" in caught.value.hint
    done = job(skip_missing=True, file_bytes=1_000)
    assert done.gaps == [(150, 200)]
    assert offsets_of(read_parquet(tmp_path / "table")) == [*range(150), *range(200, 250)]
    # The damage is found in the log; the table is not to blame for it.
    report = audit(spark, topic, bootstrap=own_broker.address, against=str(tmp_path / "table"))
    assert [(each.check, each.start, each.end) for each in report.topics[0].findings] == [
        ("checksum", 150, 200)
    ]
