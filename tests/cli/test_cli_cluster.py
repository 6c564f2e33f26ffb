"""`ister cluster` and `ister node`: what is asked, what is shown, and what the exit codes say."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from cli_fakes import FakeLog, FakeNode, Ister, cluster_of, only_object

from ister.errors import BadRequest, ConnectionFailed
from ister.protocol.messages import ClusterAnswer, ClusterNode, Problem, StatsAnswer

DOWN = Problem("node-down", "node 3 is not heard from", "start it again")


def rows_of(text: str, heading: str) -> list[list[str]]:
    """The cells of the table whose heading line begins with that word."""
    lines = text.splitlines()
    at = next(place for place, line in enumerate(lines) if line.split()[:1] == [heading])
    below = lines[at + 1 :]
    end = below.index("") if "" in below else len(below)
    return [line.split() for line in below[:end]]


# Status.


def test_the_status_of_a_healthy_cluster_has_its_leader_its_voters_and_its_nodes(
    cli: Ister, log: FakeLog
) -> None:
    outcome = cli("cluster", "status")
    text = outcome.out.decode()
    assert outcome.code == 0
    assert text.startswith("Cluster c-1\n")
    assert "  health    healthy\n" in text
    assert "  leader    node 1, term 5\n" in text
    assert "  voters    3 of 3 voters alive, 1 more may fail\n" in text
    assert "  metadata  applied 1,041 of 1,042, snapshot at 1,000\n" in text
    assert "  topics    6, in 6,000 segments\n" in text
    assert rows_of(text, "NODE") == [
        ["1", "leader", "alive", "127.0.0.1:9091", "127.0.0.1:6001", "1", "1,000", "0"],
        ["2", "voter", "alive", "127.0.0.1:9092", "127.0.0.1:6002", "2", "2,000", "0"],
        ["3", "voter", "alive", "127.0.0.1:9093", "127.0.0.1:6003", "3", "3,000", "0"],
    ]
    assert "Problems" not in text
    assert "\x1b" not in text


def test_the_status_for_scripts_has_every_field(cli: Ister, log: FakeLog) -> None:
    log.looks = [cluster_of(4, learners=[4])]
    entry = only_object(cli("cluster", "status", "--output", "json").out)
    assert {name: value for name, value in entry.items() if name != "nodes"} == {
        "cluster_id": "c-1",
        "healthy": True,
        "current": True,
        "answered_by": 1,
        "leader": 1,
        "term": 5,
        "commit_index": 1042,
        "applied_index": 1041,
        "snapshot_index": 1000,
        "topics": 6,
        "segments": 6000,
        "voters": 3,
        "voters_alive": 3,
        "quorum": 2,
        "problems": [],
    }
    assert entry["nodes"][3] == {
        "node_id": 4,
        "role": "learner",
        "alive": True,
        "client_host": "127.0.0.1",
        "client_port": 9094,
        "peer_host": "127.0.0.1",
        "peer_port": 6004,
        "behind": 12,
        "drained": False,
        "open_segments": 4,
        "segments": 4000,
        "disk_id": "00000004",
        "starts": 2,
    }


def test_a_drained_node_is_shown_as_one(cli: Ister, log: FakeLog) -> None:
    found = cluster_of(2)
    log.looks = [
        msgspec.structs.replace(found, nodes=[msgspec.structs.replace(found.nodes[0], drained=True)])
    ]
    assert rows_of(cli("node", "list").out.decode(), "NODE")[0][2:5] == [
        "alive,",
        "drained",
        "127.0.0.1:9091",
    ]


def test_a_dead_node_is_shown_with_its_problem_and_what_to_do(cli: Ister, log: FakeLog) -> None:
    log.looks = [cluster_of(3, down=[3], problems=[DOWN])]
    outcome = cli("cluster", "status")
    text = outcome.out.decode()
    assert outcome.code == 0
    assert "  health    1 problem\n" in text
    assert "  voters    2 of 3 voters alive, 0 more may fail\n" in text
    assert rows_of(text, "NODE")[2][1:3] == ["voter", "down"]
    assert text.endswith("Problems\n  node-down: node 3 is not heard from\n    do: start it again\n")


def test_how_far_nodes_are_behind_is_asked_of_the_metadata_leader(cli: Ister, log: FakeLog) -> None:
    log.looks = [cluster_of(3, answered_by=2, learners=[3], down=[3]), cluster_of(3, learners=[3])]
    entry = only_object(cli("cluster", "status", "--bootstrap", "node-2:1", "--output", "json").out)
    assert log.asked == ["node-2:1", "127.0.0.1:9091"]
    assert [node["behind"] for node in entry["nodes"]] == [0, 0, 12]
    assert entry["answered_by"] == 2
    assert [node["alive"] for node in entry["nodes"]] == [True, True, False]


def test_how_far_nodes_are_behind_is_not_made_up_if_the_leader_cannot_be_asked(
    cli: Ister, log: FakeLog
) -> None:
    log.looks = [cluster_of(3, answered_by=2)]
    log.nodes = {"127.0.0.1:9091": FakeNode(ConnectionFailed("refused"))}
    status = ("cluster", "status", "--bootstrap", "node-2:1")
    assert [row[-1] for row in rows_of(cli(*status).out.decode(), "NODE")] == ["-", "-", "-"]
    entry = only_object(cli(*status, "--output", "json").out)
    assert [node["behind"] for node in entry["nodes"]] == [None, None, None]


def test_a_minority_says_that_it_shows_its_own_view_and_that_nothing_can_change(
    cli: Ister, log: FakeLog
) -> None:
    log.looks = [cluster_of(3, down=[1, 2], leader=0, answered_by=3, is_current=False)]
    text = cli("cluster", "status").out.decode()
    assert "node 3's own view: it could not ask the metadata leader" in text
    assert "  leader    none\n" in text
    assert "1 of 3 voters alive, 2 needed: metadata cannot change" in text
    entry = only_object(cli("cluster", "status", "--output", "json").out)
    assert (entry["leader"], entry["current"], entry["healthy"]) == (None, False, False)
    assert [problem["code"] for problem in entry["problems"]] == ["node-down", "node-down", "no-leader"]


def test_a_broker_alone_is_a_cluster_of_one_without_peers(cli: Ister, log: FakeLog) -> None:
    alone = ClusterNode(1, "127.0.0.1", 9091, role="leader")
    log.looks = [ClusterAnswer("c-1", [alone], answered_by=1, leader=1)]
    text = cli("cluster", "status").out.decode()
    assert rows_of(text, "NODE") == [["1", "leader", "alive", "127.0.0.1:9091", "-", "0", "0", "0"]]
    assert "  health    healthy\n" in text


def test_roles_that_nobody_can_say_are_not_counted_as_votes(cli: Ister, log: FakeLog) -> None:
    nodes = [ClusterNode(1, "::1", 9091, role="unknown")]
    log.looks = [ClusterAnswer("c-1", nodes, answered_by=1, is_current=False)]
    text = cli("cluster", "status").out.decode()
    assert "voters not known" in text
    assert "[::1]:9091" in text


# Health.


def test_health_exits_with_0_if_all_is_well_and_with_1_if_not(cli: Ister, log: FakeLog) -> None:
    well = cli("cluster", "health")
    assert (well.code, well.err) == (0, "")
    assert well.out == b"healthy: node 1 leads the metadata, 3 of 3 voters alive, 1 more may fail\n"
    log.looks = [cluster_of(3, down=[3], problems=[DOWN])]
    ill = cli("cluster", "health")
    assert (ill.code, ill.err) == (1, "")
    assert ill.out.decode().splitlines() == [
        "1 problem: node 1 leads the metadata, 2 of 3 voters alive, 0 more may fail",
        "  node-down: node 3 is not heard from",
        "    do: start it again",
    ]
    entry = only_object(cli("cluster", "health", "--output", "json").out)
    assert (entry["healthy"], entry["nodes_down"]) == (False, [3])
    assert entry["problems"] == [
        {"code": "node-down", "what": "node 3 is not heard from", "action": "start it again"}
    ]


def test_a_node_that_is_down_is_a_problem_even_if_the_broker_lists_none(cli: Ister, log: FakeLog) -> None:
    log.looks = [cluster_of(3, down=[2])]
    outcome = cli("cluster", "health")
    assert outcome.code == 1
    assert "node-down: node 2 is not heard from" in outcome.out.decode()
    assert "ister node remove 2" in outcome.out.decode()


def test_an_answer_that_may_be_old_is_not_called_healthy(cli: Ister, log: FakeLog) -> None:
    log.looks = [cluster_of(3, answered_by=2, is_current=False)]
    outcome = cli("cluster", "health")
    assert outcome.code == 1
    assert "stale-view: node 2 could not ask node 1" in outcome.out.decode()


def test_fewer_voters_than_wanted_is_a_problem(cli: Ister, log: FakeLog) -> None:
    log.looks = [cluster_of(3, learners=[3])]
    assert cli("cluster", "health").code == 0
    assert cli("cluster", "health", "--nodes", "2").code == 0
    outcome = cli("cluster", "health", "--nodes", "3")
    assert outcome.code == 1
    assert "nodes-missing: 2 voters of 3 wanted are alive" in outcome.out.decode()


def test_waiting_for_health_says_each_change_once_and_ends_when_all_is_well(cli: Ister, log: FakeLog) -> None:
    ill = cluster_of(3, down=[3], problems=[DOWN])
    log.looks = [ConnectionFailed("refused"), ConnectionFailed("refused"), ill, ill, cluster_of(3), ill]
    options = ["--exit-when-healthy", "--interval", "1ms", "--output", "json"]
    outcome = cli("cluster", "health", *options)
    entries = [json.loads(line) for line in outcome.out.splitlines()]
    assert outcome.code == 0
    assert [entry["healthy"] for entry in entries] == [False, False, True]
    assert (entries[0]["error"], entries[0]["message"]) == ("connection-failed", "refused")
    assert all(entry["timestamp"].endswith("Z") for entry in entries)
    assert log.looks == [ill]


def test_waiting_for_health_gives_up_at_its_timeout(cli: Ister, log: FakeLog) -> None:
    log.looks = [cluster_of(3, down=[3], problems=[DOWN])]
    outcome = cli("cluster", "health", "--exit-when-healthy", "--interval", "1ms", "--timeout", "5ms")
    assert (outcome.code, outcome.err) == (1, "not healthy after 0.005 s\n")
    assert outcome.out.decode().count("node-down") == 1


def test_watching_goes_on_through_health_until_it_is_interrupted(
    cli: Ister, log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.looks = [cluster_of(3), cluster_of(3, down=[3], problems=[DOWN]), cluster_of(3)]
    pauses = iter([None, None])

    def pause(seconds: float) -> None:
        if next(pauses, "over") == "over":
            raise KeyboardInterrupt

    monkeypatch.setattr("ister.cli.cluster.time.sleep", pause)
    outcome = cli("cluster", "health", "--watch")
    assert outcome.code == 130
    heads = [line for line in outcome.out.decode().splitlines() if "voters alive" in line]
    assert [line.split()[1] for line in heads] == ["healthy:", "1", "healthy:"]


def test_an_error_that_will_not_pass_ends_the_watching(cli: Ister, log: FakeLog) -> None:
    log.looks = [BadRequest("no such thing")]
    assert cli("cluster", "health", "--watch").code == 1


# Figures.


@pytest.fixture
def figures(log: FakeLog) -> FakeLog:
    log.looks = [cluster_of(3, down=[3])]
    log.nodes = {
        "127.0.0.1:9091": FakeNode(StatsAnswer(1 << 20, 61_000, {"raft_term": 5.0, "fsync_sum": 0.25})),
        "127.0.0.1:9092": FakeNode(StatsAnswer(3 << 20, 90_061_000, {"raft_term": 5.0, "lag": 1234.0})),
        "127.0.0.1:9093": FakeNode(ConnectionFailed("127.0.0.1:9093 refuses connections")),
    }
    return log


def test_the_figures_of_all_nodes_stand_side_by_side(cli: Ister, figures: FakeLog) -> None:
    outcome = cli("--bootstrap", "any:1", "cluster", "metrics")
    lines = outcome.out.decode().splitlines()
    assert outcome.code == 0
    assert lines[0].split() == ["METRIC", "NODE", "1", "NODE", "2", "NODE", "3"]
    assert [line.split() for line in lines[1:6]] == [
        ["memory", "1.0", "MiB", "3.0", "MiB", "-"],
        ["uptime", "1m", "1s", "1d", "1h", "-"],
        ["ister_raft_term", "5", "5", "-"],
        ["ister_fsync_sum", "0.25", "-", "-"],
        ["ister_lag", "-", "1,234", "-"],
    ]
    assert lines[6] == "node 3 does not answer: 127.0.0.1:9093 refuses connections"
    assert figures.asked == ["any:1", "127.0.0.1:9091", "127.0.0.1:9092", "127.0.0.1:9093"]


def test_figures_for_scripts_are_one_object_a_node(cli: Ister, figures: FakeLog) -> None:
    outcome = cli("--bootstrap", "any:1", "cluster", "metrics", "raft", "--output", "json")
    entries = [json.loads(line) for line in outcome.out.splitlines()]
    assert entries[0] == {
        "node_id": 1,
        "client": "127.0.0.1:9091",
        "rss_bytes": 1 << 20,
        "uptime_ms": 61_000,
        "metrics": {"ister_raft_term": 5.0},
    }
    assert entries[2]["metrics"] is None
    assert entries[2]["error"] == "127.0.0.1:9093 refuses connections"


def test_figures_can_be_chosen_by_a_part_of_their_name(cli: Ister, figures: FakeLog) -> None:
    text = cli("--bootstrap", "any:1", "cluster", "metrics", "ister_fsync", "lag").out.decode()
    assert [line.split()[0] for line in text.splitlines()[:3]] == ["METRIC", "ister_fsync_sum", "ister_lag"]
    none = cli("--bootstrap", "any:1", "cluster", "metrics", "nothing").out.decode()
    assert none.startswith("No metric has 'nothing' in its name.\n")


# Nodes, and who leads.


def test_nodes_are_listed_for_people_and_one_object_a_line_for_scripts(cli: Ister, log: FakeLog) -> None:
    log.looks = [cluster_of(3, down=[3], is_current=False)]
    text = cli("node", "list").out.decode()
    assert [row[:3] for row in rows_of(text, "NODE")[:3]] == [
        ["1", "leader", "alive"],
        ["2", "voter", "alive"],
        ["3", "voter", "down"],
    ]
    assert "own view" in text
    lines = cli("node", "list", "--output", "json").out.splitlines()
    assert [(json.loads(line)["node_id"], json.loads(line)["alive"]) for line in lines] == [
        (1, True),
        (2, True),
        (3, False),
    ]


@pytest.mark.parametrize(
    ("args", "asked", "said", "entry"),
    [
        (
            ("node", "add", "10.0.0.4:6001"),
            ("add_node", "10.0.0.4", 6001),
            "node 4 at 10.0.0.4:6001 joins as a learner; `ister node list` shows when it votes",
            {"node_id": 4, "peer_host": "10.0.0.4", "peer_port": 6001, "detail": ""},
        ),
        (("node", "remove", "3"), ("remove_node", 3), "removed node 3", {"node_id": 3, "detail": ""}),
        (("node", "promote", "4"), ("promote_node", 4), "node 4 is a voter", {"node_id": 4, "detail": ""}),
        (
            ("cluster", "transfer-leader"),
            ("transfer_leader", 0),
            "node 2 leads the metadata",
            {"leader": 2, "detail": ""},
        ),
        (
            ("cluster", "transfer-leader", "3"),
            ("transfer_leader", 3),
            "node 3 leads the metadata",
            {"leader": 3, "detail": ""},
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) and isinstance(value[-1], str) else "",
)
def test_a_cluster_is_changed_by_one_request(
    cli: Ister,
    log: FakeLog,
    args: tuple[str, ...],
    asked: tuple[object, ...],
    said: str,
    entry: dict[str, Any],
) -> None:
    assert cli(*args).out.decode() == f"{said}\n"
    assert only_object(cli(*args, "--output", "json").out) == entry
    assert log.administered == [asked, asked]


def test_what_the_broker_has_to_say_takes_the_place_of_our_own_words(cli: Ister, log: FakeLog) -> None:
    log.detail = "leads the metadata already"
    for node in ((), ("2",)):
        assert cli("cluster", "transfer-leader", *node).out == b"node 2: leads the metadata already\n"
    entry = only_object(cli("node", "promote", "4", "--output", "json").out)
    assert entry == {"node_id": 4, "detail": "leads the metadata already"}


def test_a_node_is_added_at_the_usual_peer_port_if_none_is_given(cli: Ister, log: FakeLog) -> None:
    assert cli("node", "add", "10.0.0.4").code == 0
    assert log.administered == [("add_node", "10.0.0.4", 6001)]


def test_a_node_that_may_not_go_stays_with_the_reason(cli: Ister, log: FakeLog) -> None:
    outcome = cli("node", "remove", "1")
    assert (outcome.code, outcome.out) == (1, b"")
    assert outcome.err.splitlines() == [
        "error [bad-request]: node 1 holds the open default/events:1",
        "hint: Move it away first.",
    ]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["node", "add", "10.0.0.4:port"], "'10.0.0.4:port' is no address"),
        (["node", "add", "10.0.0.4:99999"], "'10.0.0.4:99999' is no address"),
        (["node", "add"], "Missing argument 'HOST:PORT'"),
        (["node", "remove", "three"], "'three' is not a valid whole number"),
        (["node", "remove", "0"], "0 is not in the range"),
        (["node", "rmove", "3"], "did you mean remove?"),
        (["cluster", "transfer-leader", "x"], "'x' is not a valid whole number"),
        (["cluster", "stats"], "did you mean status?"),
        (["cluster", "health", "--timeout", "5s"], "--timeout needs --exit-when-healthy"),
        (["cluster", "health", "--watch", "--interval", "soon"], "'soon' is not a duration"),
        (["cluster", "health", "--watch", "--interval", "0"], "'0' is not above 0"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_refused_before_anybody_is_asked(
    cli: Ister, log: FakeLog, args: list[str], said: str
) -> None:
    outcome = cli(*args)
    assert (outcome.code, log.asked) == (2, [])
    assert said in outcome.err
