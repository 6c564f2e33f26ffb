"""`tier --optimize|--expire`: fewer files, the same rows, the place of the table unchanged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from job_helpers import data_files, new_topic, numbered, offsets_of, read_table, values_of

from ister import sync
from ister.spark import audit, tier
from ister.spark.jobs.lake.opening import Target, find_table
from ister.spark.jobs.lake.parquet import ParquetTable
from ister.spark.jobs.lake.table import DataFile
from ister.spark.jobs.tiering.optimizing import small_together

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
