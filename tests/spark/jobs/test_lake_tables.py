"""Tables by themselves: a commit is taken once and from where the table is, orphans go, others are let be."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from job_helpers import DAY_US, FIRST_DAY_US, data_files, offsets_of, read_table

from ister.errors import BadRequest, ConfigError, DependencyMissing, StoreUnavailable, TableMismatch
from ister.spark.jobs.lake.delta import DeltaTable
from ister.spark.jobs.lake.iceberg import IcebergTable
from ister.spark.jobs.lake.opening import Target, find_table, open_table
from ister.spark.jobs.lake.table import Coverage, DataFile, LakeTable, Origin
from ister.spark.jobs.lake.told import told
from ister.spark.jobs.tiering.files import FileSet
from ister.spark.jobs.tiering.plan import log_schema

pytestmark = pytest.mark.spark

FORMATS = ("parquet", "delta", "iceberg")
ORIGIN = Origin("c1", "default/orders", 7, partition_by="date")


@pytest.fixture(params=FORMATS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    return Target(request.param, str(tmp_path / "lake"))


def opened(target: Target, origin: Origin = ORIGIN) -> LakeTable:
    return open_table(target, origin, log_schema())


def written(table: LakeTable, start: int, end: int) -> list[DataFile]:
    """Rows of these offsets in files that no commit names."""
    files = FileSet(table.location, log_schema(), "date", 1 << 20, f"{start}-{end}", False)
    count = end - start
    columns = {
        "offset": pa.array(range(start, end), pa.int64()),
        "timestamp": pa.array(
            [FIRST_DAY_US + n % 2 * DAY_US for n in range(count)], pa.timestamp("us", "UTC")
        ),
        "timestampType": pa.array([0] * count, pa.int32()),
        "key": pa.nulls(count, pa.binary()),
        "value": pa.array([b"v%d" % n for n in range(start, end)], pa.binary()),
        "headers": pa.nulls(count, log_schema().field("headers").type),
    }
    files.add(pa.RecordBatch.from_arrays([columns[name] for name in log_schema().names], schema=log_schema()))
    return files.finish()


def offsets(target: Target) -> list[int]:
    assert target.path is not None
    return list(offsets_of(read_table(target.to, target.path, "orders")))


def test_a_commit_is_the_files_and_how_far_the_table_is(target: Target) -> None:
    table = opened(target)
    assert table.coverage() is None
    files = written(table, 0, 10)
    assert table.commit(files, None, Coverage(0, 10))
    again = opened(target)
    assert again.coverage() == Coverage(0, 10)
    assert again.origin() == ORIGIN
    assert offsets(target) == list(range(10))
    assert sorted((each.first_offset, each.last_offset, each.records) for each in again.files()) == [
        (0, 8, 5), (1, 9, 5),
    ]  # fmt: skip


def test_a_commit_that_is_repeated_adds_nothing(target: Target) -> None:
    table = opened(target)
    files = written(table, 0, 10)
    assert table.commit(files, None, Coverage(0, 10))
    assert not table.commit(files, None, Coverage(0, 10))
    assert not opened(target).commit(files, None, Coverage(0, 10))
    assert offsets(target) == list(range(10))


def test_of_two_jobs_that_begin_at_one_offset_one_is_taken(target: Target) -> None:
    one, other = opened(target), opened(target)
    assert one.commit(written(one, 0, 5), None, Coverage(0, 5))
    stale = other.coverage()
    assert one.commit(written(one, 5, 9), stale, Coverage(0, 9))
    assert not other.commit(written(other, 5, 12), stale, Coverage(0, 12))
    assert other.coverage() == Coverage(0, 9)
    assert offsets(target) == list(range(9))


def test_two_commits_at_the_same_moment_are_one(target: Target) -> None:
    """Each looks where the table is before it commits; the format itself must still decide between them."""
    tables = [opened(target) for _ in range(4)]
    files = [written(table, 0, 5) for table in tables]
    together = threading.Barrier(len(tables))
    taken: list[bool] = []

    def commit(table: LakeTable, mine: list[DataFile]) -> None:
        together.wait()
        taken.append(table.commit(mine, None, Coverage(0, 5)))

    threads = [threading.Thread(target=commit, args=each) for each in zip(tables, files, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [False, False, False, True]
    assert offsets(target) == list(range(5))


@pytest.mark.parametrize("to", ["delta", "iceberg"])
def test_a_commit_without_files_does_not_take_the_table_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    """Such as one of dead letters alone: between its look at the table and its commit, another one comes."""
    target = Target(to, str(tmp_path / "lake"))
    one, other = opened(target), opened(target)
    assert one.commit(written(one, 0, 5), None, Coverage(0, 5))
    kind: Any = {"delta": DeltaTable, "iceberg": IcebergTable}[to]
    look = kind.coverage

    def look_and_be_overtaken(table: LakeTable) -> Coverage | None:
        monkeypatch.undo()
        found: Coverage | None = look(table)
        assert one.commit(written(one, 5, 9), found, Coverage(0, 9))
        return found

    monkeypatch.setattr(kind, "coverage", look_and_be_overtaken)
    assert not other.commit([], Coverage(0, 5), Coverage(0, 7))
    assert opened(target).coverage() == Coverage(0, 9)
    assert one.commit([], Coverage(0, 9), Coverage(0, 12))
    assert opened(target).coverage() == Coverage(0, 12)
    assert offsets(target) == list(range(9))


def test_a_catalog_that_takes_no_commit_is_said_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not asked for ever."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitFailedException

    table = opened(Target("iceberg", str(tmp_path)))

    def refuse(*_args: object) -> None:
        raise CommitFailedException("locked")

    monkeypatch.setattr(SqlCatalog, "commit_table", refuse)
    with pytest.raises(StoreUnavailable, match=r"default.orders took no commit.*locked"):
        table.commit(written(table, 0, 5), None, Coverage(0, 5))
    monkeypatch.undo()
    assert table.commit(written(table, 0, 5), None, Coverage(0, 5))


def test_jobs_that_make_one_table_at_the_same_moment_have_it(target: Target, tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def make(at: Target, together: threading.Barrier) -> None:
        together.wait()
        try:
            assert opened(at).coverage() is None
        except BaseException as error:
            errors.append(error)

    for number in range(4):
        at = replace(target, path=str(tmp_path / f"lake-{number}"))
        together = threading.Barrier(6)
        threads = [threading.Thread(target=make, args=(at, together)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []


def test_a_commit_lasts_with_its_files_and_all_folders_that_lead_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition's folder that is new is an entry of the table's own."""
    synced: set[int] = set()
    fsync = os.fsync

    def note(handle: int) -> None:
        synced.add(os.fstat(handle).st_ino)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note)
    table = opened(Target("parquet", str(tmp_path / "lake")))
    assert table.commit(written(table, 0, 10), None, Coverage(0, 10))
    kept = [*data_files(tmp_path), *(tmp_path / "lake" / "_ister").rglob("*.json")]
    assert len(kept) == 4
    needed = {each for file in kept for each in (file, *file.parents) if each.is_relative_to(tmp_path)}
    assert {each for each in needed if each.stat().st_ino not in synced} == set()


def test_gaps_are_kept_with_the_table(target: Target) -> None:
    table = opened(target)
    first = Coverage(0, 30, ((0, 20),))
    assert table.commit(written(table, 20, 30), None, first)
    second = Coverage(0, 50, ((0, 20), (35, 40)))
    assert table.commit(written(table, 30, 35) + written(table, 40, 50), first, second)
    assert opened(target).coverage() == second


def test_the_vacuum_takes_what_no_commit_names_and_is_old(target: Target) -> None:
    table = opened(target)
    table.commit(written(table, 0, 10), None, Coverage(0, 10))
    named = set(data_files(target.path or ""))
    written(table, 10, 20)
    orphans = set(data_files(target.path or "")) - named
    assert len(orphans) == 2
    assert table.vacuum(3600) == []
    for each in orphans | named:
        os.utime(each, (1_000_000_000, 1_000_000_000))
    assert len(table.vacuum(3600)) == 2
    assert set(data_files(target.path or "")) == named
    assert offsets(target) == list(range(10))


def test_the_vacuum_lets_files_of_others_be(target: Target) -> None:
    table = opened(target)
    table.commit(written(table, 0, 10), None, Coverage(0, 10))
    foreign = Path(table.location) / "notes.parquet"
    foreign.write_bytes(b"somebody's")
    os.utime(foreign, (1_000_000_000, 1_000_000_000))
    assert table.vacuum(3600) == []
    assert foreign.exists()


def test_the_vacuum_lets_another_table_be_that_lies_below(target: Target) -> None:
    table = opened(target)
    table.commit(written(table, 0, 10), None, Coverage(0, 10))
    for place in (f"{table.location}/other", f"{table.location}/region=eu"):
        below = open_table(Target("parquet", place), replace(ORIGIN, topic="default/other"), log_schema())
        assert below.commit(written(below, 0, 10), None, Coverage(0, 10))
    there = set(data_files(table.location))
    for file in there:
        os.utime(file, (1_000_000_000, 1_000_000_000))
    assert table.vacuum(3600) == []
    assert set(data_files(table.location)) == there


def test_what_its_library_replaced_in_a_delta_table_goes_once(tmp_path: Path) -> None:
    """Its own compacted files among them, which have other names than ours."""
    table = opened(Target("delta", str(tmp_path)))
    for start in (0, 10):
        table.commit(written(table, start, start + 10), table.coverage(), Coverage(0, start + 10))
        table.compact(1 << 20)
    table.commit(written(table, 20, 30), table.coverage(), Coverage(0, 30))
    table.compact(1 << 20)
    replaced = len(list(tmp_path.rglob("part-*.parquet"))) - 2
    assert replaced > 0 and table.vacuum(3600) == []
    orphans = written(table, 30, 40)
    assert table.expire(0) == replaced + 6
    assert table.expire(0) == 0  # what is gone is not told again
    assert len(table.vacuum(0)) == len(orphans)
    assert table.vacuum(0) == []
    assert sorted(str(file.relative_to(tmp_path)) for file in tmp_path.glob("date*/*.parquet")) == sorted(
        file.path for file in table.files()
    )


def test_the_vacuum_alone_takes_what_its_library_replaced_in_a_delta_table(tmp_path: Path) -> None:
    table = opened(Target("delta", str(tmp_path)))
    for start in (0, 10, 20):
        table.commit(written(table, start, start + 10), table.coverage(), Coverage(0, start + 10))
        table.compact(1 << 20)
    assert len(list(tmp_path.rglob("part-*.parquet"))) == 4
    assert sum("/part-" in path for path in table.vacuum(0)) == 2
    assert offsets(Target("delta", str(tmp_path))) == list(range(30))


def test_a_commit_of_somebody_else_is_in_nobodys_way(tmp_path: Path) -> None:
    """Compaction of a Delta table between two of ours."""
    import deltalake

    target = Target("delta", str(tmp_path))
    table = opened(target)
    for start in (0, 5):
        covered = table.coverage()
        table.commit(written(table, start, start + 5), covered, Coverage(0, start + 5))
    deltalake.DeltaTable(str(tmp_path)).optimize.compact()
    assert table.commit(written(table, 10, 12), Coverage(0, 10), Coverage(0, 12))
    assert offsets(target) == list(range(12))


def test_a_property_set_on_an_iceberg_table_meanwhile_is_in_nobodys_way(tmp_path: Path) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    target = Target("iceberg", str(tmp_path))
    table = opened(target)
    table.commit(written(table, 0, 5), None, Coverage(0, 5))
    catalog = SqlCatalog("ister", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    with catalog.load_table("default.orders").transaction() as change:
        change.set_properties(owner="somebody")
    assert table.commit(written(table, 5, 7), Coverage(0, 5), Coverage(0, 7))
    assert offsets(target) == list(range(7))
    properties = catalog.load_table("default.orders").properties
    assert properties["owner"] == "somebody"
    assert not any(name.startswith("commit.retry") for name in properties)


def test_a_table_that_others_made_is_refused(tmp_path: Path) -> None:
    import deltalake

    deltalake.DeltaTable.create(str(tmp_path), schema=log_schema())
    with pytest.raises(TableMismatch, match="was not made by Ister"):
        opened(Target("delta", str(tmp_path)))


def test_another_clusters_topic_of_the_same_name_is_another_topic(target: Target) -> None:
    opened(target)
    with pytest.raises(TableMismatch, match="of the cluster c1, not of c2"):
        opened(target, Origin("c2", "default/orders", 7, partition_by="date"))


def test_a_path_that_is_a_file_is_refused(target: Target, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("somebody's")
    for path in ("notes", "notes/table"):
        with pytest.raises(ConfigError, match="notes is a file"):
            opened(replace(target, path=str(tmp_path / path)))


def test_what_the_store_says_is_told_in_one_line_with_the_table(tmp_path: Path) -> None:
    target = Target("delta", str(tmp_path / "lake"))
    table = opened(target)
    (tmp_path / "lake" / "_delta_log" / f"{0:020}.json").write_text("{")
    with pytest.raises(StoreUnavailable) as caught:
        opened(target)
    assert f"the table {tmp_path}/lake can't be reached: " in caught.value.message
    assert not set("\n\x1b") & set(caught.value.message)
    (tmp_path / "lake" / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(StoreUnavailable):
        table.commit(written(table, 0, 5), None, Coverage(0, 5))


def test_a_manifest_needs_a_directory_or_a_bucket_and_a_catalog_is_in_no_bucket() -> None:
    with pytest.raises(BadRequest, match="can't be at 'gs://bucket/table'") as caught:
        find_table(Target("parquet", "gs://bucket/table"), "default/orders")
    assert "s3://" in caught.value.hint
    with pytest.raises(ConfigError, match="needs a catalog"):
        find_table(Target("iceberg", "s3://bucket/table"), "default/orders")


def test_a_catalog_that_can_not_be_opened_says_how_to_describe_it() -> None:
    with pytest.raises(ConfigError, match="the catalog 'none-such'"):
        find_table(Target("iceberg", None, "none-such"), "default/orders")


@pytest.mark.parametrize("uri", ["foo://u:SECRET@h/lake", "foo://u:SEC@SECRET/3@h/lake"])
def test_a_catalog_that_can_not_be_opened_keeps_its_password(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"the catalog 'prod'.*foo://h/lake") as caught:
        find_table(Target("iceberg", None, "prod", {"uri": uri}), "default/orders")
    assert "SEC" not in "".join(traceback.format_exception(caught.value))


def test_a_driver_that_a_catalog_needs_and_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    glue = Target("iceberg", None, "prod", {"type": "glue"})
    with pytest.raises(DependencyMissing, match=r"default.orders .*pyiceberg\[glue\]") as caught:
        find_table(glue, "default/orders")
    assert "ister[lake]" in caught.value.hint
    with pytest.raises(DependencyMissing, match="no_such_driver"), told("lake.orders"):
        importlib.import_module("no_such_driver")
