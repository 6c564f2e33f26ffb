"""A cluster as a person runs it: `ister serve` in processes of their own, and the commands around it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

ISTER = [sys.executable, "-m", "ister"]
PATIENCE_S = 60
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith("ISTER_")}

pytestmark = pytest.mark.slow  # real processes, many of them


class Node:
    """`ister serve` on free ports, which it keeps when it is started again."""

    def __init__(self, directory: Path, node_id: int) -> None:
        self.node_id = node_id
        self.data_dir = directory / f"node-{node_id}"
        self.log = directory / f"node-{node_id}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.ports = {"client_port": 0, "peer_port": 0}

    def start(self, *options: str, with_peers: bool = True) -> dict[str, Any]:
        """Start it and return the first thing that it says."""
        ports = ["--client-port", str(self.ports["client_port"])]
        if with_peers:
            ports += ["--peer-port", str(self.ports["peer_port"])]
        command = [*ISTER, "serve", "--node-id", str(self.node_id), "--data-dir", str(self.data_dir)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *ports, "--admin-port", "-1", "--output", "json", *options],
                stdout=subprocess.PIPE,
                stderr=log,
                env=ENVIRON,
            )
        return self.hear()

    def hear(self) -> dict[str, Any]:
        assert self.process is not None and self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()[-3000:]
        said: dict[str, Any] = json.loads(line)
        if said["event"] == "ready":
            self.ports |= {name: said[name] for name in self.ports if said[name] > 0}
        return said

    @property
    def client(self) -> str:
        return f"127.0.0.1:{self.ports['client_port']}"

    @property
    def peer(self) -> str:
        return f"127.0.0.1:{self.ports['peer_port']}"

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None and self.process.stdout is not None
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(PATIENCE_S)
        self.process.stdout.close()
        return code

    def ister(self, *args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """A command that asks this node."""
        return ister(self.client, *args, stdin=stdin)

    def objects(self, *args: str) -> list[dict[str, Any]]:
        done = self.ister(*args, "--output", "json")
        assert done.returncode == 0, done.stderr.decode()
        return [json.loads(line) for line in done.stdout.splitlines()]


def ister(bootstrap: str, *args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environ = {**ENVIRON, "ISTER_BOOTSTRAP": bootstrap}
    return subprocess.run([*ISTER, *args], input=stdin, capture_output=True, env=environ, timeout=PATIENCE_S)


def wait_until_healthy(node: Node, count: int) -> None:
    options = ["--exit-when-healthy", "--nodes", str(count), "--interval", "100ms", "--timeout", "60s"]
    done = node.ister("cluster", "health", *options)
    assert done.returncode == 0, (done.stdout, done.stderr)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    """Nodes 1 to 4, not started yet; whatever runs at the end is stopped."""
    made = [Node(tmp_path, number) for number in (1, 2, 3, 4)]
    yield made
    for node in made:
        if node.process is not None:
            node.stop(signal.SIGKILL)


@pytest.fixture
def cluster(nodes: list[Node]) -> list[Node]:
    nodes[0].start("--bootstrap-cluster")
    for node in nodes[1:3]:
        node.start("--join", nodes[0].peer)
    wait_until_healthy(nodes[0], 3)
    return nodes


def leader_of(node: Node, topic: str) -> int:
    leader: int = node.objects("topic", "describe", topic)[0]["segments"][-1]["leader"]
    return leader


def test_what_is_put_through_one_node_is_read_through_any(cluster: list[Node]) -> None:
    assert cluster[0].ister("put", "events", "--lines", stdin=b"a\nb\nc\n").returncode == 0
    for node in cluster[:3]:
        assert node.ister("tail", "events", "--no-follow").stdout == b"a\nb\nc\n"
        assert node.ister("get", "events", "1").stdout == b"b\n"
        status = node.objects("cluster", "status")[0]
        assert (status["answered_by"], status["voters_alive"], status["topics"]) == (node.node_id, 3, 1)
        assert status["current"] and status["healthy"]
    ids = {node.objects("cluster", "status")[0]["cluster_id"] for node in cluster[:3]}
    assert len(ids) == 1


def test_the_chain_of_a_topic_shows_whose_each_segment_is(cluster: list[Node]) -> None:
    cluster[1].ister("topic", "create", "rolling", "--segment-records", "10")
    for number in range(6):
        lines = b"".join(b"%d\n" % (number * 10 + place) for place in range(10))
        assert cluster[number % 3].ister("put", "rolling", "--lines", stdin=lines).returncode == 0
    for node in cluster[:3]:
        chain = node.objects("topic", "describe", "rolling")[0]["segments"]
        assert all(left["end_offset"] == right["base_offset"] for left, right in pairwise(chain))
        assert {segment["leader"] for segment in chain} == {1, 2, 3}
        assert all(sorted(segment["replicas"]) == [1, 2, 3] for segment in chain)
        assert all(segment["replicas"][0] == segment["leader"] for segment in chain)
    expected = b"".join(b"%d\n" % number for number in range(60))
    assert cluster[2].ister("tail", "rolling", "--no-follow").stdout == expected


def test_a_killed_node_is_told_and_is_well_again_once_it_is_back(cluster: list[Node]) -> None:
    first, second = cluster[:2]
    first.ister("put", "events", "before")
    second.stop(signal.SIGKILL)
    watching = ["--watch", "--interval", "100ms", "--output", "json"]
    environ = {**ENVIRON, "ISTER_BOOTSTRAP": first.client}
    with subprocess.Popen(
        [*ISTER, "cluster", "health", *watching], stdout=subprocess.PIPE, env=environ
    ) as watch:
        try:
            assert watch.stdout is not None
            heard = iter(json.loads(line) for line in watch.stdout)
            down = next(entry for entry in heard if not entry["healthy"])
            assert down["nodes_down"] == [2]
            assert any(problem["code"] == "node-down" for problem in down["problems"])
            told = first.ister("cluster", "health")
            assert told.returncode == 1
            assert b"node 2" in told.stdout
            second.start()
            assert next(entry for entry in heard if entry["healthy"])["nodes_down"] == []
            watch.send_signal(signal.SIGINT)
            assert watch.wait(PATIENCE_S) == 130
        finally:
            watch.kill()  # where it has not ended, nobody else ends it
    assert second.ister("tail", "events", "--no-follow").stdout == b"before\n"


def test_a_minority_says_so_and_still_serves_what_it_has(cluster: list[Node]) -> None:
    """With one replica: with more, most of them have to be there."""
    cluster[0].ister("topic", "create", "events", "--replicas", "1")
    cluster[0].ister("put", "events", "kept")
    holder = cluster[leader_of(cluster[0], "events") - 1]
    for node in cluster[:3]:
        if node is not holder:
            node.stop(signal.SIGKILL)
    told = holder.ister("cluster", "health", "--output", "json")
    assert told.returncode == 1
    assert json.loads(told.stdout)["healthy"] is False
    assert holder.ister("tail", "events", "--no-follow").stdout == b"kept\n"
    assert holder.ister("put", "events", "more").returncode == 0


def test_a_node_waits_until_it_is_added_and_can_leave_again(cluster: list[Node]) -> None:
    fourth = cluster[3]
    fourth.ports["peer_port"] = free_port()
    assert fourth.start()["event"] == "waiting"
    # The line is written before the node listens; until then nobody is there to be added.
    answer = add_patiently(cluster[1], fourth.peer)
    assert answer["node_id"] == 4
    assert fourth.hear()["event"] == "ready"
    roles = {node["node_id"]: node["role"] for node in until_role(cluster[0], 4, "voter")}
    assert set(roles) == {1, 2, 3, 4}
    removed = cluster[0].ister("node", "remove", "4")
    assert removed.returncode == 0, removed.stderr
    assert fourth.process is not None and fourth.process.wait(PATIENCE_S) == 1
    assert b"was removed from the cluster" in fourth.log.read_bytes()
    assert len(cluster[0].objects("node", "list")) == 3


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def add_patiently(node: Node, address: str) -> dict[str, Any]:
    """The client repeats what cannot connect yet, for a minute."""
    done = node.ister("node", "add", address, "--output", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def until_role(node: Node, node_id: int, role: str) -> list[dict[str, Any]]:
    """Look until that node has that role; each look is a process, which is pause enough."""
    for _ in range(100):
        listed = node.objects("node", "list")
        if any(entry["node_id"] == node_id and entry["role"] == role for entry in listed):
            return listed
    raise AssertionError(f"node {node_id} did not become {role}: {listed}")


def test_a_waiting_node_can_be_stopped(tmp_path: Path) -> None:
    options = ["--data-dir", str(tmp_path / "data"), "--client-port", "0", "--peer-port", "0"]
    with subprocess.Popen(
        [*ISTER, "serve", *options, "--admin-port", "-1"], stderr=subprocess.PIPE, env=ENVIRON
    ) as node:
        assert node.stderr is not None
        assert any(b"waits to be added" in line for line in node.stderr)
        node.send_signal(signal.SIGTERM)
        try:
            assert node.wait(PATIENCE_S) == 0
        finally:
            node.kill()


def test_the_leadership_of_the_metadata_is_handed_over(cluster: list[Node]) -> None:
    before = cluster[0].objects("cluster", "status")[0]["leader"]
    after = cluster[0].objects("cluster", "transfer-leader")[0]["leader"]
    assert after != before
    back = cluster[1].objects("cluster", "transfer-leader", str(before))[0]["leader"]
    assert back == before


def test_figures_come_from_every_node(cluster: list[Node]) -> None:
    entries = cluster[0].objects("cluster", "metrics", "raft")
    assert [entry["node_id"] for entry in entries] == [1, 2, 3]
    assert sum(entry["metrics"]["ister_raft_is_leader"] for entry in entries) == 1


def test_a_single_broker_grows_into_a_cluster_with_all_that_it_has(nodes: list[Node]) -> None:
    nodes[0].start(with_peers=False)
    nodes[0].ister("put", "events", "--lines", stdin=b"old\nolder\n")
    assert nodes[0].stop() == 0
    nodes[0].start()
    for node in nodes[1:3]:
        node.start("--join", nodes[0].peer)
    wait_until_healthy(nodes[0], 3)
    assert nodes[2].ister("tail", "events", "--no-follow").stdout == b"old\nolder\n"


def test_a_join_that_leads_nowhere_ends_with_what_to_do(nodes: list[Node]) -> None:
    options = ["--join", f"127.0.0.1:{free_port()}", "--set", "join_timeout_ms=300ms"]
    command = ["serve", "--data-dir", str(nodes[0].data_dir), "--client-port", "0", "--peer-port", "0"]
    done = ister("", *command, "--admin-port", "-1", *options)
    assert done.returncode == 1
    assert b"error [join-failed]: " in done.stderr
    assert b"hint: " in done.stderr


def test_dev_brings_a_cluster_up_in_one_command_and_the_same_one_back(tmp_path: Path) -> None:
    options = ["--client-port", "0", "--peer-port", "0", "--admin-port", "-1"]
    command = [*ISTER, "dev", "--data-dir", str(tmp_path / "c"), "--output", "json"]
    ids = []
    for turn in range(2):
        with subprocess.Popen(
            [*command, *(options if turn == 0 else ())],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRON,
        ) as dev:
            assert dev.stdout is not None and dev.stderr is not None
            line = dev.stdout.readline()
            assert line, dev.stderr.read().decode()
            ready = json.loads(line)
            ids.append(ready["cluster_id"])
            assert len(ready["nodes"]) == 3
            if turn == 0:
                assert ister(ready["bootstrap"], "put", "events", "hello").returncode == 0
            else:
                assert ister(ready["bootstrap"], "tail", "events", "--no-follow").stdout == b"hello\n"
                os.kill(ready["nodes"][1]["pid"], signal.SIGKILL)
                ended = json.loads(dev.stdout.readline())
                assert (ended["event"], ended["node_id"], ended["code"]) == ("ended", 2, -signal.SIGKILL)
            dev.send_signal(signal.SIGTERM)
            assert dev.wait(PATIENCE_S) == 0
    assert ids[0] == ids[1]


def test_f6_a_topic_whose_node_is_gone_goes_on_when_the_loss_is_accepted(cluster: list[Node]) -> None:
    assert cluster[0].ister("topic", "create", "events", "--replicas", "1").returncode == 0
    assert cluster[0].ister("put", "events", "--lines", stdin=b"a\nb\nc\n").returncode == 0
    gone = cluster[leader_of(cluster[0], "events") - 1]
    asked = next(node for node in cluster[:3] if node is not gone)
    refused = asked.ister("topic", "recover", "events", "--accept-loss", "--node-stopped", "--yes")
    assert refused.returncode == 1 and b"it answers" in refused.stderr
    gone.stop(signal.SIGKILL)
    told = asked.ister("topic", "recover", "events")
    assert told.returncode == 1
    assert f"led by node {gone.node_id}, which does not answer" in told.stdout.decode()
    assert b"--accept-loss --node-stopped" in told.stdout
    done = asked.ister(
        "topic", "recover", "events", "--accept-loss", "--node-stopped", "--yes", "--output", "json"
    )
    assert done.returncode == 0, done.stderr
    lost = json.loads(done.stdout)
    assert (lost["accepted"], lost["lost_from"]) == (True, 0)
    assert asked.ister("put", "events", "after").returncode == 0
    read = asked.ister("get", "events", "1")
    assert (read.returncode, read.stdout) == (5, b"")
    assert f"Read on from offset {lost['lost_end']}." in read.stderr.decode()
    assert asked.ister("get", "events", str(lost["lost_end"])).stdout == b"after\n"
    gone.start()
    wait_until_healthy(asked, 3)
    assert asked.ister("topic", "recover", "events").returncode == 0
    assert gone.ister("get", "events", "1").returncode == 5
    for _ in range(50):  # each look takes a while
        notes = asked.objects("topic", "describe", "events")[0]["notes"]
        if any("offsets 0 to 2" in note and "set aside" in note for note in notes):
            break
    else:
        raise AssertionError(notes)
    aside = [path.name for path in gone.data_dir.glob("segments/*/*.log") if ".lost-" in path.name]
    assert [name.partition(".")[2] for name in aside] == ["lost-0-3.log"]
