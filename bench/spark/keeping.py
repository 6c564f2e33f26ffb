"""A broker that keeps a history in a directory, and topics all of whose segments are in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import ister
from bench.cluster.nodes import NodeProcess, free_ports
from ister import sync
from ister.client.log import Log

EXPORT_SECONDS: Final = 900


@contextmanager
def keeping_broker(directory: Path) -> Iterator[NodeProcess]:
    kept = directory / "history"
    kept.mkdir()
    settings = {"storage_mode": "shared_fs", "storage_url": kept.as_uri()}
    options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    node = NodeProcess(directory / "broker", free_ports(1)[0], ["--log-level", "warning", *options])
    node.start()
    try:
        yield node
    finally:
        node.kill()


def wait_until_kept(bootstrap: str, topic: str) -> int:
    """All that it has is in the history; of how many segments."""
    deadline = time.monotonic() + EXPORT_SECONDS
    with sync.connect(bootstrap) as log:
        while True:
            states = [entry.state for entry in log.history(topic).entries]
            if states and all(state in ("published", "open", "empty") for state in states):
                return states.count("published")
            if time.monotonic() > deadline:
                raise SystemExit(f"{topic} was not exported within {EXPORT_SECONDS} s: {states}")
            time.sleep(0.2)


def append_all(
    bootstrap: str, in_flight: int, appends: Callable[[Log], AsyncIterator[Callable[[], Awaitable[object]]]]
) -> None:
    """So many at a time, each begun in its turn."""

    async def run() -> None:
        room = asyncio.Semaphore(in_flight)

        async def one(append: Callable[[], Awaitable[object]]) -> None:
            try:
                await append()
            finally:
                room.release()

        async with ister.connect(bootstrap) as log, asyncio.TaskGroup() as group:
            async for append in appends(log):
                await room.acquire()
                group.create_task(one(append))

    asyncio.run(run())
