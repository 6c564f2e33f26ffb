"""The same program on a standalone cluster and behind Spark Connect: source, sink, stream, job, catalog."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from any_session import WRITTEN
from spark_cluster import ConnectServer, StandaloneSpark, run_script

from ister import sync

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("any_session.py")
ISTER = "import sys; from ister.cli.main import main; sys.argv[0] = 'ister'; main()"
RECORDS = 24_000


class Ran(NamedTuple):
    found: dict[str, Any]
    target: str
    where: list[str]


@pytest.fixture(scope="module", params=["standalone", "connect"])
def ran(request: pytest.FixtureRequest, bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    if request.param == "standalone":
        cluster: StandaloneSpark = request.getfixturevalue("standalone")
        where = ["--master", cluster.master]
    else:
        server: ConnectServer = request.getfixturevalue("connect_server")
        where = ["--remote", server.remote]
    with sync.connect(bootstrap) as log:
        if not any(topic.topic == "default/source" for topic in log.list_topics()):
            log.append("source", [b"%05d" % number for number in range(RECORDS)])
    directory = tmp_path_factory.mktemp("program")
    target = f"written-{request.param}-{directory.name}"  # another one, where this is set up once more
    options = [*where, "--bootstrap", bootstrap, "--target", target, "--checkpoint", str(directory / "c")]
    done = run_script(PROGRAM, *options, cwd=directory)
    assert done.returncode == 0, done.stderr[-4000:]
    return Ran(json.loads(done.stdout.splitlines()[-1]), target, where)


def test_a_topic_is_read_whole(ran: Ran) -> None:
    assert ran.found["read"] == {"rows": RECORDS, "offsets": RECORDS, "last": f"{RECORDS - 1:05d}"}


def test_rows_are_written_each_once_though_every_task_ran_twice(ran: Ran, log: sync.Log) -> None:
    values = [int(record.value or b"") for record in log.read(ran.target)]
    assert sorted(values) == list(range(WRITTEN))
    assert values == [*reversed(range(WRITTEN // 2)), *reversed(range(WRITTEN // 2, WRITTEN))]


def test_a_stream_is_written_each_record_once_though_every_task_ran_twice(ran: Ran, log: sync.Log) -> None:
    values = [record.value for record in log.read(f"{ran.target}-streamed")]
    assert sorted(map(int, filter(None, values))) == list(range(RECORDS))
    staged = log.describe_topic(f"_spark/query-{ran.found['query']}.staged").end_offset
    assert staged > RECORDS, "the first attempts have staged something"


def test_a_job_runs_there(ran: Ran) -> None:
    assert ran.found["audit"] == {"clean": True, "records": RECORDS}


def test_the_catalog_of_segments_is_there(ran: Ran) -> None:
    assert ran.found["segments"] == [[0, RECORDS]]


def test_the_check_proves_the_way_of_every_executor(ran: Ran, bootstrap: str, tmp_path: Path) -> None:
    memory = ["--conf", "spark.executor.memory=512m"] if "--master" in ran.where else []
    executors = ["--executors", "2"] if "--master" in ran.where else []
    asked = ["spark", "check", "--bootstrap", bootstrap, "--output", "json", *ran.where, *memory, *executors]
    done = run_script(ISTER, *asked, cwd=tmp_path)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, [line for line in lines if not line["ok"]]) == (0, []), done.stderr[-4000:]
    of_executors = [line for line in lines if line["where"].startswith("executor ")]
    asked_for = {"python", "pyspark", "pyarrow", "ister", f"broker {bootstrap}"}
    by_executor: dict[str, set[str]] = {}
    for line in of_executors:
        by_executor.setdefault(line["where"], set()).add(line["what"])
    assert len(by_executor) == (2 if executors else 1)
    assert all(what == asked_for for what in by_executor.values())
    assert any(sys.executable in line["detail"] for line in of_executors)
