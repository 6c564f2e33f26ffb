"""A cluster of brokers whose history is in a real S3 server, and a cluster of Spark that works on it, while
the topic moves, a broker is killed, and the S3 server goes away and comes back."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bench.cluster.nodes import ClusterProcesses, running_cluster
from hurried import SERVE_HURRIED
from job_helpers import new_topic, numbered, offsets_of, read_delta, values_of
from spark_cluster import StandaloneSpark, run_script
from tests.io.weed import BUCKET, S3Server

import ister
from ister import sync

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("jobs_over_s3.py")
PATIENCE_S = 120
SEGMENTS, RECORDS = 6, 1_000
END = SEGMENTS * RECORDS + 300


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """With its credentials in the environment of all that is started here, and nowhere else."""
    made = S3Server(tmp_path_factory.mktemp("s3") / "data")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in made.environment.items():
            patch.setenv(name, value)
        try:
            made.start()
            yield made
        finally:
            made.stop()


@pytest.fixture(scope="module")
def brokers(server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    settings = {
        "monitor_check_ms": 200,
        "storage_mode": "object_store",
        "storage_url": f"s3://{BUCKET}/kept",
    }
    with running_cluster(tmp_path_factory.mktemp("brokers"), settings, SERVE_HURRIED) as cluster:
        asyncio.run(cluster.wait_whole())
        yield cluster


@pytest.fixture(scope="module")
def workers(server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of the master, and where all of them write what they say."""
    directory = tmp_path_factory.mktemp("workers")
    made = StandaloneSpark(directory)
    yield made.master, directory
    made.stop()


def fill(log: sync.Log) -> str:
    """All sealed segments are in the history, and half of them only there."""
    topic = new_topic("in-s3")
    log.create_topic(topic, segment_records=RECORDS, replicas=3, local_retention_ms=1)
    for start in range(0, END, 100):
        log.append(topic, numbered(start, start + 100))
    deadline = time.monotonic() + PATIENCE_S
    while sum(bool(one.name) and not one.replicas for one in log.history(topic).entries) < SEGMENTS // 2:
        assert time.monotonic() < deadline, log.history(topic)
        time.sleep(0.2)
    return topic


class Trouble:
    """What happens meanwhile, each thing in its time."""

    def __init__(
        self, brokers: ClusterProcesses, server: S3Server, topic: str, table: Path, marks: Path
    ) -> None:
        self._brokers = brokers
        self._server = server
        self._topic = topic
        self._table = table
        self._marks = marks
        self.done: list[str] = []
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        _wait_for(lambda: any(self._table.rglob("ister-*.parquet")))
        old, new = asyncio.run(self._move())
        self.done.append(f"moved from {old} to {new}")
        self._brokers.nodes[old].kill()
        self._restart_server()
        self._brokers.nodes[old].start()
        self.done.append("a broker killed while the table was made")
        _wait_for((self._marks / "tiered").exists)
        self._brokers.nodes[new].kill()
        self._restart_server()
        self._brokers.nodes[new].start()
        self.done.append("a broker killed while it was compacted and audited")

    async def _move(self) -> tuple[int, int]:
        async with ister.connect(self._brokers.bootstrap) as log:
            old = (await log.describe_topic(self._topic)).segments[-1].leader
            new = old % 3 + 1
            await log.move_topic(self._topic, new)
            deadline = time.monotonic() + PATIENCE_S
            while (await log.describe_topic(self._topic)).segments[-1].leader != new:
                assert time.monotonic() < deadline, "the move did not come to its end"
                await asyncio.sleep(0.1)
        return old, new

    def _restart_server(self) -> None:
        self._server.stop()
        time.sleep(1)
        self._server.start()


def _wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_table_is_exact_and_an_audit_clean_through_a_move_a_killed_broker_and_a_restart_of_the_store(
    brokers: ClusterProcesses, server: S3Server, workers: tuple[str, Path], tmp_path: Path
) -> None:
    master, written = workers
    with sync.connect(brokers.bootstrap) as log:
        topic = fill(log)
    marks, events, table = (tmp_path / name for name in ("marks", "events", "table"))
    marks.mkdir()
    events.mkdir()
    trouble = Trouble(brokers, server, topic, table, marks)
    trouble.thread.start()
    where = {"master": master, "bootstrap": brokers.bootstrap, "topic": topic, "path": str(table)}
    where |= {"marks": str(marks), "events": str(events)}
    arguments = [word for name, value in where.items() for word in (f"--{name}", value)]
    done = run_script(PROGRAM, *arguments, cwd=tmp_path)
    (marks / "tiered").touch()
    trouble.thread.join()
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["records"], found["rows"], found["clean"], found["findings"]) == (END, END, True, [])
    assert found["stored"] >= SEGMENTS
    assert found["merged"] and found["objects"] < found["stored"], found["left"]
    assert len(trouble.done) == 3, trouble.done
    rows = read_delta(table)
    assert list(offsets_of(rows)) == list(range(END)) and values_of(rows) == numbered(0, END)
    # Who has read it had credentials, and nothing of Spark's shows them.
    secret = server.environment["AWS_SECRET_ACCESS_KEY"]
    said = [path for path in (*events.rglob("*"), *written.rglob("*")) if path.is_file()]
    assert any(path.is_relative_to(events) for path in said)
    kept = b"".join(path.read_bytes() for path in events.rglob("*") if path.is_file())
    assert b"SparkListenerSQLExecutionStart" in kept
    assert all(secret.encode() not in path.read_bytes() for path in said)
    assert secret not in found["plans"] + done.stdout + done.stderr
