"""`ister topic recover`: what a topic waits for, and accepting a loss; and what readers of one are shown."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from cli_fakes import FakeLog, Ister, only_object

from ister.errors import RecordsLost
from ister.protocol.recovery import LostRecords, ReplicaReach, TopicRecovery

WAITS = TopicRecovery(
    topic="default/a",
    uid=4,
    segment=3,
    segment_uid=17,
    base_offset=1200,
    leader=2,
    leader_starts=5,
    silent_ms=42_300,
    state="waits",
    why="default/a:3 is led by node 2, which does not answer",
    recovery="",
    replicas=[ReplicaReach(2, True, "silent")],
    known_end=1247,
    lost_from=1200,
    lost_end=71_110_064,
    silent=[2],
    refusal="",
    choices=["start node 2 again, with the old data directory: then nothing is lost"],
    lost=[],
    notes=[],
)
OPEN = msgspec.structs.replace(
    WAITS, state="open", why="", refusal="node 2 leads default/a:3, and it answers"
)
ASKED = ("topic", "recover", "a")


@pytest.fixture(autouse=True)
def topic(log: FakeLog) -> None:
    log.add("a")
    log.recovery = WAITS


def test_a_topic_that_waits_is_explained_and_the_exit_code_is_1(cli: Ister, log: FakeLog) -> None:
    outcome = cli(*ASKED)
    text = outcome.out.decode()
    assert outcome.code == 1
    assert text.startswith("default/a: waits\n")
    for said in (
        "default/a:3 is led by node 2, which does not answer, for 42 s at least\n",
        "3, from offset 1,200, led by node 2\n",
        "node 2 (leader): does not answer\n",
        "none: only node 2 can say where the segment ends\n",
        "1,247, as far as the nodes that answer have seen\n",
        "up to offset 1,200\n",
        "offsets 1,200 to 71,110,063 (47 records known to be in it; there may be more)\n",
        "What to do\n  start node 2 again, with the old data directory: then nothing is lost\n",
    ):
        assert said in text
    assert log.administered == [], "to look changes nothing"


def test_a_script_has_the_same_as_an_object(cli: Ister, log: FakeLog) -> None:
    outcome = cli(*ASKED, "--output", "json")
    found = only_object(outcome.out)
    assert outcome.code == 1
    assert (found["state"], found["leader"], found["silent"], found["silent_ms"]) == ("waits", 2, [2], 42_300)
    assert (found["known_end"], found["lost_from"], found["lost_end"]) == (1247, 1200, 71_110_064)
    assert found["replicas"] == [
        {"node": 2, "leader": True, "state": "silent", "end_offset": None, "detail": ""}
    ]
    assert found["accepted"] is False


def test_a_topic_that_is_well_is_said_to_be_and_the_exit_code_is_0(cli: Ister, log: FakeLog) -> None:
    log.recovery = msgspec.structs.replace(
        OPEN, lost=[LostRecords(10, 20, 1, 1)], notes=["node 3 came back with offsets 10 to 14"]
    )
    outcome = cli(*ASKED)
    text = outcome.out.decode()
    assert outcome.code == 0
    assert text.startswith("default/a: open\n")
    assert "would be lost" not in text
    assert "Recorded as lost before\n  offsets 10 to 19\n" in text
    assert "Notes\n  node 3 came back with offsets 10 to 14\n" in text


def test_several_replicas_are_shown_with_what_they_have_and_what_their_recovery_waits_for(
    cli: Ister, log: FakeLog
) -> None:
    log.recovery = msgspec.structs.replace(
        WAITS,
        recovery="recovery 30 is fencing: 2 of 3 replicas have to answer",
        replicas=[
            ReplicaReach(2, True, "silent"),
            ReplicaReach(3, False, "alive", 1210, "in doubt: it cut a tail"),
            ReplicaReach(4, False, "gone", detail="that disk is not in the cluster any more"),
        ],
        lost_from=1210,
    )
    text = cli(*ASKED).out.decode()
    assert "node 3: answers, its log ends at 1,210 (in doubt: it cut a tail)\n" in text
    assert "node 4: gone (that disk is not in the cluster any more)\n" in text
    assert "recovery 30 is fencing: 2 of 3 replicas have to answer\n" in text
    assert "offsets 1,210 to 71,110,063 (37 records known to be in it; there may be more)\n" in text


def test_a_loss_is_recorded_when_it_is_asked_for_in_full(cli: Ister, log: FakeLog) -> None:
    outcome = cli(*ASKED, "--accept-loss", "--node-stopped", "--yes")
    assert (outcome.code, log.administered) == (0, [("accept_loss", 17, True)])
    assert "to be recorded as lost in default/a: offsets 1,200 to 71,110,063" in outcome.err
    assert outcome.out.decode().startswith(
        "recorded as lost in default/a: offsets 1,200 to 71,110,063 (47 records"
    )
    assert "The topic goes on from offset 71,110,064;" in outcome.out.decode()
    as_json = cli(*ASKED, "--accept-loss", "--node-stopped", "--yes", "--output", "json")
    assert only_object(as_json.out)["accepted"] is True
    assert as_json.err == ""


def test_records_that_left_with_their_disk_are_given_up_without_a_word_about_nodes(
    cli: Ister, log: FakeLog
) -> None:
    log.recovery = msgspec.structs.replace(
        OPEN,
        state="incomplete",
        why="2 sealed segments",
        gone=[LostRecords(0, 1200, 1, 0)],
        gone_segments=[7],
    )
    looked = cli(*ASKED)
    assert looked.code == 1
    assert "Gone with their disks\n  offsets 0 to 1,199\n" in looked.out.decode()
    assert only_object(cli(*ASKED, "--output", "json").out)["gone"] == [
        {"from_offset": 0, "end_offset": 1200}
    ]
    outcome = cli(*ASKED, "--accept-loss", "--yes")
    assert (outcome.code, log.administered) == (0, [("accept_loss", 17, False)])
    assert outcome.out.decode() == (
        "recorded as lost in default/a: offsets 0 to 1,199\nreaders of a lost offset are told so.\n"
    )


def test_both_kinds_of_loss_are_named_and_the_nodes_must_be_stopped(cli: Ister, log: FakeLog) -> None:
    log.recovery = msgspec.structs.replace(WAITS, gone=[LostRecords(0, 100, 1, 0)], gone_segments=[7])
    assert cli(*ASKED, "--accept-loss", "--yes").code == 2
    outcome = cli(*ASKED, "--accept-loss", "--node-stopped", "--yes")
    assert (
        "recorded as lost in default/a: offsets 0 to 99; offsets 1,200 to 71,110,063" in outcome.out.decode()
    )


def test_the_range_is_shown_and_the_statement_that_the_node_is_stopped_is_demanded(
    cli: Ister, log: FakeLog
) -> None:
    outcome = cli(*ASKED, "--accept-loss", "--yes")
    assert (outcome.code, log.administered) == (2, [])
    assert "to be recorded as lost in default/a: offsets 1,200 to 71,110,063" in outcome.err
    assert "what node 2 has would be given up: stop it" in outcome.err
    assert "--node-stopped" in outcome.err


def test_nobody_is_to_be_stopped_where_the_disks_have_left_the_cluster(cli: Ister, log: FakeLog) -> None:
    log.recovery = msgspec.structs.replace(WAITS, silent=[], leader_starts=0)
    assert cli(*ASKED, "--accept-loss", "--yes").code == 0
    assert log.administered == [("accept_loss", 17, True)]


def test_a_dry_run_says_what_would_be_lost_and_records_nothing(cli: Ister, log: FakeLog) -> None:
    outcome = cli(*ASKED, "--accept-loss", "--dry-run")
    assert (outcome.code, log.administered) == (0, [])
    assert outcome.out.decode().startswith("would record as lost in default/a: offsets 1,200 to 71,110,063")
    assert only_object(cli(*ASKED, "--accept-loss", "--dry-run", "--output", "json").out)["accepted"] is False


def test_giving_up_needs_a_yes_where_nobody_can_be_asked(cli: Ister, log: FakeLog) -> None:
    outcome = cli(*ASKED, "--accept-loss", "--node-stopped")
    assert (outcome.code, log.administered) == (2, [])
    assert "needs --yes" in outcome.err


def test_in_a_pipe_too_it_is_said_first_that_there_is_nothing_to_give_up(cli: Ister, log: FakeLog) -> None:
    log.recovery = OPEN
    outcome = cli(*ASKED, "--accept-loss", "--node-stopped")
    assert (outcome.code, log.administered) == (1, [])
    assert "nothing of default/a can be given up" in outcome.err
    assert "--yes" not in outcome.err


@pytest.mark.parametrize("option", ["--yes", "--dry-run", "--node-stopped"])
def test_an_option_that_is_about_a_loss_does_not_accept_one(cli: Ister, log: FakeLog, option: str) -> None:
    outcome = cli(*ASKED, option)
    assert (outcome.code, log.asked, log.administered) == (2, [], [])
    assert "give --accept-loss too" in outcome.err


@pytest.mark.parametrize(("answer", "code", "done"), [("y\n", 0, 1), ("n\n", 1, 0), ("\n", 1, 0)])
def test_a_person_is_asked(
    cli: Ister, log: FakeLog, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, done: int
) -> None:
    import io

    from ister.cli import topic

    monkeypatch.setattr(topic, "_can_ask", lambda terminal: True)
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    outcome = cli(*ASKED, "--accept-loss", "--node-stopped")
    assert (outcome.code, len(log.administered)) == (code, done)
    assert "Give up these offsets for good?" in outcome.err
    assert ("nothing was given up" in outcome.err) is not bool(done)


def test_what_can_be_had_otherwise_is_not_given_up(cli: Ister, log: FakeLog) -> None:
    log.recovery = OPEN
    for options in (["--dry-run"], ["--node-stopped", "--yes"]):
        outcome = cli(*ASKED, "--accept-loss", *options)
        assert (outcome.code, outcome.out, log.administered) == (1, b"", [])
        assert "nothing of default/a can be given up: node 2 leads default/a:3, and it answers" in outcome.err


@pytest.mark.parametrize("command", [["get", "a", "0"], ["tail", "a", "--from", "start", "--no-follow"]])
def test_who_reads_a_lost_offset_is_told_where_to_go_on(
    cli: Ister, log: FakeLog, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    class Reader:
        async def chunks(self) -> Any:
            raise RecordsLost(
                "offset 0 of topic default/a is lost", hint="Read on from offset 5.", offsets=(0, 5)
            )
            yield

    log.add("a").append([b"x"] * 6)
    monkeypatch.setattr(log, "read", lambda *args, **options: Reader())
    outcome = cli(*command)
    assert (outcome.code, outcome.out) == (5, b"")
    assert "error [records-lost]: offset 0 of topic default/a is lost\n" in outcome.err
    assert "hint: Read on from offset 5.\n" in outcome.err


def test_lost_offsets_are_no_records_in_a_description(
    cli: Ister, log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.add("a").append([b"x"] * 6)
    described = log.topics["default/a"].describe()
    (segment,) = described.segments
    lost = msgspec.structs.replace(segment, end_offset=1006, lost=1000, state="lost from 6 on", sealed=True)
    shown = msgspec.structs.replace(described, end_offset=1006, lost=1000, segments=[lost])
    monkeypatch.setattr(log.topics["default/a"], "describe", lambda: shown)
    found = only_object(cli("topic", "describe", "a", "--output", "json").out)
    assert (found["records"], found["lost"]) == (6, 1000)
    assert (found["segments"][0]["records"], found["segments"][0]["lost"]) == (6, 1000)
    text = cli("topic", "describe", "a").out.decode()
    assert "  records    6\n" in text
    assert "lost from 6 on" in text
