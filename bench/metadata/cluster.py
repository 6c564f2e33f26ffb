"""Three nodes in processes of their own, under one scratch directory."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.metadata.node import HOST

NODES: Final = (1, 2, 3)
_PATIENCE_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 20

Fields = dict[str, Any]


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now. All are held until all are known, so that they differ."""
    held = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in held]
    for one in held:
        one.close()
    return ports


class Member:
    """One node: its directory and port for good, its process until it is killed."""

    def __init__(self, node_id: int, port: int, directory: Path) -> None:
        self.node_id = node_id
        self.port = port
        self.directory = directory
        self.starts = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self, *options: str) -> Fields:
        """Returns when it says that it is ready; `seconds` is what a person would have waited."""
        self.starts += 1
        began = time.monotonic()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "bench.metadata.node"),
                *("--directory", str(self.directory), "--node-id", str(self.node_id)),
                *("--port", str(self.port), "--starts", str(self.starts), *options),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return {**self._answer(), "seconds": time.monotonic() - began}

    def ask(self, do: str, **more: Any) -> Fields:
        self.tell(do, **more)
        return self._answer()

    def tell(self, do: str, **more: Any) -> None:
        """Ask, and leave the answer for `hear`."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **more}) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Fields:
        return self._answer()

    def _answer(self) -> Fields:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"node {self.node_id} ended; its own words are above")
        fields: Fields = json.loads(line)
        return fields

    def kill(self) -> None:
        """As kill -9 does it."""
        self._end(kill=True)

    def stop(self) -> None:
        self._end(kill=False)

    def _end(self, *, kill: bool) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        if kill:
            process.kill()
        process.stdin.close()  # the end of its orders: it stops
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


class Cluster:
    def __init__(self, directory: Path) -> None:
        ports = free_ports(len(NODES))
        self.members = {
            number: Member(number, port, directory / f"node-{number}")
            for number, port in zip(NODES, ports, strict=True)
        }

    def found(self) -> None:
        first, *others = self.members.values()
        first.start("--found")
        self.wait(lambda: first.ask("look")["nodes"] == 1, "the first node tells of itself")
        for member in others:
            member.start("--join", str(first.port))
        self.wait_whole()

    def wait_whole(self) -> None:
        """Everybody votes, has applied everything, and knows the same leader."""

        def is_whole() -> bool:
            views = [member.ask("look") for member in self.running]
            same = {(view["leader"], view["applied"], view["nodes"]) for view in views}
            return all(view["voters"] == list(NODES) and view["leader"] for view in views) and len(same) == 1

        self.wait(is_whole, "all nodes vote and agree")

    def wait(self, happened: Any, what: str) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not happened():
            if time.monotonic() > deadline:
                raise RuntimeError(f"waited {_PATIENCE_SECONDS:.0f} s in vain until {what}")
            time.sleep(0.05)

    @property
    def running(self) -> list[Member]:
        return [member for member in self.members.values() if member.is_running]

    def leader(self) -> Member:
        return self.members[int(self.running[0].ask("look")["leader"])]

    def followers(self) -> list[Member]:
        leading = self.leader()
        return [member for member in self.running if member is not leading]


@contextmanager
def open_cluster(directory: Path) -> Iterator[Cluster]:
    """Three nodes' directories and ports; whatever still runs at the end is stopped."""
    cluster = Cluster(directory)
    try:
        yield cluster
    finally:
        for member in cluster.running:
            member.stop()
