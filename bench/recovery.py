"""How long a broker takes to come back: `python -m bench.recovery [--gib 10]`, printed as one JSON object.

A topic is filled through the real client, in segments of the default size; the broker is killed with -9 as
soon as so much is acknowledged, and started again on the same directory. Measured is the time from the start
of the process until it says that it is ready, and from then to a record read at the start and at the end of
the topic, each by a new client. With `--cold` the files' pages are dropped from the page cache before the
start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import ister
from bench.cluster.nodes import NodeProcess, free_ports
from ister.bench.target import peak_rss_bytes, scratch_directory

GIB: Final = 1 << 30
RECORD_BYTES: Final = 1024
BATCH: Final = 1000
IN_FLIGHT: Final = 8
TOPIC: Final = "recovery"


async def fill(address: str, total_bytes: int) -> int:
    """Append that much, and leave while more is on its way; returns how many records were acknowledged."""
    values = [os.urandom(RECORD_BYTES)] * BATCH
    async with ister.connect(address) as log:
        acknowledged = 0
        waiting = {asyncio.create_task(log.append(TOPIC, values)) for _ in range(IN_FLIGHT)}
        while acknowledged * RECORD_BYTES < total_bytes:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                acknowledged = max(acknowledged, task.result().base_offset + BATCH)
                waiting.add(asyncio.create_task(log.append(TOPIC, values)))
        for task in waiting:
            task.cancel()
    return acknowledged


async def first_record(address: str, **where: Any) -> int:
    async with ister.connect(address) as log:
        async for record in log.read(TOPIC, **where):
            return record.offset
    raise AssertionError(f"nothing was read ({where})")


def drop_pages(directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(directory: Path, total_bytes: int, *, cold: bool) -> dict[str, Any]:
    node = NodeProcess(directory, free_ports(1)[0], ["--log-level", "warning"])
    node.start()
    try:
        acknowledged = asyncio.run(fill(node.address, total_bytes))
        node.kill()
        files = [path for path in (directory / "data").rglob("*.log") if path.parent.name != "raft"]
        size = sum(path.stat().st_size for path in files)
        if cold:
            drop_pages(directory / "data")
        began = time.perf_counter()
        node.start()
        ready = time.perf_counter()
        first = asyncio.run(first_record(node.address))
        read = time.perf_counter()
        last = asyncio.run(first_record(node.address, last=1))
        ended = time.perf_counter()
        assert first == 0 and last >= acknowledged - 1, (first, last, acknowledged)
        return {
            "gib": round(size / GIB, 2),
            "segments": len(files),
            "acknowledged_records": acknowledged,
            "start_s": round(ready - began, 3),
            "first_read_s": round(read - ready, 3),
            "last_read_s": round(ended - read, 3),
            "cold": cold,
            "rss_mb": round(peak_rss_bytes(node.process_id) / 1e6, 1),
        }
    finally:
        node.kill()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.recovery", description=__doc__)
    parser.add_argument("--gib", type=float, default=10.0)
    parser.add_argument("--cold", action="store_true", help="drop the page cache of the files first")
    options = parser.parse_args(arguments)
    with scratch_directory() as directory:
        print(json.dumps(measure(directory, int(options.gib * GIB), cold=options.cold)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
