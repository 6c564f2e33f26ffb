"""The command line against a real broker, each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # a process a command; what the commands say is in the quick tests too

ISTER = [sys.executable, "-c", "from ister.cli.main import main; main()"]
PATIENCE_S = 60


class Broker:
    """`ister serve` on a free port, until the test ends."""

    def __init__(self, data_dir: Path, *options: str) -> None:
        self.data_dir = data_dir
        args = ["serve", "--data-dir", str(data_dir), "--client-port", "0", "--admin-port", "-1"]
        self.log = data_dir.with_suffix(".log")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*ISTER, *args, "--output", "json", *options], stdout=subprocess.PIPE, stderr=log
            )
        assert self.process.stdout is not None
        self.ready: dict[str, Any] = json.loads(self.process.stdout.readline() or b"{}")

    def environ(self) -> dict[str, str]:
        address = f"{self.ready['client_host']}:{self.ready['client_port']}"
        return {**os.environ, "ISTER_BOOTSTRAP": address}

    def ister(self, *args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*ISTER, *args], input=stdin, capture_output=True, env=self.environ(), timeout=PATIENCE_S
        )

    def start(self, args: Sequence[str], **pipes: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*ISTER, *args], env=self.environ(), **pipes)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "data")
    yield made
    made.stop()


def test_serve_says_where_it_is_ready_and_stops_cleanly_when_told(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", "--set", "node_id=7", "--log-format", "json")
    assert broker.ready["event"] == "ready"
    assert broker.ready["client_port"] > 0
    assert (broker.ready["node_id"], broker.ready["admin_port"]) == (7, -1)
    assert broker.stop() == 0
    entries = [json.loads(line) for line in broker.log.read_text().splitlines()]
    assert entries[-1]["message"] == "stopped"


def test_a_crash_in_native_code_leaves_a_trace_of_where_it_was(broker: Broker) -> None:
    assert broker.stop(signal.SIGSEGV) == -signal.SIGSEGV
    said = broker.log.read_text()
    assert "Segmentation fault" in said and "process.py" in said


def test_lines_that_were_put_come_back_byte_for_byte(broker: Broker) -> None:
    lines = b"".join(b"%d \xff\x00 %s\n" % (number, b"x" * (number % 300)) for number in range(20_000))
    put = broker.ister("put", "events", "--lines", "--batch", "777", "--output", "json", stdin=lines)
    assert (put.returncode, put.stderr) == (0, b"")
    assert json.loads(put.stdout)["last_offset"] == 19_999
    assert broker.ister("tail", "events", "--no-follow", "--raw").stdout == lines
    got = broker.ister("get", "events", "19999", "--output", "json")
    assert json.loads(got.stdout)["value_encoding"] == "base64"


def test_tail_follows_what_is_appended_later(broker: Broker) -> None:
    broker.ister("put", "events", "before")
    tail = broker.start(["tail", "events", "--from", "start", "--count", "2"], stdout=subprocess.PIPE)
    assert tail.stdout is not None
    assert tail.stdout.readline() == b"before\n"
    broker.ister("put", "events", "after")
    assert tail.stdout.readline() == b"after\n"
    assert tail.wait(PATIENCE_S) == 0
    tail.stdout.close()


def test_an_interrupted_tail_says_so_by_its_exit_code(broker: Broker) -> None:
    broker.ister("put", "events", "one")
    tail = broker.start(["tail", "events", "--from", "start"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert tail.stdout is not None
    assert tail.stdout.readline() == b"one\n"
    tail.send_signal(signal.SIGINT)
    _, complaints = tail.communicate(timeout=PATIENCE_S)
    assert (tail.returncode, complaints.strip()) == (130, b"")


def test_a_pipe_that_is_closed_early_ends_the_tail_quietly(broker: Broker) -> None:
    broker.ister("put", "events", "--lines", stdin=b"line\n" * 200_000)
    tail = broker.start(["tail", "events", "--from", "start"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert tail.stdout is not None and tail.stderr is not None
    assert tail.stdout.readline() == b"line\n"
    tail.stdout.close()
    assert tail.stderr.read() == b""
    assert tail.wait(PATIENCE_S) == 0
    tail.stderr.close()


def test_a_quiet_tail_ends_when_its_pipe_is_closed(broker: Broker) -> None:
    broker.ister("put", "events", "only")
    tail = broker.start(["tail", "events", "--from", "start"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert tail.stdout is not None and tail.stderr is not None
    assert tail.stdout.readline() == b"only\n"
    tail.stdout.close()  # and no other record comes that would show it
    assert tail.wait(PATIENCE_S) == 0
    assert tail.stderr.read() == b""
    tail.stderr.close()


def test_an_interrupted_put_says_what_was_acknowledged(broker: Broker) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    put = broker.start(["put", "events", "--lines"], **pipes)
    lines, put.stdin = put.stdin, None  # which stays open: it is the interrupt that ends it
    assert lines is not None
    lines.write(b"1\n2\n3\n")
    lines.flush()
    broker.ister("topic", "create", "events", "--if-absent")
    assert broker.ister("tail", "events", "--from", "start", "--count", "3").stdout == b"1\n2\n3\n"
    put.send_signal(signal.SIGINT)
    _, told = put.communicate(timeout=PATIENCE_S)
    lines.close()
    assert put.returncode == 130
    assert b"interrupted; acknowledged before that: 3 records, 3 B, offsets 0 to 2" in told


@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [
        (">/dev/full", 1, "the output cannot be written: No space left on device"),
        (">&-", 1, "the output cannot be written: the standard output is closed"),
        ("2>&-", 0, ""),
    ],
)
def test_an_output_that_takes_nothing_is_said_in_a_line(
    broker: Broker, redirection: str, code: int, said: str
) -> None:
    line = f'"$@" {redirection}'
    # Python writes what is left in the buffer at its exit, and has an exit code of its own if it cannot.
    environ = {name: value for name, value in broker.environ().items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        ["sh", "-c", line, "sh", *ISTER, "topic", "list"],
        capture_output=True,
        env=environ,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr.decode()) == (code, f"error [failed]: {said}\n" if said else "")


@pytest.mark.parametrize("command", [["--help"], ["serve", "--help"], ["--version"]])
def test_help_that_cannot_be_written_is_said_in_a_line(command: list[str]) -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" >/dev/full', "sh", *ISTER, *command],
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    said = "error [failed]: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr.decode()) == (1, said)


def test_a_topic_s_settings_are_kept_over_a_restart(broker: Broker) -> None:
    created = broker.ister("topic", "create", "a", "--segment-records", "10", "--retention-bytes", "1GiB")
    assert created.returncode == 0, created.stderr
    assert broker.ister("topic", "create", "a").returncode == 1
    assert broker.ister("topic", "alter", "a", "--set", "retention_bytes=2GiB").returncode == 0
    assert broker.stop(signal.SIGKILL) == -signal.SIGKILL
    again = Broker(broker.data_dir)
    described = json.loads(again.ister("topic", "describe", "a", "--output", "json").stdout)
    assert described["settings"]["segment_records"] == 10
    assert described["settings"]["retention_bytes"] == 2 << 30
    assert again.ister("topic", "delete", "a", "--yes").returncode == 0
    assert again.ister("topic", "describe", "a").returncode == 4
    assert again.stop() == 0


def test_the_chain_of_segments_is_described(broker: Broker) -> None:
    broker.ister("topic", "create", "a", "--segment-records", "10")
    for _ in range(3):
        broker.ister("put", "a", "--lines", stdin=b"x\n" * 10)
    described = json.loads(broker.ister("topic", "describe", "a", "--output", "json").stdout)
    chain = described["segments"]
    assert described["end_offset"] == 30
    assert len(chain) >= 3
    assert all(left["end_offset"] == right["base_offset"] for left, right in pairwise(chain))
    assert [segment["sealed"] for segment in chain] == [True] * (len(chain) - 1) + [False]


def test_a_second_broker_on_the_same_directory_or_port_is_refused(broker: Broker, tmp_path: Path) -> None:
    port = str(broker.ready["client_port"])
    taken = [
        (["--data-dir", str(broker.data_dir), "--client-port", "0"], b"error [data-directory]: "),
        (["--data-dir", str(tmp_path / "other"), "--client-port", port], b"error [address-in-use]: "),
    ]
    for options, said in taken:
        refused = broker.ister("serve", "--admin-port", "-1", *options)
        assert refused.returncode == 1
        assert said in refused.stderr
        assert b"hint: " in refused.stderr
        assert b"Traceback" not in refused.stderr


def test_no_broker_is_told_apart_from_a_failed_operation(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    broker.stop()
    outcome = broker.ister("topic", "list")
    assert outcome.returncode == 3
    assert outcome.stderr.startswith(b"error [connection-failed]: ")


def test_wrong_topic_names_are_refused_by_name(broker: Broker) -> None:
    for name in ("", "a/b/c", "../etc", "x" * 300, "a:b"):
        outcome = broker.ister("put", name, "v")
        assert outcome.returncode == 2, outcome.stderr
        assert outcome.stderr.startswith(b"error [invalid-topic-name]: ")
    assert broker.ister("topic", "list", "--output", "json").stdout == b""
