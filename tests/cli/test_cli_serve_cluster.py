"""`ister serve` as a node of a cluster: its options, what it says while it waits, and when it is ready."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from cli_fakes import Ister

from ister.cli.serve import banner
from ister.cli.terminal import Terminal
from ister.config import BrokerConfig


class Info(NamedTuple):
    client_host: str = "127.0.0.1"
    client_port: int = 9091
    admin_port: int = 9190
    data_dir: str = "/var/lib/ister/node-1"
    cluster_id: str = "c-1"
    node_id: int = 1
    peer_port: int = 6001


class Runs:
    """What the broker would have been run with."""

    def __init__(self) -> None:
        self.configs: list[BrokerConfig] = []

    def run(self, config: BrokerConfig, *, on_ready: Callable[[Info], None]) -> None:
        self.configs.append(config)
        on_ready(Info(node_id=config.node_id, peer_port=config.peer_port))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs()
    module = ModuleType("ister.broker.node.process")
    module.run = made.run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ister.broker.node.process", module)
    return made


def test_a_first_node_and_one_that_joins_are_told_apart_by_an_option(cli: Ister, runs: Runs) -> None:
    assert cli("serve", "--node-id", "1", "--peer-port", "6001", "--bootstrap-cluster").code == 0
    options = ["--peer-port", "6002", "--peer-host", "0.0.0.0", "--peer-advertise-host", "10.0.0.2"]
    assert cli("serve", "--node-id", "2", "--join", "10.0.0.1:6001", *options).code == 0
    first, second = runs.configs
    assert (first.bootstrap_cluster, first.join, first.peer_port) == (True, "", 6001)
    assert (second.bootstrap_cluster, second.join, second.peer_port) == (False, "10.0.0.1:6001", 6002)
    assert (second.peer_host, second.peer_advertise_host) == ("0.0.0.0", "10.0.0.2")


def test_several_addresses_to_join_may_be_given(cli: Ister, runs: Runs) -> None:
    assert cli("serve", "--peer-port", "6003", "--join", "a:6001", "--join", "b:6001,c:6001").code == 0
    assert runs.configs[0].join == "a:6001,b:6001,c:6001"


def test_the_names_of_the_documents_are_taken_and_not_shown(cli: Ister, runs: Runs) -> None:
    options = ["--raft-port", "6002", "--raft-host", "0.0.0.0", "--raft-advertise-host", "10.0.0.2"]
    assert cli("serve", *options, "--initial-peer", "10.0.0.1:6001").code == 0
    config = runs.configs[0]
    assert (config.peer_port, config.peer_host, config.peer_advertise_host) == (6002, "0.0.0.0", "10.0.0.2")
    assert config.join == "10.0.0.1:6001"
    assert "raft" not in cli("serve", "--help").out.decode()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--bootstrap-cluster"], "bootstrap_cluster needs a port for other brokers"),
        (["--join", "a:1"], "join = 'a:1' needs a port for other brokers"),
        (["--peer-port", "1", "--bootstrap-cluster", "--join", "a:1"], "are both given"),
        (["--peer-port", "1", "--join", "a:b"], "'a:b' is no address"),
        (["--peer-port", "1", "--raft-port", "2"], "peer_port is given twice"),
        (["--join", "a:1", "--initial-peer", "b:1"], "join is given twice: by --join and by --initial-peer"),
        (
            ["--peer-port", "1", "--set", "raft_port=2"],
            "peer_port is given twice: by --peer-port and by --set",
        ),
        (["--peer-host", ""], "peer_host = '' (from the command line) is empty"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_that_make_no_sense_together_are_refused(
    cli: Ister, runs: Runs, options: list[str], said: str
) -> None:
    outcome = cli("serve", *options)
    assert (outcome.code, runs.configs) == (2, [])
    assert said in outcome.err
    assert "hint: " in outcome.err


@pytest.mark.parametrize("kept", [None, '{"cluster_id": ""}'], ids=["a new directory", "waited before"])
def test_a_node_with_nothing_to_join_says_that_it_waits_to_be_added(
    cli: Ister, runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str | None
) -> None:
    if kept is not None:
        (tmp_path / "ister.json").write_text(kept)
    options = ["--data-dir", str(tmp_path), "--node-id", "4", "--peer-port", "6004"]
    events = [json.loads(line) for line in cli("serve", *options, "--output", "json").out.splitlines()]
    assert events[0] == {"event": "waiting", "node_id": 4, "peer_host": "127.0.0.1", "peer_port": 6004}
    assert (events[1]["event"], events[1]["peer_port"]) == ("ready", 6004)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    text = cli("serve", *options, "--peer-advertise-host", "10.0.0.4", environ={"NO_COLOR": "1"}).out.decode()
    assert "  Node 4 waits to be added to a cluster. Ctrl-C stops it.\n" in text
    assert "    ister node add 10.0.0.4:6004 --bootstrap HOST:PORT\n" in text


def test_a_node_that_has_its_cluster_or_goes_to_one_does_not_wait(
    cli: Ister, runs: Runs, tmp_path: Path
) -> None:
    used = tmp_path / "used"
    used.mkdir()
    (used / "ister.json").write_text('{"cluster_id": "c-1"}')
    new = ["--data-dir", str(tmp_path / "new")]
    for options in (
        ["--data-dir", str(used), "--peer-port", "6001"],
        [*new, "--peer-port", "6001", "--bootstrap-cluster"],
        [*new, "--peer-port", "6001", "--join", "a:1"],
        new,
    ):
        events = cli("serve", *options, "--output", "json").out.splitlines()
        assert [json.loads(line)["event"] for line in events] == ["ready"]


def test_the_banner_of_a_first_node_has_the_peers_and_how_to_add_another() -> None:
    config = BrokerConfig(peer_port=6001, bootstrap_cluster=True)
    text = banner(Terminal({}), config, Info())  # type: ignore[arg-type]
    assert "  peers    127.0.0.1:6001\n" in text
    assert "    ister cluster status\n" in text
    assert (
        "    ister serve --node-id 2 --join 127.0.0.1:6001 --peer-port 6002 --client-port 9092 "
        "--admin-port 9191 --data-dir /var/lib/ister/node-2\n"
    ) in text


def test_the_banner_of_a_broker_alone_has_no_peers() -> None:
    text = banner(Terminal({}), BrokerConfig(), Info(peer_port=-1))  # type: ignore[arg-type]
    assert "peers" not in text
    assert "cluster status" not in text
    assert f"  process  {os.getpid()}\n" in text


def test_the_banner_has_commands_that_another_terminal_can_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "ister"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["bin/ister", "serve"])
    for path, command in (("/nowhere", str(program)), (str(program.parent), "ister")):
        text = banner(Terminal({"PATH": path}), BrokerConfig(), Info())  # type: ignore[arg-type]
        assert f"    {command} put events 'hello'\n" in text
