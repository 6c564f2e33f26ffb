"""Tables in a bucket of a real S3 server: written, read back by their own libraries, never by a jar."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_helpers import offsets_of
from test_lake_tables import ORIGIN, opened, written
from tests.io.weed import BUCKET, s3_server

from ister.errors import ConfigError
from ister.spark.jobs.lake.folders import BucketFolder
from ister.spark.jobs.lake.leftovers import filesystem_of
from ister.spark.jobs.lake.opening import Target, find_table, format_at
from ister.spark.jobs.lake.table import Coverage, DataFile, LakeTable
from ister.spark.jobs.tiering.optimizing import RewritePlan, rewrite, small_together
from ister.spark.jobs.tiering.plan import log_schema

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_server(tmp_path_factory.mktemp("s3") / "data") as environment:
        yield environment


@pytest.fixture(params=["parquet", "delta", "iceberg"])
def target(
    request: pytest.FixtureRequest,
    server: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Target:
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    place = f"s3://{BUCKET}/{request.node.name.translate(str.maketrans('[]', '--'))}/lake"
    if request.param != "iceberg":
        return Target(request.param, place)
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": place}
    return Target("iceberg", None, "ister", catalog)


def read_back(target: Target) -> list[int]:
    """By the library of each format alone."""
    if target.to == "iceberg":
        from pyiceberg.catalog import load_catalog

        where = {"s3.endpoint": os.environ["AWS_ENDPOINT_URL"], "s3.region": os.environ["AWS_REGION"]}
        catalog = load_catalog("ister", **target.catalog_properties, **where)
        found = catalog.load_table("default.orders").scan().to_arrow()
    elif target.to == "delta":
        from deltalake import DeltaTable

        found = DeltaTable(str(target.path)).to_pyarrow_table()
    else:
        filesystem, root = filesystem_of(str(target.path))
        listed = sorted(found.path for found in filesystem.get_file_info(_below(f"{root}/_ister/commits")))
        commits = [json.loads(filesystem.open_input_stream(path).read()) for path in listed]
        gone = {path for commit in commits for path in commit.get("removes", ())}
        files = [file["path"] for commit in commits for file in commit["files"]]
        tables = [
            pq.read_table(f"{root}/{each}", filesystem=filesystem) for each in files if each not in gone
        ]
        found = pa.concat_tables(tables)
    return list(offsets_of(found.sort_by("offset")))


def _below(path: str) -> object:
    from pyarrow.fs import FileSelector

    return FileSelector(path)


def name_of(target: Target) -> str:
    return ORIGIN.topic


def test_a_table_is_written_and_read_back_without_ister(target: Target) -> None:
    table = opened(target)
    assert table.commit(written(table, 0, 10), None, Coverage(0, 10))
    assert table.commit(written(table, 10, 30), Coverage(0, 10), Coverage(0, 30))
    assert not table.commit(written(table, 10, 20), Coverage(0, 10), Coverage(0, 20))
    again = find_table(target, name_of(target))
    assert (again.coverage(), again.origin()) == (Coverage(0, 30), ORIGIN)
    assert read_back(target) == list(range(30))
    if target.path is not None:
        assert format_at(target.path) == target.to


def test_two_commits_at_the_same_moment_are_one(target: Target) -> None:
    tables = [opened(target) for _ in range(3)]
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
    assert sorted(taken) == [False, False, True]
    assert read_back(target) == list(range(5))


def test_small_files_become_few_and_what_nobody_names_goes(target: Target) -> None:
    table = opened(target)
    for start in range(0, 40, 10):
        before = Coverage(0, start) if start else None
        assert table.commit(written(table, start, start + 10), before, Coverage(0, start + 10))
    orphans = {file.path for file in written(table, 40, 50)}
    assert not set(table.vacuum(3_600))
    if table.compact(MEGABYTE) is None:
        plan = RewritePlan(table.location, log_schema(), "date", MEGABYTE, False)
        lots = list(small_together(table.files(), MEGABYTE))
        assert all(table.replace(lot, rewrite(plan, lot)) for lot in lots)
    assert len(table.files()) == 2
    assert (table.coverage(), read_back(target)) == (Coverage(0, 40), list(range(40)))
    table.expire(0)
    assert set(table.vacuum(0)) >= orphans
    assert read_back(target) == list(range(40))
    filesystem, root = filesystem_of(table.location)
    from pyarrow.fs import FileSelector

    left = [each.path for each in filesystem.get_file_info(FileSelector(root, recursive=True))]
    assert len([each for each in left if each.endswith(".parquet") and "_delta_log" not in each]) == 2


def test_nothing_that_is_kept_of_a_table_has_the_secret(
    target: Target, server: dict[str, str], tmp_path: Path
) -> None:
    table = opened(target)
    assert table.commit(written(table, 0, 10), None, Coverage(0, 10))
    secret = server["AWS_SECRET_ACCESS_KEY"].encode()
    filesystem, root = filesystem_of(f"s3://{BUCKET}")
    from pyarrow.fs import FileSelector

    for found in filesystem.get_file_info(FileSelector(root, recursive=True)):
        if found.is_file:
            assert secret not in filesystem.open_input_stream(found.path).read(), found.path
    assert all(secret not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_bucket_that_overwrites_is_refused(server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(BucketFolder, "put_if_absent", lambda *_: True)
    with pytest.raises(ConfigError, match="was not refused"):
        opened(Target("parquet", f"s3://{BUCKET}/overwriting"))
