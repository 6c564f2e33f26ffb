"""Every mode of `ister bench`, small, against a broker that it starts itself. No figure is judged here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FIELDS = (
    "records_per_s",
    "mb_per_s",
    "p50_ms",
    "p99_ms",
    "p999_ms",
    "rss_mb",
    "raw_mb_per_s",
    "ratio_to_raw",
)
COMMAND = (sys.executable, "-c", "from ister.cli.main import main; main()")

pytestmark = pytest.mark.slow  # real processes


def run_ister(directory: Path, *args: str) -> subprocess.CompletedProcess[str]:
    # The environment names a broker that is not there: the bench must not go to it.
    environ = {**os.environ, "ISTER_BOOTSTRAP": "127.0.0.1:1"}
    return subprocess.run([*COMMAND, *args], cwd=directory, env=environ, capture_output=True, text=True)


def bench(directory: Path, *args: str) -> dict[str, Any]:
    done = run_ister(directory, "bench", *args, "--repeats", "2", "--output", "json")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.parametrize(
    ("mode", "options", "more"),
    [
        ("append", ["--records", "200", "--batch", "20", "--in-flight", "4"], {"in_flight": 4, "batch": 20}),
        ("latency", ["--records", "5"], {"in_flight": 1, "batch": 1}),
        ("read", ["--records", "60", "--batch", "20"], {"fetch_disk_cache": "dropped"}),
        (
            "fanin",
            ["--records", "60", "--connections", "3", "--in-flight", "2"],
            {"connections": 3, "in_flight": 2},
        ),
        ("topics", ["--records", "120", "--batch", "10", "--topics", "4"], {"topics": 4}),
    ],
)
def test_each_mode_reports_every_field_and_leaves_nothing_behind(
    tmp_path: Path, mode: str, options: list[str], more: dict[str, Any]
) -> None:
    found = bench(tmp_path, mode, *options, "--size", "64")
    assert found["mode"] == mode
    assert {name: found[name] for name in more} == more
    assert (found["repeats"], found["size"], found["records"]) == (2, 64, int(options[1]))
    for name in FIELDS:
        assert found[name] > 0, name
    assert found["p50_ms"] <= found["p99_ms"] <= found["p999_ms"]
    assert list(tmp_path.iterdir()) == []


def test_latency_states_the_bare_write_beside_it(tmp_path: Path) -> None:
    found = bench(tmp_path, "latency", "--records", "5")
    assert found["p50_ratio_to_raw"] == pytest.approx(found["p50_ms"] / found["raw_p50_ms"], rel=0.01)


def test_reading_states_arrow_batches_and_lone_fetches(tmp_path: Path) -> None:
    found = bench(tmp_path, "read", "--records", "40", "--batch", "10")
    assert found["arrow_ratio_to_frames"] == pytest.approx(
        found["arrow_mb_per_s"] / found["mb_per_s"], rel=0.01
    )
    assert found["fetch_hot_p50_ms"] > 0 and found["fetch_disk_p50_ms"] > 0


def test_many_topics_are_stated_beside_one(tmp_path: Path) -> None:
    found = bench(tmp_path, "topics", "--records", "40", "--batch", "10", "--topics", "2")
    assert found["ratio_to_one_topic"] > 0 and found["one_topic_records_per_s"] > 0


def test_records_that_fill_no_batch_are_one_smaller_batch(tmp_path: Path) -> None:
    found = bench(tmp_path, "append", "--records", "7", "--batch", "1000")
    assert (found["records"], found["batch"]) == (7, 7)


def test_text_names_the_mode_and_the_fields(tmp_path: Path) -> None:
    done = run_ister(tmp_path, "bench", "append", "--records", "20", "--batch", "10", "--repeats", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("bench append\n")
    for name in FIELDS:
        assert name in done.stdout


def test_topics_are_made_with_the_settings_asked_for(tmp_path: Path) -> None:
    work = ["append", "--records", "200", "--batch", "20"]
    found = bench(tmp_path, *work, "--set", "fsync=none", "--set", "segment_records=50")
    assert found["settings"] == "fsync=none segment_records=50"
    done = run_ister(tmp_path, "bench", *work, "--set", "fsnyc=none")
    assert done.returncode == 2
    assert "did you mean fsync?" in done.stderr


def test_a_given_broker_that_is_not_there_is_an_error_and_not_another_broker(tmp_path: Path) -> None:
    done = run_ister(tmp_path, "bench", "append", "--bootstrap", "127.0.0.1:1", "--output", "json")
    assert done.returncode == 3
    assert json.loads(done.stderr)["error"] == "connection-failed"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_given_broker_is_measured_and_left_without_the_bench_s_topics(tmp_path: Path, where: str) -> None:
    from ister.bench.target import own_broker

    with own_broker(tmp_path) as target:
        given = ["--bootstrap", target.bootstrap]
        work = ["latency", "--records", "5"]
        found = bench(tmp_path, *given, *work) if where == "before" else bench(tmp_path, *work, *given)
        assert found["records_per_s"] > 0 and found["rss_mb"] > 1
        listed = run_ister(tmp_path, "topic", "list", *given, "--output", "json")
        assert (listed.returncode, listed.stdout) == (0, "")


@pytest.mark.parametrize("option", ["--records", "--batch", "--in-flight", "--repeats"])
def test_nothing_to_do_is_a_usage_error(tmp_path: Path, option: str) -> None:
    done = run_ister(tmp_path, "bench", "append", option, "0")
    assert done.returncode == 2
    assert option in done.stderr


@pytest.mark.parametrize("mode", ["", "append", "latency", "read", "fanin", "topics"])
def test_every_mode_has_a_help_with_examples(tmp_path: Path, mode: str) -> None:
    done = run_ister(tmp_path, "bench", *([mode] if mode else []), "--help")
    assert done.returncode == 0
    assert f"  ister bench {mode}".rstrip() in done.stdout.partition("Examples:\n")[2]
    assert "--output [text|json]" in done.stdout and "--bootstrap HOST:PORT" in done.stdout
