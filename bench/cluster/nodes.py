"""`ister serve` as child processes: a node alone, or three of a cluster, each with its directory and ports.

A process may be killed, paused and started again on the same directory at any moment. Whoever holds one ends
it: nothing here outlives its `with` or `finally`, unless this process itself is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import ister
from ister.errors import IsterError
from ister.protocol.messages import ClusterAnswer

HOST: Final = "127.0.0.1"
SERVE: Final = (sys.executable, "-c", "from ister.cli.main import main; main()", "serve")
NODES: Final = (1, 2, 3)
READY_SECONDS: Final = 60
WHOLE_SECONDS: Final = 60
_POLL_SECONDS: Final = 0.05
_LOG_SHOWN: Final = 3000
_PORTS: Final = range(12_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now, below those that the system gives to outgoing connections.

    A node that is down must find its port free when it comes back, and whoever dials it meanwhile must not
    be given that very port and reach itself.
    """
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


class NodeProcess:
    """One broker: its directory and port for good, its process from a start to an end."""

    def __init__(
        self, directory: Path, port: int, options: Sequence[str], command: Sequence[str] = SERVE
    ) -> None:
        self.directory = directory
        self.port = port
        self.starts = 0
        self.is_paused = False
        self.options = options
        """Of the next start."""
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def process_id(self) -> int:
        assert self._process is not None, "the node is down"
        return self._process.pid

    def start(self) -> None:
        """Start and wait until it takes connections; raises with its log if it ends instead."""
        assert self._process is None, "the node is up"
        self.starts += 1
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [*self._command, "--output", "json", "--admin-port", "-1"]
        command += ["--data-dir", str(self.directory / "data"), "--client-port", str(self.port)]
        command += ["--log-file", str(self.directory / "broker.log"), *self.options]
        with (self.directory / "broker.err").open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={name: value for name, value in os.environ.items() if not name.startswith("ISTER_")},
            )
        process = self._process
        assert process.stdout is not None
        line = process.stdout.readline()
        if process is not self._process:
            return  # it was killed while it started
        if not line:
            code = process.wait(READY_SECONDS)
            raise AssertionError(
                f"the broker in {self.directory} ended with code {code}:\n{self.last_words()}"
            )
        assert json.loads(line)["event"] == "ready", line

    def last_words(self) -> str:
        """The end of its log and of its standard error."""
        said = [self.directory / name for name in ("broker.log", "broker.err")]
        return "\n".join(
            path.read_text(encoding="utf-8", errors="replace")[-_LOG_SHOWN:] for path in said if path.exists()
        )

    def check_running(self) -> None:
        """Raises if it has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            code = self._process.returncode
            raise AssertionError(
                f"the broker in {self.directory} ended with code {code}:\n{self.last_words()}"
            )

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nobody."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
            self.is_paused = True

    def resume(self) -> None:
        if self._process is not None and self.is_paused:
            self._process.send_signal(signal.SIGCONT)
        self.is_paused = False

    def kill(self) -> None:
        """As kill -9 does it, paused or not."""
        self._end(signal.SIGKILL)

    def wipe(self) -> None:
        """All that it had is gone; the logs that it wrote for people stay."""
        assert self._process is None, "the node is up"
        shutil.rmtree(self.directory / "data")

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.resume()
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        process, self._process = self._process, None
        self.is_paused = False
        if process is None:
            return 0
        process.send_signal(how)
        code = process.wait(READY_SECONDS)
        assert process.stdout is not None
        process.stdout.close()
        return code


class ClusterProcesses:
    """Three nodes; the first founds the cluster, the others join it."""

    def __init__(
        self, directory: Path, settings: Mapping[str, object], command: Sequence[str] = SERVE
    ) -> None:
        ports = free_ports(2 * len(NODES))
        self._peer_ports = dict(zip(NODES, ports, strict=False))
        self._chosen = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        first, *_ = NODES
        self.nodes: dict[int, NodeProcess] = {}
        for node_id, port in zip(NODES, ports[len(NODES) :], strict=True):
            way_in = ["--bootstrap-cluster"] if node_id == first else self._join(first)
            options = self._options(node_id, way_in)
            self.nodes[node_id] = NodeProcess(directory / f"node-{node_id}", port, options, command)

    def _join(self, *node_ids: int) -> list[str]:
        return ["--join", ",".join(f"{HOST}:{self._peer_ports[node_id]}" for node_id in node_ids)]

    def _options(self, node_id: int, way_in: Sequence[str]) -> list[str]:
        return [
            "--node-id",
            str(node_id),
            "--peer-port",
            str(self._peer_ports[node_id]),
            *way_in,
            *self._chosen,
        ]

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.nodes.values())

    def start(self) -> None:
        for node in self.nodes.values():
            node.start()

    def kill(self) -> None:
        for node in self.nodes.values():
            node.kill()

    def wipe(self, node_id: int) -> None:
        """Take the disk of a node that is down: it comes back with an empty one, and asks to be let in."""
        self.nodes[node_id].wipe()
        others = [other for other in self.nodes if other != node_id]
        self.nodes[node_id].options = self._options(node_id, self._join(*others))

    async def wait_whole(self) -> ClusterAnswer:
        """Everybody is up, votes, and knows the same: returns what one of them says of the cluster."""
        deadline = time.monotonic() + WHOLE_SECONDS
        said = "nothing"
        while time.monotonic() < deadline:
            try:
                views = [await self.view_of(node) for node in self.nodes.values()]
            except IsterError as error:
                said = str(error)
            else:
                if all(map(_is_whole, views)) and len(set(map(_summary, views))) == 1:
                    return views[0]
                said = "; ".join(str(_summary(view)) for view in views)
            await asyncio.sleep(_POLL_SECONDS)
        for node in self.nodes.values():
            node.check_running()
        raise AssertionError(f"the cluster was not whole after {WHOLE_SECONDS} s: {said}")

    async def view_of(self, node: NodeProcess) -> ClusterAnswer:
        async with ister.connect(node.address, request_timeout_s=3, retry_deadline_s=1) as log:
            return await log.cluster()


def _is_whole(view: ClusterAnswer) -> bool:
    votes = [node for node in view.nodes if node.alive and node.role in ("leader", "voter")]
    return view.is_current and view.leader > 0 and len(votes) == len(NODES)


def _summary(view: ClusterAnswer) -> tuple[object, ...]:
    """What all nodes must say alike, once nothing changes any more."""
    starts = tuple(node.starts for node in view.nodes)
    return view.cluster_id, view.leader, view.term, view.applied_index, view.topics, view.segments, starts


@contextmanager
def running_cluster(
    directory: Path, settings: Mapping[str, object], command: Sequence[str] = SERVE
) -> Iterator[ClusterProcesses]:
    """Three nodes that run; whatever still runs at the end is killed."""
    cluster = ClusterProcesses(directory, settings, command)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
