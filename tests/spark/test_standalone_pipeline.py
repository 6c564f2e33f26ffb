"""A standalone Spark cluster over three brokers, one of which dies with its disk while the jobs run."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import pytest
from bench.cluster.nodes import ClusterProcesses, running_cluster
from spark_cluster import StandaloneSpark, environment

from ister import sync

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ISTER = "import sys; from ister.cli.main import main; sys.argv[0] = 'ister'; main()"
RECORDS = 120_000
FRAME = 2_000
PATIENCE_S = 900


class Story(NamedTuple):
    """What came of it."""

    tiered: dict[str, Any]
    audited: dict[str, Any]
    leader: int
    was_tiering: bool
    """The first files of the table were there, and not the last ones, when the broker died."""
    table: Path


def value_of(number: int) -> bytes:
    return b"%07d" % number + b"." * 193


def start_job(master: str, directory: Path, *arguments: str) -> subprocess.Popen[str]:
    memory = ["--conf", "spark.executor.memory=512m"]
    command = [sys.executable, "-c", ISTER, "pipeline", *arguments, "--output", "json"]
    return subprocess.Popen(
        [*command, "--master", master, *memory],
        env=environment(),
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result_of(job: subprocess.Popen[str]) -> dict[str, Any]:
    out, errors = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, (out[-1000:], errors[-4000:])
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def fill(cluster: ClusterProcesses) -> int:
    """The topic; returns who leads its open segment."""
    with sync.connect(cluster.bootstrap) as log:
        log.create_topic("orders", segment_records=20_000, replicas=3)
        for start in range(0, RECORDS, FRAME):
            log.append("orders", [value_of(number) for number in range(start, start + FRAME)])
        return log.describe_topic("orders").segments[-1].leader


def wait_for_a_file(table: Path, job: subprocess.Popen[str]) -> bool:
    """Returns once the job has written the first of its files; whether it still runs."""
    for _ in range(PATIENCE_S * 50):
        if job.poll() is not None:
            return False
        if any(table.rglob("*.parquet")):
            return True
        Event().wait(0.02)
    raise AssertionError("the job has written no file")


@pytest.fixture(scope="module")
def story(standalone: StandaloneSpark, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    directory = tmp_path_factory.mktemp("pipeline")
    table = directory / "lake" / "orders"
    with running_cluster(directory / "brokers", {}) as cluster:
        asyncio.run(cluster.wait_whole())
        leader = fill(cluster)
        where = ["--bootstrap", cluster.bootstrap]
        asked = ["tier", "orders", "--to", "delta", "--path", str(table), "--file-size", "1MiB"]
        tier = start_job(standalone.master, directory, *asked, *where)
        was_tiering = wait_for_a_file(table, tier)
        cluster.nodes[leader].kill()
        cluster.wipe(leader)
        tiered = result_of(tier)
        audit = start_job(standalone.master, directory, "audit", "orders", "--against", str(table), *where)
        audited = result_of(audit)
    yield Story(tiered, audited, leader, was_tiering, table)


def test_the_broker_died_with_its_disk_while_the_topic_was_tiered(story: Story) -> None:
    assert story.was_tiering
    assert story.tiered["complete"]
    assert (story.tiered["records"], story.tiered["gaps"]) == (RECORDS, [])


def test_the_table_is_exact_by_the_format_s_own_library(story: Story) -> None:
    from deltalake import DeltaTable

    found = DeltaTable(str(story.table)).to_pyarrow_table().sort_by("offset")
    assert found.column("offset").to_pylist() == list(range(RECORDS))
    assert found.column("value").to_pylist() == [value_of(number) for number in range(RECORDS)]


def test_the_audit_of_topic_and_table_says_clean(story: Story) -> None:
    assert story.audited["clean"]
