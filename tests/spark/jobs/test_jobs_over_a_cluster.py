"""Jobs over three brokers: replicas compared, a broker lost with its disk under them, any kind of session."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bench.cluster.nodes import ClusterProcesses, running_cluster
from job_helpers import flip_a_byte, new_topic, numbered, offsets_of, read_delta, values_of
from spark_cluster import run_script

from ister import sync
from ister.spark import audit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("tier_and_audit.py")
PATIENCE_S = 120


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with running_cluster(tmp_path_factory.mktemp("brokers"), {"monitor_check_ms": 200}) as cluster:
        asyncio.run(cluster.wait_whole())
        yield cluster


def fill(log: sync.Log, records: int, segment_records: int) -> str:
    topic = new_topic("replicated")
    log.create_topic(topic, segment_records=segment_records, replicas=3)
    for start in range(0, records, 50):
        log.append(topic, numbered(start, start + 50))
    return topic


def test_replicas_that_are_alike_are_clean(spark: SparkSession, brokers: ClusterProcesses) -> None:
    with sync.connect(brokers.bootstrap) as log:
        topic = fill(log, 250, 100)
    report = audit(spark, topic, bootstrap=brokers.bootstrap, replicas=True)
    assert report.is_clean, report.topics[0].findings
    assert report.topics[0].replicas_compared
    assert all(sorted(segment.replicas) == [1, 2, 3] for segment in report.topics[0].segments)


def test_one_damaged_replica_is_named_with_its_offsets(
    spark: SparkSession, brokers: ClusterProcesses
) -> None:
    with sync.connect(brokers.bootstrap) as log:
        topic = fill(log, 250, 100)
    node = brokers.nodes[3]
    node.stop()
    flip_a_byte_of(node.directory / "data", topic_values=b"record 60")
    node.start()
    asyncio.run(brokers.wait_whole())
    report = audit(spark, topic, bootstrap=brokers.bootstrap, replicas=True)
    (finding,) = report.topics[0].findings
    assert (finding.check, finding.segment, finding.node) == ("replica", 1, 3)
    assert finding.start <= 60 < finding.end
    assert "node 3" in finding.what


def flip_a_byte_of(data_dir: Path, topic_values: bytes) -> None:
    """In the newest file that has the bytes: other tests' topics have records of the same values."""
    holding = [each for each in data_dir.rglob("*.log") if topic_values in each.read_bytes()]
    newest = max(holding, key=lambda path: int(path.parent.name))
    flip_a_byte(newest.parent, topic_values)


def test_a_table_is_exact_and_an_audit_clean_while_a_broker_is_lost_with_its_disk(
    standalone: Any, brokers: ClusterProcesses, tmp_path: Path
) -> None:
    """On a standalone Spark cluster of a master and two workers, read back without Ister."""
    records = 6_000
    with sync.connect(brokers.bootstrap) as log:
        topic = fill(log, records, 1_000)
        leader = log.describe_topic(topic).segments[-1].leader
    path = tmp_path / "table"
    committed: list[int] = []
    lost = threading.Thread(target=lose_a_disk, args=(brokers, leader, path, committed))
    lost.start()
    where = ["--master", standalone.master, "--bootstrap", brokers.bootstrap]
    done = run_script(
        PROGRAM, *where, "--topic", topic, "--path", str(path), "--file-bytes", "20000", cwd=tmp_path
    )
    lost.join()
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["records"], found["clean"], found["findings"]) == (records, True, [])
    assert brokers.nodes[leader].starts > 1
    assert committed == [0], "the broker died when the job had written files, and had not committed them"
    table = read_delta(path)
    assert offsets_of(table) == list(range(records))
    assert values_of(table) == numbered(0, records)


def lose_a_disk(brokers: ClusterProcesses, node_id: int, path: Path, committed: list[int]) -> None:
    """Once the job has written something: kill -9, an empty disk, and up again."""
    deadline = time.monotonic() + PATIENCE_S
    while not any(path.rglob("ister-*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.02)
    brokers.nodes[node_id].kill()
    # The table's first entry is that it was made.
    committed.append(len(list((path / "_delta_log").glob("*.json"))) - 1)
    brokers.wipe(node_id)
    brokers.nodes[node_id].start()


def test_a_job_runs_over_spark_connect(
    connect_server: Any, bootstrap: str, log: sync.Log, tmp_path: Path
) -> None:
    topic = new_topic("connect")
    for start in range(0, 1_000, 100):
        log.append(topic, numbered(start, start + 100))
    path = tmp_path / "table"
    where = ["--remote", connect_server.remote, "--bootstrap", bootstrap]
    done = run_script(PROGRAM, *where, "--topic", topic, "--path", str(path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["records"], found["clean"]) == (1_000, True)
    assert offsets_of(read_delta(path)) == list(range(1_000))
