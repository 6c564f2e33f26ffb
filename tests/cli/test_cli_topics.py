"""`ister topic`: what is made, shown, changed and deleted, and what is refused."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from cli_fakes import FakeLog, Ister, only_object

from ister.errors import NodeUnreachable
from ister.protocol.messages import TopicDescription


def test_a_topic_is_created_described_altered_and_deleted(cli: Ister, log: FakeLog) -> None:
    assert cli("topic", "create", "a", "--segment-bytes", "1MiB", "--fsync", "none").code == 0
    described = only_object(cli("topic", "describe", "a", "--output", "json").out)
    assert described["topic"] == "default/a"
    assert described["settings"]["segment_bytes"] == 1 << 20
    assert described["segments"][0]["state"] == "open"
    assert described["segments"][0]["replicas"] == [1, 3]
    assert described["notes"] == ["acknowledged records may be lost on power loss"]
    altered = cli("topic", "alter", "a", "--set", "retention-ms=7d", "--output", "json")
    assert only_object(altered.out)["settings"]["retention_ms"] == 604_800_000
    assert cli("topic", "delete", "a", "--yes").out.decode().startswith("deleted topic default/a (0 records")
    assert log.topics == {}


def test_settings_of_a_new_topic_may_be_given_as_those_of_an_old_one(cli: Ister, log: FakeLog) -> None:
    assert cli("topic", "create", "a", "--set", "segment-records=7", "--fsync", "none").code == 0
    settings = only_object(cli("topic", "describe", "a", "--output", "json").out)["settings"]
    assert (settings["segment_records"], settings["fsync"]) == (7, "none")
    twice = cli("topic", "create", "b", "--set", "fsync=none", "--fsync", "fsync")
    assert twice.code == 2
    assert "fsync is given twice" in twice.err


def test_a_setting_is_changed_as_it_is_given_to_a_new_topic(cli: Ister, log: FakeLog) -> None:
    assert cli("topic", "create", "a", "--replicas", "3").code == 0
    altered = cli("topic", "alter", "a", "--replicas", "2", "--set", "segment_records=7")
    assert (altered.code, altered.err) == (0, "")
    assert altered.out.decode() == "altered topic default/a: replicas = 2, segment_records = 7\n"
    settings = log.topics["default/a"].settings
    assert (settings.replicas, settings.segment_records, settings.fsync) == (2, 7, "fsync")
    twice = cli("topic", "alter", "a", "--set", "replicas=1", "--replicas", "2")
    assert twice.code == 2
    assert "replicas is given twice" in twice.err


def test_an_alteration_of_nothing_says_how_one_is_asked_for(cli: Ister, log: FakeLog) -> None:
    log.add("a")
    outcome = cli("topic", "alter", "a")
    assert (outcome.code, log.asked) == (2, [])
    assert "nothing to change: give a setting, as --replicas 2 or --set replicas=2" in outcome.err


def test_the_description_for_people_has_settings_notes_and_segments(cli: Ister, log: FakeLog) -> None:
    log.add("a", fsync="interval").append([b"x"] * 1500)
    text = cli("topic", "describe", "a").out.decode()
    assert "  offsets    0 to 1,500\n" in text
    assert re.search(r"^  segment_bytes +256MiB$", text, re.MULTILINE)
    assert "acknowledged records may be lost on power loss" in text
    heading, row = text.splitlines()[-2:]
    assert heading.split() == ["SEGMENT", "BASE", "END", "RECORDS", "BYTES", "LEADER", "REPLICAS", "STATE"]
    assert row.split() == ["1", "0", "1,500", "1,500", *row.split()[4:6], "1", "1,", "3", "open"]
    assert "\x1b" not in text


def test_the_list_is_one_object_a_line(cli: Ister, log: FakeLog) -> None:
    log.add("a"), log.add("b"), log.add("other/c")
    lines = cli("topic", "list", "default/", "--output", "json").out.splitlines()
    assert [json.loads(line)["topic"] for line in lines] == ["default/a", "default/b"]
    assert "NOTES" not in cli("topic", "list").out.decode()
    log.add("d", fsync="none")
    assert "NOTES" in cli("topic", "list").out.decode()


def test_an_empty_list_is_a_sentence_for_people_and_nothing_for_scripts(cli: Ister, log: FakeLog) -> None:
    assert "There are no topics yet." in cli("topic", "list").out.decode()
    assert cli("topic", "list", "--output", "json").out == b""


def test_deleting_needs_a_yes_where_nobody_can_be_asked(cli: Ister, log: FakeLog) -> None:
    log.add("a")
    outcome = cli("topic", "delete", "a")
    assert outcome.code == 2
    assert "needs --yes" in outcome.err
    dry = cli("topic", "delete", "a", "--dry-run", "--output", "json")
    assert only_object(dry.out)["deleted"] is False
    assert list(log.topics) == ["default/a"]


def test_deleting_does_not_claim_to_know_how_much_goes_if_nobody_does(cli: Ister, log: FakeLog) -> None:
    log.add("a").append([b"x"])
    log.end_unknown = NodeUnreachable("node 2 leads default/a and cannot be reached")
    dry = only_object(cli("topic", "delete", "a", "--dry-run", "--output", "json").out)
    assert (dry["records"], dry["bytes"]) == (None, None)
    assert "(how much it holds is not known: " in cli("topic", "delete", "a", "--dry-run").out.decode()
    assert cli("topic", "delete", "a", "--yes").code == 0
    assert log.topics == {}


def test_create_twice_fails_unless_absent_is_asked_for(cli: Ister, log: FakeLog) -> None:
    assert cli("topic", "create", "a").code == 0
    assert cli("topic", "create", "a").code == 1
    assert cli("topic", "create", "a", "--if-absent").code == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["create", "a", "--segment-bytes", "1"], "topic setting segment_bytes = '1' is out of range"),
        (["alter", "a", "--set", "fsnc=none"], "no topic setting 'fsnc'; did you mean fsync?"),
    ],
)
def test_a_wrong_setting_never_reaches_the_broker(
    cli: Ister, log: FakeLog, args: list[str], said: str
) -> None:
    outcome = cli("topic", *args)
    assert (outcome.code, log.asked) == (2, [])
    assert outcome.err.startswith("error [invalid-setting]: ")
    assert said in outcome.err


def test_a_record_before_the_open_segment_is_read_without_asking_where_the_topic_ends(
    cli: Ister, log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the node that leads the topic knows its end, and that one may be down."""

    async def unreachable(_topic: str, _when: object) -> int:
        raise NodeUnreachable("node 3 cannot be reached")

    log.add("a").append([b"x", b"y"])
    monkeypatch.setattr(log, "offsets_at", unreachable)
    assert cli("get", "a", "1", "--raw").out == b"y\n"
    beyond = cli("get", "a", "1", "--count", "2")
    assert (beyond.code, beyond.out) == (3, b"")


def test_tail_shows_what_is_there_though_nobody_can_say_where_the_topic_ends(
    cli: Ister, log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreachable(_topic: str, _when: object) -> int:
        raise NodeUnreachable("node 3 cannot be reached")

    log.add("a").append([b"x", b"y", b"z"])
    monkeypatch.setattr(log, "offsets_at", unreachable)
    assert cli("tail", "a", "--from", "1", "--count", "2").out == b"y\nz\n"
    assert cli("tail", "a", "--from", "1", "--count", "2", "--no-follow").out == b"y\nz\n"
    for args in (("--from", "1"), ("--from", "1", "--count", "3"), ()):
        outcome = cli("tail", "a", "--no-follow", *args)
        assert (outcome.code, outcome.out) == (3, b""), "it would stop at an end that nobody has said"


def test_any_replica_is_read_from_behind_the_end_that_its_node_was_told_of(cli: Ister, log: FakeLog) -> None:
    log.add("a").append([b"x", b"y", b"z"])
    log.end_unknown = NodeUnreachable("node 2 leads default/a and cannot be reached")
    assert cli("tail", "a", "--from", "1", "--count", "2", "--read-from", "any").out == b"y\nz\n"
    asked_of_the_leader = cli("tail", "a", "--from", "1", "--count", "2")
    assert (asked_of_the_leader.code, asked_of_the_leader.out) == (3, b"")


LOST = "offsets 1 to 2 are lost in default/a: what lies behind them is shown, from offset 3 on\n"


@pytest.mark.parametrize(
    ("last", "shown", "told"),
    [
        ("2", b"3\n4\n", ""),
        ("3", b"3\n4\n", LOST),
        ("9", b"3\n4\n", LOST),
    ],
)
def test_the_last_records_are_those_behind_a_loss_and_a_person_is_told(
    cli: Ister, log: FakeLog, monkeypatch: pytest.MonkeyPatch, last: str, shown: bytes, told: str
) -> None:
    topic = log.add("a")
    topic.append([b"0", b"1", b"2"])
    topic.append([b"3", b"4"])
    described = topic.describe()
    (segment,) = described.segments
    given_up = msgspec.structs.replace(segment, end_offset=3, sealed=True, lost=2)
    described = msgspec.structs.replace(described, segments=[given_up, segment], lost=2)

    async def describe(_name: str) -> TopicDescription:
        return described

    monkeypatch.setattr(log, "describe_topic", describe)
    outcome = cli("tail", "a", "-n", last, "--no-follow")
    assert (outcome.code, outcome.out, outcome.err) == (0, shown, told)
