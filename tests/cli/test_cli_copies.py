"""How the copies of segments are shown: in a topic's description, and in the cluster's health."""

from __future__ import annotations

import json

import msgspec
import pytest
from cli_fakes import FakeLog, Ister, cluster_of, only_object

from ister.protocol.messages import CopyDescription, Problem, SegmentDescription, TopicDescription

SHORT = Problem(
    "under-replicated",
    "12 segments of 3 topics (a, b, c) have fewer copies than wanted, by 12 copies: node 3 is down and has "
    "12 of them",
    "start node 3 again with its own --data-dir; after 60 s without it its copies are made anew",
)


def described(log: FakeLog, monkeypatch: pytest.MonkeyPatch, *segments: SegmentDescription) -> None:
    """The topic `a` has these segments."""
    topic = log.add("a")

    async def describe_topic(name: str) -> TopicDescription:
        found: TopicDescription = msgspec.structs.replace(topic.describe(), segments=list(segments))
        return found

    monkeypatch.setattr(log, "describe_topic", describe_topic)


def segment(number: int, *copies: CopyDescription, sealed: bool = True) -> SegmentDescription:
    behind = [copy.node for copy in copies if copy.state not in ("down", "unknown")]
    state = "sealed" if sealed else "open"
    return SegmentDescription(
        number, number, 0, 10, 100, 1, sealed, 0, 0, state, [1, 2, 3], behind, [*copies]
    )


def test_copies_that_are_not_whole_stand_beside_their_segment(
    cli: Ister, log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    described(
        log,
        monkeypatch,
        segment(1, CopyDescription(2, "incomplete"), CopyDescription(3, "down")),
        segment(2),
        segment(3, CopyDescription(3, "behind", 1200, "not connected"), sealed=False),
    )
    lines = cli("topic", "describe", "a").out.decode().splitlines()
    assert lines[-4].endswith("STATE   NOT WHOLE")
    assert lines[-3].endswith("1, 2, 3   sealed  2 incomplete; 3 down")
    assert lines[-2].endswith("1, 2, 3   sealed")
    assert lines[-1].endswith("1, 2, 3   open    3 lacks 1,200 records (not connected)")


def test_the_column_is_left_out_where_all_copies_are_whole(
    cli: Ister, log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    described(log, monkeypatch, segment(1))
    assert "NOT WHOLE" not in cli("topic", "describe", "a").out.decode()


@pytest.mark.parametrize(
    ("copies", "had"),
    [
        ([], "3 wanted, 3 had"),
        ([CopyDescription(2, "incomplete")], "3 wanted, 2 had"),
        ([CopyDescription(2, "gone"), CopyDescription(3, "damaged")], "3 wanted, 1 had"),
        ([CopyDescription(2, "behind", 7)], "3 wanted, 3 had"),
        ([CopyDescription(2, "behind", 7, "refuses: storage")], "3 wanted, 2 had"),
        ([CopyDescription(2, "unknown")], "3 wanted, 2 or more had"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_settings_say_how_many_replicas_are_wanted_and_had(
    cli: Ister, log: FakeLog, monkeypatch: pytest.MonkeyPatch, copies: list[CopyDescription], had: str
) -> None:
    described(log, monkeypatch, segment(1), segment(2, *copies))
    lines = cli("topic", "describe", "a").out.decode().splitlines()
    assert had in next(line for line in lines if line.split()[:1] == ["replicas"])


@pytest.mark.parametrize(
    ("end_offset", "lost"), [(10, 10), (0, 0)], ids=["given up as a whole", "sealed without a record"]
)
def test_segments_without_a_record_do_not_count_in_how_many_copies_are_had(
    cli: Ister, log: FakeLog, monkeypatch: pytest.MonkeyPatch, end_offset: int, lost: int
) -> None:
    nothing = msgspec.structs.replace(segment(1), end_offset=end_offset, lost=lost, replicas=[1])
    described(log, monkeypatch, nothing, segment(2), segment(3, sealed=False))
    lines = cli("topic", "describe", "a").out.decode().splitlines()
    assert "3 wanted, 3 had" in next(line for line in lines if line.split()[:1] == ["replicas"])


def test_what_was_given_up_in_part_counts_for_its_copies(
    cli: Ister, log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = msgspec.structs.replace(segment(1), lost=4, replicas=[1])
    described(log, monkeypatch, part, segment(2, sealed=False))
    assert "3 wanted, 1 had" in cli("topic", "describe", "a").out.decode()


def test_an_end_that_nobody_knows_is_shown_as_the_least_that_it_can_be(
    cli: Ister, log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log.add("a")
    topic.append([b"x"] * 2000)
    found = topic.describe()
    (opened,) = found.segments
    found = msgspec.structs.replace(
        found, end_is_known=False, segments=[msgspec.structs.replace(opened, end_is_known=False)]
    )
    monkeypatch.setattr(topic, "describe", lambda: found)
    shown = cli("topic", "describe", "a").out.decode()
    assert "0 to at least 2,000" in shown
    rows = [line.split(maxsplit=1) for line in shown.splitlines()]
    lines = {row[0]: row[1] for row in rows if len(row) == 2}
    assert lines["records"] == "at least 2,000"
    assert lines["size"].startswith("at least ")
    assert lines["1"].count("at least 2,000") == 2
    assert "at least 2,000  at least 2,000  at least " in cli("topic", "list").out.decode()
    for command in (("topic", "describe", "a"), ("topic", "list")):
        entry = only_object(cli(*command, "--output", "json").out)
        assert (entry["end_offset"], entry["end_is_known"]) == (2000, False)
    (row,) = only_object(cli("topic", "describe", "a", "--output", "json").out)["segments"]
    assert row["end_is_known"] is False


def test_an_end_that_is_known_is_said_to_be(cli: Ister, log: FakeLog) -> None:
    log.add("a").append([b"x"])
    entry = only_object(cli("topic", "describe", "a", "--output", "json").out)
    assert entry["end_is_known"] is entry["segments"][0]["end_is_known"] is True
    assert "at least" not in cli("topic", "describe", "a").out.decode()


def test_a_follower_that_has_all_and_gets_nothing_does_not_follow(
    cli: Ister, log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    described(log, monkeypatch, segment(1, CopyDescription(2, "behind", 0, "connects"), sealed=False))
    assert "2 does not follow (connects)" in cli("topic", "describe", "a").out.decode()


def test_copies_for_scripts_are_objects_with_every_field(
    cli: Ister, log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    described(log, monkeypatch, segment(1, CopyDescription(2, "behind", 5, "not connected"), sealed=False))
    entry = only_object(cli("topic", "describe", "a", "--output", "json").out)["segments"][0]
    assert entry["behind"] == [2]
    assert entry["copies"] == [{"node": 2, "state": "behind", "lacks": 5, "why": "not connected"}]


def test_too_few_copies_make_the_cluster_unhealthy_with_what_heals_it(cli: Ister, log: FakeLog) -> None:
    log.looks = [cluster_of(3, problems=[SHORT])]
    outcome = cli("cluster", "health")
    assert outcome.code == 1
    assert f"  under-replicated: {SHORT.what}\n    do: {SHORT.action}\n" in outcome.out.decode()


def test_waiting_for_health_waits_for_the_copies(cli: Ister, log: FakeLog) -> None:
    log.looks = [cluster_of(3, problems=[SHORT]), cluster_of(3)]
    options = ["--exit-when-healthy", "--interval", "1ms", "--output", "json"]
    outcome = cli("cluster", "health", *options)
    assert outcome.code == 0
    assert [json.loads(line)["healthy"] for line in outcome.out.splitlines()] == [False, True]


@pytest.mark.parametrize("command", [("get", "a", "0"), ("tail", "a", "--from", "start", "--no-follow")])
def test_records_are_read_from_whom_the_user_says(cli: Ister, log: FakeLog, command: tuple[str, ...]) -> None:
    log.add("a").append([b"x"])
    assert cli(*command).code == 0
    assert cli(*command, "--read-from", "any").code == 0
    assert log.read_from == ["leader", "any"]
    wrong = cli(*command, "--read-from", "nearest")
    assert wrong.code == 2
    assert "'nearest' is not one of 'leader', 'any'" in wrong.err
