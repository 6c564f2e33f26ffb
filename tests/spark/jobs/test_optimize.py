"""`tier --optimize|--expire`: fewer files, the same rows, the place of the table unchanged."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from job_helpers import data_files, new_topic, numbered, offsets_of, read_table, values_of

from ister import sync
from ister.spark import audit, tier
from ister.spark.jobs.lake.folders import LocalFolder
from ister.spark.jobs.lake.opening import Target, find_table
from ister.spark.jobs.lake.parquet import ParquetTable
from ister.spark.jobs.lake.table import Coverage, DataFile, Origin
from ister.spark.jobs.tiering.optimizing import small_together
from ister.spark.jobs.tiering.plan import log_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROUNDS, IN_EACH = 5, 40
END = ROUNDS * IN_EACH


def grown(
    spark: SparkSession, log: sync.Log, bootstrap: str, to: str, path: Path
) -> tuple[str, dict[str, Any]]:
    """A table of many small files, of two days."""
    topic = new_topic(f"small-{to}")
    where: dict[str, Any] = {"to": to, "path": str(path), "bootstrap": bootstrap}
    for start in range(0, END, IN_EACH):
        times = [1_763_510_400_000_000 + (n % 2) * 86_400_000_000 for n in range(IN_EACH)]
        log.append(topic, numbered(start, start + IN_EACH), timestamps_us=times)
        tier(spark, topic, **where)
    return topic, where


@pytest.mark.parametrize("to", ["parquet", "delta", "iceberg"])
def test_small_files_become_few_with_the_same_rows_and_the_job_goes_on_from_there(
    spark: SparkSession, log: sync.Log, bootstrap: str, tmp_path: Path, to: str
) -> None:
    topic, where = grown(spark, log, bootstrap, to, tmp_path / "t")
    target = Target(to, str(tmp_path / "t"))
    table = find_table(target, f"default/{topic}")
    assert len(table.files()) == 2 * ROUNDS
    covered = table.coverage()
    for file in data_files(tmp_path / "t"):
        two_hours_ago = file.stat().st_mtime - 7_200
        os.utime(file, (two_hours_ago, two_hours_ago))
    done = tier(spark, topic, optimize=True, **where)
    assert done.optimized == (2 * ROUNDS, 2)
    assert len(table.files()) == 2 and table.coverage() == covered
    again = read_table(to, tmp_path / "t", topic)
    assert list(offsets_of(again)) == list(range(END)) and values_of(again) == numbered(0, END)
    assert (
        len(data_files(tmp_path / "t")) + len(list((tmp_path / "t").rglob("part-*.parquet")))
        == 2 * ROUNDS + 2
    )
    # What was replaced goes once it was replaced long enough ago, and no sooner.
    tier(spark, topic, expire_older_than_s=3_600, vacuum_older_than_s=3_600, **where)
    assert len(list((tmp_path / "t").rglob("*.parquet"))) >= 2 * ROUNDS + 2
    done = tier(spark, topic, optimize=True, expire_older_than_s=0, vacuum_older_than_s=0, **where)
    assert done.optimized == (0, 0)
    left = [each for each in (tmp_path / "t").rglob("*.parquet") if "_delta_log" not in each.parts]
    assert len(left) == 2
    log.append(topic, numbered(END, END + 10))
    assert tier(spark, topic, **where).next_offset == END + 10
    assert list(offsets_of(read_table(to, tmp_path / "t", topic))) == list(range(END + 10))
    assert audit(spark, topic, against=str(tmp_path / "t"), bootstrap=bootstrap).is_clean


def test_an_exchange_that_comes_late_changes_nothing(
    spark: SparkSession, log: sync.Log, bootstrap: str, tmp_path: Path
) -> None:
    topic, where = grown(spark, log, bootstrap, "parquet", tmp_path / "t")
    one = ParquetTable.open(str(tmp_path / "t"))
    assert one is not None
    old = one.files()
    assert tier(spark, topic, optimize=True, **where).optimized == (2 * ROUNDS, 2)
    after = one.files()
    assert not one.replace(old, [DataFile("ister-late.parquet", 1, END, 0, END - 1)])
    assert one.files() == after
    assert list(offsets_of(read_table("parquet", tmp_path / "t", topic))) == list(range(END))


class Overtaken(LocalFolder):
    """Somebody else commits just before the first one does."""

    def __init__(self, path: Path, other: Callable[[], object]) -> None:
        super().__init__(path)
        self._other = [other]

    def put_if_absent(self, name: str, text: str) -> bool:
        if self._other:
            self._other.pop()()
        return super().put_if_absent(name, text)


def test_a_commit_that_an_exchange_overtakes_is_taken_and_one_that_a_commit_overtakes_is_not(
    tmp_path: Path,
) -> None:
    origin = Origin("c1", "default/orders", 7)
    other = ParquetTable.create(str(tmp_path / "t"), origin, log_schema(), ())
    small = [DataFile(f"ister-{n}.parquet", 10, 5, 5 * n, 5 * n + 4) for n in range(2)]
    assert other.commit(small, None, Coverage(0, 10))
    large, more = DataFile("ister-large.parquet", 20, 10, 0, 9), DataFile("ister-more.parquet", 10, 5, 10, 14)
    described = json.loads((tmp_path / "t" / "_ister" / "table.json").read_text())
    folder = Overtaken(tmp_path / "t", lambda: other.replace(small, [large]))
    assert ParquetTable(folder, described).commit([more], Coverage(0, 10), Coverage(0, 15))
    assert {file.path for file in other.files()} == {large.path, more.path}
    folder = Overtaken(tmp_path / "t", lambda: other.commit([], Coverage(0, 15), Coverage(0, 20)))
    assert not ParquetTable(folder, described).commit([], Coverage(0, 15), Coverage(0, 18))
    assert other.coverage() == Coverage(0, 20)


def test_only_small_files_of_one_partition_go_together() -> None:
    def file(path: str, size: int, first: int) -> DataFile:
        return DataFile(path, size, 1, first, first)

    files = [
        file("date=2/b", 30, 5),
        file("date=1/large", 80, 0),
        file("date=1/c", 40, 9),
        file("date=1/a", 40, 1),
        file("date=1/b", 40, 4),
        file("date=2/a", 30, 2),
        file("date=3/alone", 1, 7),
    ]
    lots = [[one.path for one in lot] for lot in small_together(files, 100)]
    assert lots == [["date=1/a", "date=1/b"], ["date=2/a", "date=2/b"]]
