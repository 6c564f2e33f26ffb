"""What the commands do with a log, what they print, and what their exit codes say."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_fakes import FakeLog, Ister, only_object

import ister
from ister.cli.main import exit_code
from ister.cli.read import WRITE_BYTES
from ister.cli.terminal import Terminal
from ister.columns import Codec
from ister.errors import (
    BY_CODE,
    ConfigError,
    ConnectionFailed,
    CorruptFrame,
    CorruptSegment,
    InvalidSetting,
    InvalidTopicName,
    IsterError,
    LogClosed,
    NodeUnreachable,
    ObjectNotFound,
    OffsetOutOfRange,
    ReceiptMismatch,
    RecordsLost,
    RequestTimeout,
    TableMismatch,
    UnknownSubscription,
    UnknownTopic,
)


@pytest.fixture
def stdin() -> Iterator[Any]:
    """Put bytes on the standard input's descriptor, as a shell would."""
    kept = os.dup(0)

    def feed(data: bytes) -> None:
        read, write = os.pipe()
        os.write(write, data)
        os.close(write)
        os.dup2(read, 0)
        os.close(read)

    yield feed
    os.dup2(kept, 0)
    os.close(kept)


# Appending.


def test_put_says_the_offset_that_the_record_got(cli: Ister, log: FakeLog) -> None:
    cli("put", "events", "first")
    outcome = cli("put", "events", "second", "--key", "k", "--header", "a=1", "--output", "json")
    assert outcome.code == 0
    assert only_object(outcome.out) == {
        "topic": "default/events",
        "records": 1,
        "bytes": 6,
        "first_offset": 1,
        "last_offset": 1,
    }
    record = log.topics["default/events"].frames[1].records()[0]
    assert (record.key, record.value, list(record.headers)) == (b"k", b"second", [("a", b"1")])


def test_put_lines_takes_raw_lines_and_a_last_one_without_a_newline(
    cli: Ister, log: FakeLog, stdin: Any
) -> None:
    stdin(b"a\n\n\xff\r\nlast")
    outcome = cli("put", "events", "--lines")
    records = [record.value for found in log.topics["default/events"].frames for record in found.records()]
    assert records == [b"a", b"", b"\xff\r", b"last"]
    assert outcome.out.decode() == "4 records, 7 B, offsets 0 to 3\n"


def test_put_lines_of_nothing_appends_nothing(cli: Ister, log: FakeLog, stdin: Any) -> None:
    stdin(b"")
    outcome = cli("put", "events", "--lines", "--output", "json")
    assert only_object(outcome.out)["records"] == 0
    assert only_object(outcome.out)["first_offset"] is None


def test_lines_keep_their_order_over_many_chunks(cli: Ister, log: FakeLog, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(400_000)))
    assert cli("put", "events", "--lines", "--file", str(path)).code == 0
    topic = log.topics["default/events"]
    assert len(topic.frames) > 1
    values = [record.value for found in topic.frames for record in found.records()]
    assert values == [b"%d" % number for number in range(400_000)]


def test_a_key_separator_splits_each_line(cli: Ister, log: FakeLog, stdin: Any) -> None:
    stdin(b"k1\tv1\n\tv2\n")
    assert cli("put", "events", "--lines", "--key-separator", "\\t").code == 0
    records = log.topics["default/events"].frames[0].records()
    assert [(record.key, record.value) for record in records] == [(b"k1", b"v1"), (b"", b"v2")]


def test_a_line_without_its_separator_is_named(cli: Ister, log: FakeLog, stdin: Any) -> None:
    stdin(b"k1:v1\nplain\n")
    outcome = cli("put", "events", "--lines", "--key-separator", ":")
    assert outcome.code == 1
    assert "line 2 has no separator b':': b'plain'" in outcome.err


def test_a_file_without_lines_is_one_record(cli: Ister, log: FakeLog, tmp_path: Path) -> None:
    path = tmp_path / "photo"
    path.write_bytes(b"\x00\n\xff\n")
    assert cli("put", "events", "--file", str(path)).code == 0
    assert log.topics["default/events"].frames[0].records()[0].value == b"\x00\n\xff\n"


def test_a_failure_midway_says_what_was_acknowledged(cli: Ister, log: FakeLog, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"x" * 99 + b"\n" + b"\n".join([b"y" * 99] * 30_000))
    log.fail_after = 1
    outcome = cli("put", "events", "--lines", "--file", str(path))
    assert outcome.code == 3
    assert "the broker went away; acknowledged before that: " in outcome.err
    assert f"offsets 0 to {log.topics['default/events'].end - 1}" in outcome.err
    assert outcome.out == b""


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["v", "--lines"],
        ["v", "--file", "x"],
        ["v", "--key-separator", ":"],
        ["--lines", "--key-separator", ""],
        ["--lines", "--key", "k", "--key-separator", ":"],
        ["v", "--header", "nothing"],
        ["--file", "/nowhere/at/all"],
        ["--file", "/"],
        ["--lines", "--file", "/"],
        ["v", "--compression", "brotli"],
    ],
    ids=" ".join,
)
def test_put_refuses_what_makes_no_sense(cli: Ister, log: FakeLog, args: list[str]) -> None:
    outcome = cli("put", "events", *args)
    assert outcome.code == 2
    assert outcome.err.startswith("error [usage]: ")
    assert log.topics == {}


# Reading.


@pytest.fixture
def events(log: FakeLog) -> FakeLog:
    topic = log.add("events")
    topic.append([b"zero", b"one", b"two"])
    topic.append([b"\xff\x00", None], keys=[b"k", None], headers=[[("h", b"\xfe")], []])
    return log


def test_get_shows_the_record_at_an_offset_within_a_batch(cli: Ister, events: FakeLog) -> None:
    assert cli("get", "events", "1").out == b"one\n"
    assert cli("get", "events", "1", "--count", "3", "--raw").out == b"one\ntwo\n\xff\x00\n"


def test_get_of_more_than_there_is_says_so(cli: Ister, events: FakeLog) -> None:
    outcome = cli("get", "events", "2", "--count", "10", "--format", "%o,")
    assert (outcome.code, outcome.out) == (0, b"2,3,4,")
    assert outcome.err == "3 of 10 records: events ends at offset 5\n"


@pytest.mark.parametrize("args", [("get", "events", "5"), ("tail", "events", "--from", "6", "--no-follow")])
def test_an_offset_that_is_not_there_is_a_data_problem(
    cli: Ister, events: FakeLog, args: tuple[str, ...]
) -> None:
    outcome = cli(*args)
    assert (outcome.code, outcome.out) == (5, b"")
    assert outcome.err.startswith("error [offset-out-of-range]: default/events has no ")
    assert "it holds 0 to 4" in outcome.err


@pytest.mark.parametrize(
    ("offset", "said"),
    [("-1", "-1 is negative; offsets count from 0"), ("x", "'x' is not a valid whole number")],
)
def test_what_can_be_no_offset_is_refused_here(cli: Ister, events: FakeLog, offset: str, said: str) -> None:
    outcome = cli("get", "events", offset)
    assert (outcome.code, events.asked) == (2, [])
    assert said in outcome.err


@pytest.mark.parametrize("args", [("get", "events", "1"), ("tail", "events", "--no-follow")], ids=" ".join)
def test_an_end_that_nobody_can_say_is_an_error_and_not_an_earlier_end(
    cli: Ister, events: FakeLog, args: tuple[str, ...]
) -> None:
    events.end_unknown = NodeUnreachable("node 2 leads default/events and cannot be reached")
    outcome = cli(*args)
    assert (outcome.code, outcome.out) == (3, b"")
    assert outcome.err.startswith("error [node-unreachable]: node 2 leads default/events")


def test_json_envelopes_carry_any_bytes(cli: Ister, events: FakeLog) -> None:
    lines = cli("tail", "events", "--no-follow", "--output", "json").out.splitlines()
    entries = [json.loads(line) for line in lines]
    assert [entry["offset"] for entry in entries] == [0, 1, 2, 3, 4]
    assert entries[0] == {
        "topic": "default/events",
        "offset": 0,
        "timestamp": "2023-11-14T22:13:20.000000Z",
        "timestamp_us": 1_700_000_000_000_000,
        "key": None,
        "value": "zero",
        "headers": [],
    }
    assert entries[3]["key"] == "k"
    assert entries[3]["value_encoding"] == "base64"
    assert base64.b64decode(entries[3]["value"]) == b"\xff\x00"
    assert entries[3]["headers"] == [{"name": "h", "value": "/g==", "value_encoding": "base64"}]
    assert entries[4]["value"] is None


@pytest.mark.parametrize(
    ("args", "offsets"),
    [
        ((), "01234"),
        (("--from", "start"), "01234"),
        (("--from", "end"), ""),
        (("--from", "2"), "234"),
        (("-n", "2"), "34"),
        (("-n", "0"), ""),
        (("-n", "99"), "01234"),
        (("--from", "1", "--count", "2"), "12"),
        (("--from", "2023-11-14T22:13:20Z"), "01234"),
        (("--from", "1m ago"), ""),
    ],
    ids=str,
)
def test_tail_starts_where_it_is_told(
    cli: Ister, events: FakeLog, args: tuple[str, ...], offsets: str
) -> None:
    outcome = cli("tail", "events", "--no-follow", "--format", "%o", *args)
    assert (outcome.code, outcome.out.decode()) == (0, offsets)


def test_a_fetch_that_unpacks_to_much_is_written_a_piece_at_a_time(
    cli: Ister, log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(Terminal, "write", lambda self, data: sizes.append(len(data)))
    topic = log.add("packed")
    for _ in range(20):
        topic.append([b"\0" * 500_000], codec=Codec.ZSTD)
    assert cli("tail", "packed", "--no-follow", "--raw").code == 0
    assert sum(sizes) == 20 * 500_001
    assert max(sizes) <= WRITE_BYTES + 500_001


def test_two_places_to_start_from_are_refused(cli: Ister, events: FakeLog) -> None:
    assert cli("tail", "events", "--from", "1", "-n", "1").code == 2
    assert cli("tail", "events", "--from", "yesterday").code == 2
    assert cli("tail", "events", "--raw", "--output", "json").code == 2


# What all of them share.


def test_the_broker_to_ask_is_the_option_s_else_the_environment_s(cli: Ister, log: FakeLog) -> None:
    environ = {"ISTER_BOOTSTRAP": "env:2"}
    cli("topic", "list")
    cli("topic", "list", environ=environ)
    cli("--bootstrap", "root:3", "topic", "list", environ=environ)
    cli("--bootstrap", "root:3", "topic", "list", "--bootstrap", "own:4", environ=environ)
    assert log.asked == ["127.0.0.1:9091", "env:2", "root:3", "own:4"]


def test_an_unknown_topic_is_not_found_in_text_and_in_json(cli: Ister, log: FakeLog) -> None:
    outcome = cli("topic", "describe", "nope")
    assert outcome.code == 4
    assert outcome.err.splitlines()[0] == "error [unknown-topic]: there is no topic default/nope"
    assert outcome.err.splitlines()[1].startswith("hint: `ister topic list`")
    entry = json.loads(cli("topic", "describe", "nope", "--output", "json").err)
    assert (entry["error"], entry["message"]) == ("unknown-topic", "there is no topic default/nope")
    assert entry["hint"]


def test_a_usage_error_is_json_too_where_json_was_asked_for(cli: Ister) -> None:
    for args in (["--nope", "--output", "json"], ["--output=json", "--nope"]):
        assert json.loads(cli("topic", "list", *args).err)["error"] == "usage"


def test_every_error_has_the_exit_code_that_the_table_gives_it() -> None:
    special: dict[type[IsterError], int] = {
        ConfigError: 2,
        InvalidSetting: 2,
        InvalidTopicName: 2,
        ConnectionFailed: 3,
        LogClosed: 3,
        RequestTimeout: 3,
        NodeUnreachable: 3,
        UnknownTopic: 4,
        UnknownSubscription: 4,
        ObjectNotFound: 4,
        OffsetOutOfRange: 5,
        CorruptFrame: 5,
        CorruptSegment: 5,
        RecordsLost: 5,
        TableMismatch: 5,
        ReceiptMismatch: 5,
    }
    for kind in BY_CODE.values():
        assert exit_code(kind("x")) == special.get(kind, 1), kind


def test_an_interruption_ends_quietly(cli: Ister, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(bootstrap: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ister, "connect", connect, raising=False)
    outcome = cli("topic", "list")
    assert (outcome.code, outcome.out, outcome.err.strip()) == (130, b"", "")


def test_a_reader_that_has_seen_enough_ends_it_quietly() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", "from ister.cli.main import main; main()", "--help"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_serve_refuses_a_wrong_configuration_before_it_touches_anything(cli: Ister, tmp_path: Path) -> None:
    file = tmp_path / "ister.toml"
    file.write_text("hot_tail_byte = 1")
    data = str(tmp_path / "data")
    wrong = [
        (["--client-port", "99999"], "client_port = '99999' (from the command line) is out of range"),
        (["--config", str(file)], "did you mean hot_tail_bytes?"),
        (["--config", str(tmp_path / "none.toml")], "none.toml cannot be read: No such file"),
        (["--set", "nod_id=1"], "did you mean node_id?"),
        (
            ["--set", "node-id=1", "--node-id", "1"],
            "node_id is given twice: by --node-id and by --set node-id",
        ),
        (["--set", "node_id"], "'node_id' is not NAME=VALUE"),
        (["--log-level", "loud"], "has no level 'loud'"),
    ]
    for args, said in wrong:
        outcome = cli("serve", "--data-dir", data, *args)
        assert outcome.code == 2, args
        assert said in outcome.err
    assert not Path(data).exists()
