"""Redis Streams: XADD with `appendfsync always`, pipelined and alone.

Spoken to in its own protocol over a socket; no client library is needed. An answer to XADD is one bulk string
with the entry's id, digits and a dash, so every `$` received is one acknowledgement.
"""

from __future__ import annotations

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

SETTINGS = (
    *("--appendonly", "yes", "--appendfsync", "always"),
    *("--save", "", "--auto-aof-rewrite-percentage", "0"),
)


class Redis:
    name = "redis"

    def find(self) -> Found | Missing:
        program = find_program("redis-server")
        if program is None:
            return Missing("apt-get install redis-server")
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
        version = next(word[2:] for word in said.split() if word.startswith("v="))
        return Found(version, "appendfsync always")

    def run(self, work: Workload, lone: Workload, directory: Path) -> dict[str, Fields]:
        program, port = find_program("redis-server"), free_port()
        assert program is not None
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), *SETTINGS]
        results: dict[str, Fields] = {}
        with server(command, directory, port) as process_id:
            for mode, asked in (("append", work), ("append_1k", large_work(work)), ("latency", lone)):
                lines = [Line(port, b"$") for _ in range(asked.in_flight)]
                for line in lines:
                    line.request = add_records(asked.batch_records, asked.size)
                results[mode] = measure_lines(lines, asked, directory, process_id)
        return results


def add_records(count: int, size: int) -> bytes:
    """One XADD for each record, end to end."""
    return b"".join(
        b"*5\r\n$4\r\nXADD\r\n$5\r\nbench\r\n$1\r\n*\r\n$1\r\nv\r\n$%d\r\n%b\r\n" % (size, value)
        for value in records_like(0, count, size)
    )
