"""What the adapters share: a server process of their own, pipelined sockets, the same fields.

A peer is given the same job: records of the same size, acknowledged after a sync where it can do that, as
many batches in flight as with `ister bench append`, and one record at a time as with `ister bench latency`.
Batches in flight have a connection each: Redis is twice as fast that way. How often a peer syncs is its
own affair and cannot be seen from outside, so its raw limit is the bare loop with all that is in flight in
one cycle: the best that any server could do with what this client sends.
"""

from __future__ import annotations

import selectors
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from ister.bench.figures import Fields, Repetition, summarise
from ister.bench.raw import now, raw_file, time_writes
from ister.bench.target import peak_rss_bytes
from ister.bench.workload import Workload

START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 30


@dataclass(frozen=True)
class Missing:
    """A peer that is not here, and how to get it."""

    how: str


@dataclass(frozen=True)
class Found:
    version: str
    how: str
    """How it was set up for this run."""
    synced: bool = True
    """Whether an acknowledgement means that the record is on the disk."""


class Peer(Protocol):
    name: str

    def find(self) -> Found | Missing: ...

    def run(self, work: Workload, lone: Workload, directory: Path) -> dict[str, Fields]:
        """The fields of `append` and `latency`, and of more where the peer has weaker modes."""
        ...


LARGE_BYTES: Final = 1024
_LARGE_PART: Final = 5


def large_work(work: Workload) -> Workload:
    """Records of 1 KiB: a fifth as many, which are twice as many bytes."""
    records = max(work.records // _LARGE_PART, work.batch_records)
    return replace(work, size=LARGE_BYTES, records=records)


def find_program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server(command: Sequence[str], directory: Path, port: int, *, wait: bool = True) -> Iterator[int]:
    """A server that takes connections on `port`, or soon will; yields its process id, stops it at the end."""
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
    try:
        if wait:
            _wait_for(process, port, directory)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(process: subprocess.Popen[bytes], port: int, directory: Path) -> None:
    deadline = now() + START_SECONDS
    while now() < deadline:
        if process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
    said = (directory / "server.log").read_text(errors="replace")[-1000:]
    raise RuntimeError(f"{process.args!r} takes no connections on port {port}: {said}")


class Line:
    """One connection; an answer is known by a marker of a few bytes.

    Counting the markers in what was received is all that the client does, so that it costs the peer
    as little of the machine as possible.
    """

    def __init__(self, port: int, marker: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), START_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request = b""
        """What it sends over and over."""
        self.sent_at = 0.0
        self._counted = 0
        self._marker = marker
        self._rest = b""

    def send(self) -> None:
        self._counted, self._rest = 0, b""
        self.sent_at = now()
        self.socket.sendall(self.request)

    def await_text(self, text: bytes) -> bytes:
        """Read until `text` has come; for greetings."""
        got = b""
        while text not in got:
            got += self._receive()
        return got

    def count_answers(self) -> int:
        """Take in what has come; how many answers to the last request there are by now."""
        data = self._rest + self._receive()
        keep = len(self._marker) - 1
        self._rest = data[-keep:] if keep else b""
        self._counted += data.count(self._marker)
        return self._counted

    def _receive(self) -> bytes:
        data = self.socket.recv(1 << 18)
        if not data:
            raise RuntimeError("the peer closed the connection")
        return data


def exchange(lines: Sequence[Line], answers: int, times: int) -> list[float]:
    """Send so many requests, one at a time on each line, each answered by so many markers."""
    latencies: list[float] = []
    with selectors.DefaultSelector() as selector:
        for line in lines[:times]:
            selector.register(line.socket, selectors.EVENT_READ, line)
            line.send()
        unsent = times - len(lines[:times])
        while len(latencies) < times:
            for key, _ in selector.select(START_SECONDS):
                line = key.data
                if line.count_answers() >= answers:
                    latencies.append(now() - line.sent_at)
                    if unsent:
                        unsent -= 1
                        line.send()
    return latencies


def measure_lines(lines: Sequence[Line], work: Workload, directory: Path, process_id: int) -> Fields:
    """One to warm up, then repetitions with the bare loop beside each; a batch in flight on each line."""
    repetitions: list[Repetition] = []
    exchange(lines, work.batch_records, work.batch_count)
    for _ in range(work.repeats):
        began = now()
        latencies = exchange(lines, work.batch_records, work.batch_count)
        repetitions.append(beside_raw(work, now() - began, latencies, directory))
    return summarise(repetitions, peak_rss_bytes(process_id))


def beside_raw(work: Workload, seconds: float, latencies: list[float], directory: Path) -> Repetition:
    record_bytes = work.total_records * work.size
    cycle = work.batch_records * work.size * min(work.in_flight, work.batch_count)
    with raw_file(directory) as file:
        raw_seconds = sum(time_writes(file, record_bytes, cycle))
    return Repetition(work.total_records, record_bytes, seconds, latencies, raw_seconds, cycle)
