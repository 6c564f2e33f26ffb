"""What a run of `compact --latest-by-key` says and refuses before Spark has anything to do."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from job_helpers import new_topic, numbered

from ister import sync
from ister.cli import pipeline_compact
from ister.cli.main import run
from ister.cli.pipeline_common import JobRun
from ister.errors import TableMismatch, UnknownTopic
from ister.spark import latest_by_key
from ister.spark.jobs.latest_tasks import read_parts
from ister.spark.jobs.running import Stop
from ister.spark.jobs.snapshot import take_snapshot
from ister.spark.jobs.watching import Unwatched

pytestmark = pytest.mark.spark

NO_SPARK: Any = None


def test_a_target_that_has_other_records_is_refused(bootstrap: str, log: sync.Log) -> None:
    topic, target = new_topic("made-again"), new_topic("of-the-old-one")
    log.append(topic, numbered(0, 3))
    log.append(target, numbered(0, 5))
    with pytest.raises(TableMismatch, match=f"default/{target} has records .* offsets 0 to 4") as caught:
        latest_by_key(NO_SPARK, topic, to=target, bootstrap=bootstrap)
    assert "--to" in caught.value.hint


def test_a_run_that_is_stopped_says_so_and_one_without_records_has_nothing_to_do(
    bootstrap: str, log: sync.Log, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, empty = new_topic("stopped"), new_topic("empty")
    log.append(topic, numbered(0, 3))
    log.create_topic(empty)
    stop = Stop()
    stop.ask()

    @contextmanager
    def stopped_at_once(*_: Any) -> Iterator[JobRun]:
        yield JobRun(NO_SPARK, Unwatched(), stop)

    monkeypatch.setattr(pipeline_compact, "job_run", stopped_at_once)

    def said(topic: str) -> tuple[int, str, str]:
        command = ["pipeline", "compact", topic, "--latest-by-key", "--to", f"{topic}-now"]
        return run([*command, "--bootstrap", bootstrap], {}), *capsys.readouterr()

    code, out, err = said(topic)
    assert (code, out) == (130, "") and "stopped before the end" in err
    assert said(empty) == (0, f"nothing to do: default/{empty} has no records\n", "")


def test_a_source_that_is_made_again_meanwhile_is_not_read(bootstrap: str, log: sync.Log) -> None:
    topic = new_topic("made-again-meanwhile")
    log.append(topic, numbered(0, 3))
    parts = [take_snapshot(log, f"default/{topic}").range(1, 3)]

    def read() -> list[dict[str, Any]]:
        numbers = pa.RecordBatch.from_pydict({"id": [0]})
        return [
            row for rows in read_parts(bootstrap, parts, True, iter([numbers])) for row in rows.to_pylist()
        ]

    assert [(row["offset"], row["value"], row["told"]) for row in read()] == [
        (1, b"record 1", None),
        (2, b"record 2", None),
    ]
    log.delete_topic(topic)
    log.append(topic, numbered(5, 9))
    (row,) = read()
    assert isinstance(pickle.loads(row["told"]), UnknownTopic)
