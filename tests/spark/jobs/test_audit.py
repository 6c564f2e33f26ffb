"""`audit`: it says clean of what is, and of what is not, exactly which offsets."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from job_helpers import data_files, flip_a_byte, new_topic, numbered

from ister import sync
from ister.errors import ConfigError, ObjectNotFound, TableMismatch, UnknownTopic
from ister.spark import audit, tier
from ister.spark.jobs.auditing import tables
from ister.spark.jobs.watching import Unwatched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def check(spark: SparkSession, bootstrap: str) -> Any:
    return partial(audit, spark, bootstrap=bootstrap)


def segmented(log: sync.Log, records: int = 250) -> str:
    """Sealed segments of 100 records and an open one, in frames of 50."""
    topic = new_topic("segmented")
    log.create_topic(topic, segment_records=100)
    for start in range(0, records, 50):
        log.append(topic, numbered(start, start + 50))
    return topic


def found(report: Any) -> list[tuple[str, int, int]]:
    return [(each.check, each.start, each.end) for each in report.topics[0].findings]


def test_a_whole_topic_is_clean_open_segment_included(check: Any, log: sync.Log) -> None:
    topic = segmented(log)
    report = check(topic)
    assert report.is_clean
    (seen,) = report.topics
    assert (seen.records, seen.start_offset, seen.end_offset) == (250, 0, 250)
    assert [(part.base_offset, part.end_offset, part.sealed) for part in seen.segments] == [
        (0, 100, True), (100, 200, True), (200, 250, False),
    ]  # fmt: skip
    assert sum(records for _, records, _ in seen.rates) == 250


def test_several_topics_are_audited_at_once(check: Any, log: sync.Log) -> None:
    one, other = segmented(log), segmented(log, 100)
    log.create_topic(empty := new_topic("empty"))
    report = check([one, other, empty])
    assert [(seen.topic, seen.records, seen.is_clean) for seen in report.topics] == [
        (f"default/{one}", 250, True), (f"default/{other}", 100, True), (f"default/{empty}", 0, True),
    ]  # fmt: skip
    assert {one, other, empty} <= {seen.topic.removeprefix("default/") for seen in check().topics}


def test_a_trimmed_topic_is_clean_from_where_it_begins(check: Any, log: sync.Log) -> None:
    topic = segmented(log)
    log.trim_topic(topic, 100)
    report = check(topic)
    assert report.is_clean
    assert (report.topics[0].start_offset, report.topics[0].records) == (100, 150)


def test_a_flipped_byte_is_found_with_the_offsets_of_its_frame(spark: SparkSession, own_broker: Any) -> None:
    with sync.connect(own_broker.address) as log:
        topic = segmented(log)
    own_broker.stop()
    flip_a_byte(own_broker.data_dir, behind=b"record 60")
    own_broker.start()
    report = audit(spark, topic, bootstrap=own_broker.address)
    assert not report.is_clean
    assert found(report) == [("checksum", 50, 100)]
    assert [part.is_clean for part in report.topics[0].segments] == [False, True, True]
    assert "offsets 50 to 99" in report.topics[0].findings[0].what


def test_a_segment_that_is_not_on_the_disk_any_more_is_found_with_its_offsets(
    spark: SparkSession, own_broker: Any
) -> None:
    with sync.connect(own_broker.address) as log:
        topic = segmented(log)
    own_broker.stop()
    (lost,) = [path for path in own_broker.data_dir.rglob("*.log") if b"record 160" in path.read_bytes()]
    lost.unlink()
    own_broker.start()
    report = audit(spark, topic, bootstrap=own_broker.address)
    assert [part.is_clean for part in report.topics[0].segments] == [True, False, True]
    assert {(each.start, each.end) for each in report.topics[0].findings} == {(100, 200)}


# A table against its topic.


@pytest.fixture
def tiered(spark: SparkSession, bootstrap: str, log: sync.Log, tmp_path: Path) -> tuple[str, Path]:
    """A topic and its Parquet table, in two files by time of the record."""
    topic = new_topic("tiered")
    times = [1_763_510_400_000_000 + (number % 2) * 86_400_000_000 for number in range(120)]
    log.append(topic, numbered(0, 120), timestamps_us=times, keys=[b"k%d" % n for n in range(120)])
    tier(spark, topic, to="parquet", path=str(tmp_path / "table"), bootstrap=bootstrap)
    return topic, tmp_path / "table"


def rewrite(path: Path, change: Any) -> None:
    """The even offsets' file, with other rows in it."""
    file = data_files(path)[0]
    table = pq.ParquetFile(file).read()
    pq.write_table(change(table), file)


def test_a_table_is_the_log(check: Any, tiered: tuple[str, Path]) -> None:
    topic, path = tiered
    report = check(topic, against=str(path))
    assert report.is_clean
    assert report.topics[0].table == str(path)


def test_a_gap_in_a_table_is_found_with_its_offsets(check: Any, tiered: tuple[str, Path]) -> None:
    topic, path = tiered
    rewrite(path, lambda rows: rows.filter((pc.field("offset") < 10) | (pc.field("offset") > 14)))
    assert found(check(topic, against=str(path))) == [
        ("table", 10, 11), ("table", 12, 13), ("table", 14, 15),
    ]  # fmt: skip


def test_a_doubled_row_is_found(check: Any, tiered: tuple[str, Path]) -> None:
    topic, path = tiered
    rewrite(path, lambda rows: pa.concat_tables([rows, rows.slice(3, 1)]))
    report = check(topic, against=str(path))
    assert found(report) == [("table", 6, 7)]
    assert "offset 6: in the table more than once" in report.topics[0].findings[0].what


@pytest.mark.parametrize("column", ["value", "key"])
def test_a_changed_cell_is_found(check: Any, tiered: tuple[str, Path], column: str) -> None:
    topic, path = tiered

    def change(rows: pa.Table) -> pa.Table:
        cells = rows.column(column).to_pylist()
        cells[4] = cells[5]
        place = rows.schema.get_field_index(column)
        made = pa.array(cells, rows.schema.field(column).type)
        return rows.set_column(place, rows.schema.field(column), made)

    rewrite(path, change)
    report = check(topic, against=str(path))
    assert found(report) == [("table", 8, 9)]
    assert f"offset 8: another {column}" in report.topics[0].findings[0].what


def test_a_row_that_no_record_is_is_found(check: Any, tiered: tuple[str, Path]) -> None:
    topic, path = tiered

    def add(rows: pa.Table) -> pa.Table:
        place = rows.schema.get_field_index("offset")
        beyond = rows.slice(0, 1).set_column(place, rows.schema.field("offset"), pa.array([5000], pa.int64()))
        return pa.concat_tables([rows, beyond])

    rewrite(path, add)
    mark_bounds(path, last_offset=5000)
    assert found(check(topic, against=str(path))) == [("table", 5000, 5001)]


def mark_bounds(path: Path, last_offset: int) -> None:
    """As a writer would have that adds such a row: the table says which offsets a file has."""
    commit = next((path / "_ister" / "commits").glob("*.json"))
    entry = json.loads(commit.read_text())
    for file in entry["files"]:
        file["last_offset"] = last_offset
    commit.write_text(json.dumps(entry))


def test_a_file_that_is_not_there_is_found(check: Any, tiered: tuple[str, Path]) -> None:
    topic, path = tiered
    data_files(path)[0].unlink()
    report = check(topic, against=str(path))
    assert ("table", 0, 120) in found(report)
    assert ("table", 0, 1) in found(report)
    assert ("table", 58, 59) in found(report)


def test_a_table_that_is_behind_is_clean_as_far_as_it_goes(
    check: Any, log: sync.Log, tiered: tuple[str, Path]
) -> None:
    topic, path = tiered
    log.append(topic, numbered(120, 150))
    assert check(topic, against=str(path)).is_clean


def test_a_trimmed_log_leaves_the_table_its_own_offsets(
    spark: SparkSession, check: Any, log: sync.Log, bootstrap: str, tmp_path: Path
) -> None:
    topic = segmented(log)
    path = tmp_path / "table"
    tier(spark, topic, to="parquet", path=str(path), bootstrap=bootstrap)
    log.trim_topic(topic, 100)
    assert check(topic, against=str(path)).is_clean
    rewrite(path, lambda rows: rows.filter(pc.field("offset") != 42))
    assert found(check(topic, against=str(path))) == [("table", 42, 43)]


def test_a_table_that_goes_on_while_it_is_audited_is_clean(
    spark: SparkSession, check: Any, log: sync.Log, bootstrap: str, tiered: tuple[str, Path]
) -> None:
    topic, path = tiered
    where = {"to": "parquet", "path": str(path), "bootstrap": bootstrap}

    class Meanwhile(Unwatched):
        """Once the audit looks at frames, more is appended and tiered."""

        def __init__(self) -> None:
            self.rounds = 0

        def begins(self, what: str, records: int, size: int) -> None:
            if not self.rounds:
                log.append(topic, numbered(120, 150))
                assert tier(spark, topic, **where).next_offset == 150
            self.rounds += 1

    watch = Meanwhile()
    report = check(topic, against=str(path), watch=watch)
    assert watch.rounds == 2
    assert report.is_clean, report.topics[0].findings
    assert report.topics[0].end_offset == 120


def test_what_the_log_has_no_more_is_compared_in_pieces(
    spark: SparkSession, check: Any, log: sync.Log, bootstrap: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(tables, "WINDOW_OFFSETS", 30)
    topic, path = segmented(log), tmp_path / "table"
    tier(spark, topic, to="parquet", path=str(path), bootstrap=bootstrap)
    log.trim_topic(topic, 100)
    assert check(topic, against=str(path)).is_clean
    rewrite(path, lambda rows: rows.filter((pc.field("offset") < 29) | (pc.field("offset") > 31)))
    assert found(check(topic, against=str(path))) == [("table", 29, 30), ("table", 30, 32)]


def test_dead_letters_that_are_a_commit_ahead_are_no_fault(
    spark: SparkSession, check: Any, log: sync.Log, bootstrap: str, tmp_path: Path
) -> None:
    """As a job leaves them that dies between its two commits."""
    topic, path, ddl = new_topic("letters"), tmp_path / "table", "n bigint"
    how: dict[str, Any] = {"decode": "json", "schema": ddl, "bootstrap": bootstrap}
    log.append(topic, [b'{"n": 1}', b"none"])
    tier(spark, topic, to="parquet", path=str(path), **how)
    log.append(topic, [b'{"n": 2}', b"none"])
    tier(spark, topic, to="parquet", path=str(path), **how)
    max((path / "_ister" / "commits").iterdir()).unlink()
    report = check(topic, against=str(path))
    assert report.is_clean, report.topics[0].findings
    letters = path.with_name("table_dead_letters")
    max((letters / "_ister" / "commits").iterdir()).unlink()
    assert check(topic, against=str(path)).is_clean
    rewrite(letters, lambda rows: rows.slice(0, 0))
    assert found(check(topic, against=str(path))) == [("table", 1, 2)]


def test_another_topics_table_is_not_compared(check: Any, log: sync.Log, tiered: tuple[str, Path]) -> None:
    other = segmented(log)
    with pytest.raises(TableMismatch, match="has default/") as caught:
        check(other, against=str(tiered[1]))
    assert tiered[0] in caught.value.message


def test_what_can_not_be_looked_at_is_an_error(check: Any, log: sync.Log, tmp_path: Path) -> None:
    with pytest.raises(UnknownTopic):
        check("nowhere")
    one, other = segmented(log), segmented(log)
    with pytest.raises(ObjectNotFound, match="no table at"):
        check(one, against=str(tmp_path))
    with pytest.raises(ConfigError, match="2 are named"):
        check([one, other], against=str(tmp_path))
