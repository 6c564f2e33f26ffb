"""`ister dev`: a cluster of child processes, which here only pretend to be brokers."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_fakes import FakeLog, Ister, cluster_of

from ister.cli import dev_cluster, dev_plan
from ister.cli.dev_plan import DevNode, environment_of_nodes, keep_plan, plan_nodes, settings_of_nodes
from ister.cli.terminal import Terminal
from ister.errors import AddressInUse, ConfigError, ConnectionFailed
from ister.protocol.messages import ClusterAnswer

ANY_PORTS = ["--client-port", "0", "--peer-port", "0", "--admin-port", "-1"]
PRETEND = """
import os, signal, sys
print(os.getpid(), *sys.argv[1:], flush=True)
signal.pause()
"""
SECOND_FAILS = PRETEND.replace(
    "signal.pause()",
    """
if sys.argv[sys.argv.index("--node-id") + 1] == "2":
    sys.exit("error: no room at all")
signal.pause()
""",
)
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + PRETEND

OnEvent = Callable[[dict[str, Any]], None]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def use(script: str) -> None:
        monkeypatch.setattr(dev_cluster, "SERVE", (sys.executable, "-c", script))

    use(PRETEND)
    return use


@pytest.fixture
def on_event(monkeypatch: pytest.MonkeyPatch) -> Callable[[OnEvent], None]:
    """Do something at each object that is written."""

    def use(react: OnEvent) -> None:
        write = Terminal.write_objects

        def write_and_react(self: Terminal, objects: list[dict[str, Any]]) -> None:
            write(self, objects)
            for entry in objects:
                react(entry)

        monkeypatch.setattr(Terminal, "write_objects", write_and_react)

    return use


def stop_ourselves() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def waiting_for_logs(log: FakeLog, directory: Path, count: int) -> None:
    """Let the cluster be up only once every process has said its line: these ones play no part in it."""
    answer = log.cluster

    def have_spoken() -> bool:
        logs = list(directory.glob("node-*.log"))
        return len(logs) == count and all(path.read_text().endswith("\n") for path in logs)

    async def cluster() -> ClusterAnswer:
        if not have_spoken():
            raise ConnectionFailed("not yet")
        return await answer()

    log.cluster = cluster  # type: ignore[method-assign]


# Running.


def test_all_nodes_are_started_announced_and_stopped(
    cli: Ister, log: FakeLog, pretend: Any, on_event: Any, tmp_path: Path
) -> None:
    on_event(lambda entry: stop_ourselves())
    log.looks = [ConnectionFailed("not yet"), cluster_of(1), cluster_of(3, learners=[3]), cluster_of(3)]
    outcome = cli("dev", *ANY_PORTS, "--data-dir", str(tmp_path / "c"), "--output", "json")
    assert outcome.code == 0, outcome.err
    ready = json.loads(outcome.out)
    nodes = ready["nodes"]
    assert (ready["event"], ready["cluster_id"], ready["leader"]) == ("ready", "c-1", 1)
    assert [node["node_id"] for node in nodes] == [1, 2, 3]
    assert ready["bootstrap"] == ",".join(f"127.0.0.1:{node['client_port']}" for node in nodes)
    assert set(log.asked) == {ready["bootstrap"]}
    for node in nodes:
        assert not is_running(node["pid"])
        assert node["data_dir"] == str(tmp_path / "c" / f"node-{node['node_id']}")


def test_the_first_node_makes_the_cluster_and_the_others_join_it(
    cli: Ister, log: FakeLog, pretend: Any, on_event: Any, tmp_path: Path
) -> None:
    said: dict[int, list[str]] = {}

    def look_at_the_logs(entry: dict[str, Any]) -> None:
        for node in entry["nodes"]:
            said[node["node_id"]] = Path(node["log"]).read_text().split()
            assert said[node["node_id"]][0] == str(node["pid"])
        stop_ourselves()

    on_event(look_at_the_logs)
    waiting_for_logs(log, tmp_path / "c", 3)
    cli("dev", *ANY_PORTS, "--data-dir", str(tmp_path / "c"), "--set", "fsync=none", "--output", "json")
    peer = json.loads((tmp_path / "c" / "dev.json").read_text())[0]["peer_port"]
    assert "--bootstrap-cluster" in said[1] and "--join" not in said[1]
    for number in (2, 3):
        assert said[number][said[number].index("--join") + 1] == f"127.0.0.1:{peer}"
        assert said[number][said[number].index("--node-id") + 1] == str(number)
    assert all("fsync=none" in words and "join_timeout_ms=60s" in words for words in said.values())


def test_a_node_that_is_killed_is_told_and_the_others_go_on(
    cli: Ister, log: FakeLog, pretend: Any, on_event: Any, tmp_path: Path
) -> None:
    pids: dict[int, int] = {}

    def kill_the_second(entry: dict[str, Any]) -> None:
        if entry["event"] == "ready":
            pids.update((node["node_id"], node["pid"]) for node in entry["nodes"])
            os.kill(pids[2], signal.SIGKILL)
        else:
            assert [number for number, pid in pids.items() if is_running(pid)] == [1, 3]
            stop_ourselves()

    on_event(kill_the_second)
    waiting_for_logs(log, tmp_path / "c", 3)
    outcome = cli("dev", *ANY_PORTS, "--data-dir", str(tmp_path / "c"), "--output", "json")
    ended = json.loads(outcome.out.splitlines()[1])
    assert outcome.code == 0
    assert (ended["event"], ended["node_id"], ended["code"]) == ("ended", 2, -signal.SIGKILL)
    assert ended["log_lines"][0].startswith(f"{pids[2]} --node-id 2 --join ")
    assert not any(map(is_running, pids.values()))


def test_a_person_is_told_what_to_try_which_node_is_gone_and_how_to_bring_it_back(
    cli: Ister, log: FakeLog, pretend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    say = Terminal.say

    def say_and_react(self: Terminal, text: str) -> None:
        say(self, text)
        if "is ready" in text:
            os.kill(int(text.partition("kill -9 ")[2].split()[0]), signal.SIGKILL)
        else:
            stop_ourselves()

    monkeypatch.setattr(Terminal, "say", say_and_react)
    log.looks = [cluster_of(2, leader=2)]
    outcome = cli("dev", "--nodes", "2", *ANY_PORTS)
    text = outcome.out.decode()
    assert outcome.code == 0
    assert "A cluster of 2 nodes is ready. Ctrl-C stops it.\n" in text
    assert "(removed at the end; --data-dir keeps it)" in text
    assert f"    export ISTER_BOOTSTRAP={log.asked[0]}\n" in text
    for command in (
        "put events 'hello'",
        "tail events --from start",
        "topic describe events",
        "cluster status",
    ):
        assert f"    ister {command}\n" in text
    assert "node 1 (pid " in text and ") was killed by SIGKILL; the others go on.\n" in text
    assert "  ister serve --node-id 1 --bootstrap-cluster --peer-port " in text
    directory = Path(outcome.err.removeprefix("starting 2 nodes in ").splitlines()[0])
    assert directory.name.startswith("ister-dev-") and not directory.exists()


def test_a_node_that_fails_at_its_start_stops_the_whole_with_its_last_words(
    cli: Ister, log: FakeLog, pretend: Any, tmp_path: Path
) -> None:
    pretend(SECOND_FAILS)
    log.looks = [ConnectionFailed("refused")]
    outcome = cli("dev", *ANY_PORTS, "--data-dir", str(tmp_path / "c"))
    assert (outcome.code, outcome.out) == (1, b"")
    assert (
        "node 2 ended with exit code 1 before the cluster was up; the last lines of its log:" in outcome.err
    )
    assert "  error: no room at all\n" in outcome.err
    for number in (1, 3):
        said = (tmp_path / "c" / f"node-{number}.log").read_text().split()
        assert not said or not is_running(int(said[0]))


def test_a_cluster_that_does_not_come_up_in_time_is_given_up(
    cli: Ister, log: FakeLog, pretend: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dev_cluster, "READY_SECONDS", 0.2)
    log.looks = [cluster_of(3, learners=[3])]
    outcome = cli("dev", *ANY_PORTS, "--data-dir", str(tmp_path / "c"))
    assert outcome.code == 1
    assert "the cluster was not up after 0 s: 2 of 3 are in" in outcome.err
    assert f"{tmp_path / 'c'}/node-*.log" in outcome.err


def test_a_cluster_whose_last_node_is_gone_is_over(
    cli: Ister, log: FakeLog, pretend: Any, on_event: Any
) -> None:
    def kill_all(entry: dict[str, Any]) -> None:
        for node in entry.get("nodes", ()):
            os.kill(node["pid"], signal.SIGKILL)

    on_event(kill_all)
    outcome = cli("dev", *ANY_PORTS, "--output", "json")
    assert outcome.code == 1
    assert [json.loads(line)["event"] for line in outcome.out.splitlines()] == ["ready", *["ended"] * 3]
    assert "no node is left" in outcome.err


def test_a_node_that_does_not_stop_is_killed_when_it_is_asked_for_a_second_time(
    cli: Ister, log: FakeLog, pretend: Any, on_event: Any, tmp_path: Path
) -> None:
    pids: list[int] = []

    def insist(entry: dict[str, Any]) -> None:
        pids.extend(node["pid"] for node in entry["nodes"])
        stop_ourselves()
        stop_ourselves()

    pretend(DEAF)
    on_event(insist)
    waiting_for_logs(log, tmp_path / "c", 3)
    assert cli("dev", *ANY_PORTS, "--data-dir", str(tmp_path / "c"), "--output", "json").code == 0
    assert len(pids) == 3 and not any(map(is_running, pids))


# Planning.


def test_ports_are_counted_from_the_first_of_each_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ister.cli.dev_plan._check_free", lambda name, port: None)
    assert plan_nodes(tmp_path, None, {}) == [
        DevNode(1, 9091, 6001, 9190),
        DevNode(2, 9092, 6002, 9191),
        DevNode(3, 9093, 6003, 9192),
    ]
    assert plan_nodes(tmp_path, 2, {"client_port": 100, "admin_port": -1}) == [
        DevNode(1, 100, 6001, -1),
        DevNode(2, 101, 6002, -1),
    ]


def test_a_directory_brings_the_same_cluster_back_and_may_get_more_nodes(tmp_path: Path) -> None:
    any_ports = {"client_port": 0, "peer_port": 0, "admin_port": -1}
    made = plan_nodes(tmp_path, 3, any_ports)
    keep_plan(tmp_path, made)
    assert plan_nodes(tmp_path, None, {}) == made
    grown = plan_nodes(tmp_path, 5, any_ports)
    assert [node.peer_port for node in grown[:3]] == [node.peer_port for node in made]
    assert [node.node_id for node in grown] == [1, 2, 3, 4, 5]


def test_a_new_node_is_given_no_port_that_a_node_of_the_cluster_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system gives out ports of nodes that are stopped, and the same one again."""
    given = iter([5001, 6001, 5002, 5002, 5003, 5001, 5004])

    class Probe:
        def __enter__(self) -> Probe:
            return self

        def __exit__(self, *_: object) -> None: ...

        def bind(self, address: object) -> None: ...

        def getsockname(self) -> tuple[str, int]:
            return "127.0.0.1", next(given)

    monkeypatch.setattr(dev_plan.socket, "socket", Probe)
    monkeypatch.setattr(dev_plan, "_check_free", lambda name, port: None)
    keep_plan(tmp_path, [DevNode(1, 9091, 6001, -1)])
    nodes = plan_nodes(tmp_path, 2, {"client_port": 0, "peer_port": 0, "admin_port": -1})
    assert nodes == [DevNode(1, 5001, 6001, -1), DevNode(2, 5002, 5003, -1)]


def test_a_cluster_is_not_brought_back_with_fewer_nodes_or_other_peer_ports(tmp_path: Path) -> None:
    keep_plan(tmp_path, [DevNode(1, 9091, 6001, -1), DevNode(2, 9092, 6002, -1)])
    with pytest.raises(ConfigError, match="has 2 nodes, and 1 were asked for"):
        plan_nodes(tmp_path, 1, {})
    with pytest.raises(ConfigError, match="has its peers from port 6001, not 7001"):
        plan_nodes(tmp_path, 2, {"peer_port": 7001})


def test_a_port_in_use_is_named_before_anything_is_started(cli: Ister, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUse, match=f"127.0.0.1:{port} cannot be used"):
            plan_nodes(tmp_path, 1, {"client_port": port, "peer_port": 0, "admin_port": -1})
        options = ["--client-port", str(port), "--peer-port", "0", "--admin-port", "-1"]
        outcome = cli("dev", *options, "--data-dir", str(tmp_path / "c"))
    assert outcome.code == 1
    assert "--client-port" in outcome.err
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--nodes", "0"], "0 is not in the range 1<=x<=7"),
        (["--nodes", "8"], "8 is not in the range 1<=x<=7"),
        (["--set", "fsnc=none"], "did you mean fsync?"),
        (["--set", "node-id=4"], "node_id cannot be set for all nodes"),
        (["--set", "raft_port=4"], "raft_port cannot be set for all nodes"),
        (["--log-level", "loud"], "has no level 'loud'"),
        (["--client-port", "65535"], "is over 65535"),
        (["--client-port", "30001", "--peer-port", "30002"], "is needed twice"),
    ],
    ids=" ".join,
)
def test_wrong_usage_starts_nothing(cli: Ister, args: list[str], said: str, tmp_path: Path) -> None:
    rest = ANY_PORTS[2:] if "--client-port" in args else ANY_PORTS
    rest = rest[2:] if "--peer-port" in args else rest
    outcome = cli("dev", *rest, *args, "--data-dir", str(tmp_path / "c"))
    assert outcome.code == 2
    assert said in outcome.err
    assert not (tmp_path / "c").exists()


def test_settings_and_environment_reach_the_nodes_without_what_each_has_for_itself() -> None:
    environ = {"PATH": "/bin", "ISTER_FSYNC": "none", "ISTER_DATA_DIR": "x", "ISTER_RAFT_PORT": "1"}
    assert environment_of_nodes(environ) == {"PATH": "/bin", "ISTER_FSYNC": "none"}
    options = settings_of_nodes({"segment-records": "9", "join_timeout_ms": "5s"}, "debug", {})
    assert options == [
        *("--set", "join_timeout_ms=5s", "--set", "segment_records=9", "--set", "log_level=debug"),
    ]
