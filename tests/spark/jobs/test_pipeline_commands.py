"""`ister pipeline` as a script meets it: exit codes, one object of JSON, a service that ends when told to."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from history_helpers import filled, objects_of
from job_helpers import flip_a_byte, new_topic, numbered, offsets_of, read_delta, read_parquet

from ister import sync
from ister.cli.main import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

CALL = "import sys; from ister.cli.main import main; sys.argv[0] = 'ister'; main()"
PATIENCE_S = 120


@pytest.fixture
def cli(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> Any:
    """Run `ister` in this process, on the session that all tests share, which no command may stop."""
    monkeypatch.setattr(type(spark), "stop", lambda _self: None)

    def call(*args: str) -> tuple[int, str, str]:
        code = run(args, {})
        captured = capsysbinary.readouterr()
        return code, captured.out.decode(), captured.err.decode()

    return call


def test_tier_says_what_it_did_and_that_nothing_is_left_to_do(
    cli: Any, log: sync.Log, bootstrap: str, tmp_path: Path
) -> None:
    topic = new_topic("told")
    log.append(topic, numbered(0, 120))
    command = ["pipeline", "tier", topic, "--to", "delta", "--path", str(tmp_path), "--bootstrap", bootstrap]
    code, out, err = cli(*command, "--output", "json")
    assert (code, err) == (0, "")
    entry = json.loads(out)
    assert (entry["job"], entry["topic"], entry["complete"]) == ("tier", f"default/{topic}", True)
    assert (entry["start_offset"], entry["next_offset"], entry["records"]) == (0, 120, 120)
    code, out, _ = cli(*command)
    assert (code, out) == (0, f"{tmp_path} has all of default/{topic}: offsets up to 119\n")


def test_audit_exits_with_0_only_if_all_holds(cli: Any, own_broker: Any, tmp_path: Path) -> None:
    with sync.connect(own_broker.address) as log:
        topic = new_topic("audited")
        log.create_topic(topic, segment_records=100)
        for start in range(0, 250, 50):
            log.append(topic, numbered(start, start + 50))
    command = ["pipeline", "audit", topic, "--bootstrap", own_broker.address]
    code, out, _ = cli(*command, "--report", str(tmp_path / "clean.html"))
    assert code == 0
    assert out.splitlines()[-1].startswith(f"clean: all of default/{topic} holds")
    own_broker.stop()
    flip_a_byte(own_broker.data_dir, behind=b"record 60")
    own_broker.start()
    code, out, _ = cli(*command, "--report", str(tmp_path / "damaged.html"))
    assert code == 5
    assert f"checksum default/{topic} segment 1: offsets 50 to 99: " in out
    assert out.splitlines()[-1].startswith("NOT clean: 1 finding")
    code, out, err = cli(*command, "--output", "json")
    assert (code, err) == (5, "")
    entry = json.loads(out)
    assert entry["clean"] is False
    assert [(each["check"], each["start"], each["end"]) for each in entry["findings"]] == [
        ("checksum", 50, 100)
    ]
    for name, words in (("clean", "None: all that was checked holds."), ("damaged", "offsets 50 to 99")):
        page = (tmp_path / f"{name}.html").read_text()
        assert words in page
        assert "http" not in page.replace("http-equiv", "")


def test_mirror_says_what_it_copied_and_where_it_lies(cli: Any, log: sync.Log, bootstrap: str) -> None:
    topic, target = new_topic("mirrored-by-command"), new_topic("mirror-by-command")
    log.append(target, numbered(0, 3))
    log.append(topic, numbered(0, 40))
    command = ["pipeline", "mirror", topic, "--to", target, "--bootstrap", bootstrap]
    assert cli(*command, "--map")[:2] == (0, f"Nothing of {topic} was mirrored to {target} yet.\n")
    code, out, err = cli(*command, "--output", "json")
    assert (code, err) == (0, "")
    entry = json.loads(out)
    assert (entry["job"], entry["records"], entry["complete"]) == ("mirror", 40, True)
    assert cli(*command)[:2] == (0, f"default/{target} has all of default/{topic}: offsets up to 39\n")
    code, out, _ = cli(*command, "--map", "--output", "json")
    assert (code, json.loads(out)) == (0, {"source_offset": 0, "target_offset": 3, "count": 40})


def test_replay_writes_a_receipt_and_goes_by_it(
    cli: Any, log: sync.Log, bootstrap: str, tmp_path: Path
) -> None:
    topic, receipt = new_topic("replayed-by-command"), tmp_path / "receipt"
    log.append(topic, numbered(0, 40))
    command = ["pipeline", "replay", topic, "--bootstrap", bootstrap, "--receipt", str(receipt)]
    code, out, _ = cli(*command, "--from", "10", "--until", "30", "--to", new_topic("first"))
    assert (code, f"{receipt}, written" in out) == (0, True)
    code, out, _ = cli(*command, "--to", new_topic("second"), "--output", "json")
    entry = json.loads(out)
    assert (code, entry["start_offset"], entry["end_offset"], entry["compared"]) == (0, 10, 30, True)
    assert cli(*command, "--from", "5", "--to", new_topic("third"))[0] == 2
    told = json.loads(receipt.read_text())
    told["ranges"][0]["checksum"] = "0" * 32
    receipt.write_text(json.dumps(told))
    code, _, err = cli(*command, "--to", new_topic("fourth"))
    assert (code, "receipt-mismatch" in err, "offsets 10 to 29" in err) == (5, True, True)


def test_compact_says_what_became_of_the_objects_and_of_the_latest_records(
    cli: Any, kept: sync.Log, keeper: Any
) -> None:
    topic = new_topic("compacted")
    filled(kept, topic, 3)
    command = ["pipeline", "compact", topic, "--bootstrap", keeper.address]
    code, out, err = cli(*command, "--output", "json")
    assert (code, err) == (0, "")
    entry = json.loads(out)
    assert (entry["objects_before"], entry["objects_after"], entry["left"]) == (3, 1, [])
    assert [one["segments"] for one in entry["merged"]] == [3]
    code, out, _ = cli(*command)
    assert (code, out) == (0, f"nothing to merge: default/{topic} has 1 object in its history\n")
    code, _, err = cli(*command, "--latest-by-key")
    assert code == 2 and "go together" in err
    code, out, _ = cli(*command, "--latest-by-key", "--to", f"{topic}-now", "--output", "json")
    entry = json.loads(out)
    assert (code, entry["records"], entry["without_key"], entry["end_offset"]) == (0, 0, 35, 35)


def test_compact_names_what_is_damaged(cli: Any, kept: sync.Log, keeper: Any) -> None:
    topic = new_topic("compact-damaged")
    filled(kept, topic, 2)
    objects_of(kept, topic)[0].unlink()
    code, _, err = cli("pipeline", "compact", topic, "--bootstrap", keeper.address)
    assert code == 5 and "is not in" in err and "ister history verify" in err


def test_lag_tells_of_tables_and_writes_a_page(
    cli: Any, log: sync.Log, bootstrap: str, tmp_path: Path
) -> None:
    topic, table, page = new_topic("followed"), str(tmp_path / "table"), tmp_path / "lag.html"
    log.append(topic, numbered(0, 40))
    assert cli("pipeline", "tier", topic, "--to", "delta", "--path", table, "--bootstrap", bootstrap)[0] == 0
    log.append(topic, numbered(40, 47))
    command = ["pipeline", "lag", "--table", table, "--bootstrap", bootstrap]
    code, out, err = cli(*command, "--output", "json")
    assert (code, err) == (0, "")
    (entry,) = [each for each in map(json.loads, out.splitlines()) if each["topic"] == f"default/{topic}"]
    assert (entry["kind"], entry["offset"], entry["records_behind"]) == ("table", 40, 7)
    assert cli(*command, "--report", str(page))[0] == 0
    assert table in page.read_text()
    assert "http" not in page.read_text().replace("http-equiv", "")
    assert cli("pipeline", "lag", "--table", str(tmp_path / "none"), "--bootstrap", bootstrap)[0] == 4


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["tier", "nowhere", "--to", "parquet", "--path", "/nowhere"], 4, "unknown-topic"),
        (["tier", "orders", "--to", "csv", "--path", "x"], 2, "is not one of"),
        (["tier", "orders", "--to", "delta"], 2, "needs a path"),
        (["tier", "orders", "--to", "delta", "--path", "x", "--decode", "json"], 2, "go together"),
        (
            ["tier", "orders", "--to", "delta", "--path", "x", "--once", "--every", "1m"],
            2,
            "exclude each other",
        ),
        (
            ["tier", "orders", "--to", "delta", "--path", "x", "--older-than", "7d"],
            2,
            "for --expire and --vacuum",
        ),
        (
            ["tier", "orders", "--to", "delta", "--path", "x", "--vacuum", "--older-than", "59m"],
            2,
            "1h at least",
        ),
        (["audit"], 2, "name topics, or give --all"),
        (["audit", "nowhere"], 4, "unknown-topic"),
    ],
)
def test_what_is_wrong_has_its_exit_code(
    cli: Any, bootstrap: str, args: list[str], code: int, said: str
) -> None:
    found, _, err = cli("pipeline", *args, "--bootstrap", bootstrap)
    assert (found, said in err) == (code, True), err


@contextmanager
def ister(*args: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own, ended with all that it started."""
    process = subprocess.Popen(
        [sys.executable, "-c", CALL, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def next_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
    assert ready, "nothing was said"
    return process.stdout.readline()


@pytest.mark.slow
def test_a_service_goes_on_and_ends_cleanly_at_sigterm(log: sync.Log, bootstrap: str, tmp_path: Path) -> None:
    topic = new_topic("served")
    log.append(topic, numbered(0, 50))
    where = ["--to", "delta", "--path", str(tmp_path), "--bootstrap", bootstrap, "--output", "json"]
    with ister("pipeline", "tier", topic, *where, "--every", "200ms", "--master", "local[1]") as process:
        assert json.loads(next_line(process))["next_offset"] == 50
        log.append(topic, numbered(50, 80))
        entry = json.loads(next_line(process))
        assert (entry["start_offset"], entry["next_offset"]) == (50, 80)
        process.terminate()
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, b""), err
    assert offsets_of(read_delta(tmp_path)) == list(range(80))


@pytest.mark.slow
def test_a_job_that_is_killed_leaves_a_table_that_the_next_one_completes(
    cli: Any, log: sync.Log, bootstrap: str, tmp_path: Path
) -> None:
    topic = new_topic("shot")
    for start in range(0, 5_000, 100):
        log.append(topic, numbered(start, start + 100))
    where = ["--to", "parquet", "--path", str(tmp_path), "--bootstrap", bootstrap]
    command = ["pipeline", "tier", topic, *where, "--file-size", "4KiB"]
    with ister(*command, "--master", "local[1]") as process:
        deadline = time.monotonic() + PATIENCE_S
        while not any(tmp_path.rglob("ister-*.parquet")) and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    code, out, err = cli(*command, "--output", "json")
    assert code == 0, err
    assert json.loads(out)["next_offset"] == 5_000
    assert offsets_of(read_parquet(tmp_path)) == list(range(5_000))
