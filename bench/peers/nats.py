"""NATS JetStream: publishing to a stream on file storage, each message acknowledged.

Spoken to in its own protocol over a socket. The acknowledgement of a publish is a message to its reply
subject, so every `MSG ` received is one. Before 2.10 the server has no `sync_interval: always`: a message
is then acknowledged before it is synced, and the result says so.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from bench.peers.peer import (
    Found,
    Line,
    Missing,
    find_program,
    free_port,
    large_work,
    measure_lines,
    server,
)
from ister.bench.figures import Fields
from ister.bench.workload import Workload, records_like

ALWAYS_FROM = (2, 10)
STREAM = {"name": "bench", "subjects": ["bench"], "storage": "file", "retention": "limits", "num_replicas": 1}


class Nats:
    name = "nats"

    def find(self) -> Found | Missing:
        program = find_program("nats-server")
        if program is None:
            return Missing("apt-get install nats-server")
        version = server_version(program)
        synced = syncs_always(version)
        how = "synced, then acknowledged" if synced else "acknowledged before it is synced"
        return Found(version, f"file storage, {how}", synced)

    def run(self, work: Workload, lone: Workload, directory: Path) -> dict[str, Fields]:
        program, port = find_program("nats-server"), free_port()
        assert program is not None
        config = directory / "nats.conf"
        always = ", sync_interval: always" if syncs_always(server_version(program)) else ""
        store = json.dumps(str(directory / "store"))
        config.write_text(
            f"listen: 127.0.0.1:{port}\njetstream {{ store_dir: {store}{always} }}\nmax_pending: 256MB\n"
        )
        results: dict[str, Fields] = {}
        with server([program, "-c", str(config)], directory, port) as process_id:
            make_stream(Line(port, b""))
            for mode, asked in (("append", work), ("append_1k", large_work(work)), ("latency", lone)):
                lines = [connect(port, f"acks.{mode}.{number}", asked) for number in range(asked.in_flight)]
                results[mode] = measure_lines(lines, asked, directory, process_id)
        return results


def server_version(program: str) -> str:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return said.split("v")[-1].strip()


def syncs_always(version: str) -> bool:
    major, minor = version.split(".")[:2]
    return (int(major), int(minor)) >= ALWAYS_FROM


def connect(port: int, acks: str, work: Workload) -> Line:
    """Greeted, and subscribed to the acknowledgements of what it will publish."""
    line = Line(port, b"MSG ")
    greet(line, acks)
    line.request = publish_records(work.batch_records, work.size, acks)
    return line


def greet(line: Line, subject: str) -> None:
    line.await_text(b"INFO ")
    options = {"verbose": False, "pedantic": False, "lang": "python", "version": "0", "protocol": 1}
    line.socket.sendall(b"CONNECT %b\r\nSUB %b 1\r\nPING\r\n" % (as_json(options), subject.encode()))
    line.await_text(b"PONG\r\n")


def make_stream(line: Line) -> None:
    greet(line, "made")
    stream = as_json(STREAM)
    line.socket.sendall(b"PUB $JS.API.STREAM.CREATE.bench made %d\r\n%b\r\n" % (len(stream), stream))
    answer = line.await_text(b"}\r\n")
    if b'"error"' in answer:
        raise RuntimeError(f"JetStream made no stream: {answer.decode(errors='replace')}")


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


def publish_records(count: int, size: int, acks: str) -> bytes:
    return b"".join(
        b"PUB bench %b %d\r\n%b\r\n" % (acks.encode(), size, value) for value in records_like(0, count, size)
    )
