"""Measure export and catch-up reads of the history, each beside the store alone: python -m bench.history

Every figure is taken several times, and each time the store alone does the same right before it, so that a
disk which changes its mind shows in the spread and not in the ratio. Told are the medians, and the least and
the most of the ratios.

- `export`: a broker without a store writes a topic, and is started again with one: all of it is exported at
  once, from when the broker is ready until the last descriptor is published. That is written, synced, and
  read back. Beside it the store alone takes as many bytes from memory, and syncs them.
- `catch_up`, `catch_up_cached`: the copies are released, and the topic is read from its first record, after
  the kernel was told to forget the objects, and again. Beside it the same ranges are read from the store.
- `append`, `append_limited`: records are written while what was sealed before is exported to the same disk,
  beside the same without a store; the export gives way by itself, and has `export_bytes_per_second` besides.
- `memory_grown_mb`: how much the broker's peak grew while it exported.

With `--store s3` the store is SeaweedFS on loopback; nothing can be forgotten there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import ister
from ister.bench.target import peak_rss_bytes, scratch_directory
from ister.history.reading import CHUNK_BYTES
from ister.io.object_store import ObjectStore
from ister.io.stores import open_store

_SERVE = "from ister.cli.main import main; main()"
_OPTIONS = ("--client-port", "0", "--admin-port", "-1", "--log-level", "warning", "--output", "json")
PIECE = bytes(range(256)) * 8192
"""2 MiB, as an export has them."""
SEGMENT = 64 << 20
LEAST = 4 * SEGMENT
REPEATS = 3
LIMIT = 16 << 20
"""Bytes a second of an export that is not to be in anybody's way."""
_LOOK_SECONDS = 0.02


class Place(NamedTuple):
    """Where the history is, and the environment that it takes."""

    mode: str
    url: str
    environment: dict[str, str]

    @property
    def directory(self) -> Path | None:
        return Path(self.url.removeprefix("file://")) if self.mode == "shared_fs" else None


@contextmanager
def broker(data: Path, place: Place | None, *given: str) -> Iterator[tuple[str, int]]:
    settings = [*given]
    settings += [f"segment_bytes={SEGMENT}", "export_after_ms=0", "segment_records=1000000000"]
    if place is not None:
        settings += [f"storage_mode={place.mode}", f"storage_url={place.url}"]
    options = [option for setting in settings for option in ("--set", setting)]
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE, "serve", "--data-dir", str(data), *_OPTIONS, *options],
        stdout=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if not name.startswith("ISTER_")},
    )
    assert process.stdout is not None
    try:
        ready = json.loads(process.stdout.readline())
        yield f"127.0.0.1:{ready['client_port']}", process.pid
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


async def fill(bootstrap: str, topic: str, size: int) -> float:
    """MB/s of records of 1 KiB in batches of 1,000, eight in flight."""
    values = [os.urandom(1024) for _ in range(1000)]
    async with ister.connect(bootstrap) as log:
        await log.append(topic, values)
        began, sent = time.perf_counter(), 0
        while sent < size:
            await asyncio.gather(*(log.append(topic, values) for _ in range(8)))
            sent += 8 * 1024 * 1000
        return sent / (time.perf_counter() - began) / 1e6


async def exported(bootstrap: str, topic: str, *, released: bool = False) -> tuple[int, list[str]]:
    """Wait until all that is sealed is in the history; its bytes and its objects."""
    async with ister.connect(bootstrap) as log:
        while True:
            entries = [e for e in (await log.history(topic)).entries if e.state not in ("open", "empty")]
            if all(e.state == "published" and not (released and e.replicas) for e in entries):
                return sum(e.size for e in entries), [e.name for e in entries]
            await asyncio.sleep(_LOOK_SECONDS)


async def raw_write(store: ObjectStore, name: str, size: int) -> float:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(SEGMENT // len(PIECE)):
            yield PIECE

    began, count = time.perf_counter(), max(1, size // SEGMENT)
    for number in range(count):
        await store.put_if_absent(f"{name}/{number}", pieces())
    rate = count * SEGMENT / (time.perf_counter() - began) / 1e6
    for number in range(count):
        await store.delete(f"{name}/{number}")
    return rate


async def raw_read(store: ObjectStore, names: list[str]) -> float:
    began, read = time.perf_counter(), 0
    for name in names:
        position = 0
        while data := await store.get(name, position, CHUNK_BYTES):
            position += len(data)
        read += position
    return read / (time.perf_counter() - began) / 1e6


def forget(place: Place, names: list[str]) -> None:
    """Have the kernel drop what it keeps of these objects in memory."""
    if place.directory is not None:
        for name in names:
            fd = os.open(place.directory / name, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


async def catch_up(bootstrap: str, topic: str, size: int) -> float:
    async with ister.connect(bootstrap) as log:
        began, read = time.perf_counter(), 0
        async for frame in log.read(topic, max_bytes=4 << 20).frames():
            read += frame.header.size
            if read >= size:
                break
        return read / (time.perf_counter() - began) / 1e6


Pair = tuple[float, float]
"""Of the store alone (or the broker without one), and of what is measured."""


async def one_turn(root: Path, place: Place, store: ObjectStore, size: int) -> dict[str, Pair]:
    """Everything once; the broker's data goes afterwards."""
    data, found = root / "data", {}
    with broker(data, None) as (bootstrap, _):
        await fill(bootstrap, "t", size)
    os.sync()  # what the broker wrote is not to be in the way
    raw = await raw_write(store, "alone", size)
    with broker(data, place) as (bootstrap, pid):
        began, before = time.perf_counter(), peak_rss_bytes(pid)
        total, names = await exported(bootstrap, "t")
        found["export"] = raw, total / (time.perf_counter() - began) / 1e6
        found["memory_grown_mb"] = 0.0, (peak_rss_bytes(pid) - before) / 1e6
        async with ister.connect(bootstrap) as log:
            await log.alter_topic("t", local_retention_ms=1)
        await exported(bootstrap, "t", released=True)
        forget(place, names)
        cold = await raw_read(store, names)
        forget(place, names)
        found["catch_up"] = cold, await catch_up(bootstrap, "t", total * 9 // 10)
        cached = await raw_read(store, names)
        found["catch_up_cached"] = cached, await catch_up(bootstrap, "t", total * 9 // 10)
    with broker(root / "alone", None) as (bootstrap, _):
        alone = await fill(bootstrap, "u", size)
    os.sync()
    with broker(data, place) as (bootstrap, _):
        found["append"] = alone, await fill(bootstrap, "u", size)
    os.sync()
    with broker(root / "alone", None) as (bootstrap, _):
        alone = await fill(bootstrap, "v", size)
    os.sync()
    with broker(data, place, f"export_bytes_per_second={LIMIT}") as (bootstrap, _):
        found["append_limited"] = alone, await fill(bootstrap, "v", size)
    shutil.rmtree(data)
    shutil.rmtree(root / "alone")
    return found


def told(turns: list[dict[str, Pair]]) -> dict[str, Any]:
    result: dict[str, Any] = {"repeats": len(turns)}
    for name in ("export", "catch_up", "catch_up_cached", "append", "append_limited"):
        ratios = [turn[name][1] / turn[name][0] for turn in turns]
        result[name] = {
            "alone_mb_per_s": round(median(turn[name][0] for turn in turns)),
            "mb_per_s": round(median(turn[name][1] for turn in turns)),
            "ratio": round(median(ratios), 2),
            "ratio_least": round(min(ratios), 2),
            "ratio_most": round(max(ratios), 2),
        }
    result["memory_grown_mb"] = round(max(turn["memory_grown_mb"][1] for turn in turns))
    return result


async def measure(root: Path, place: Place, size: int, repeats: int, say: Callable[[str], None]) -> Any:
    store = open_store(place.mode, place.url, "bench")
    assert store is not None
    turns = []
    try:
        for number in range(repeats):
            turns.append(await one_turn(root, place, store, size))
            say(f"{number + 1} of {repeats}: {turns[-1]}")
    finally:
        store.close()
    return {"store": place.mode, "mib": size >> 20, **told(turns)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.history", description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--store", choices=["files", "s3"], default="files")
    given = parser.parse_args()
    with ExitStack() as stack:
        root = stack.enter_context(scratch_directory())
        place = Place("shared_fs", f"file://{root}/history", {})
        if given.store == "s3":
            from tests.io.weed import BUCKET, s3_server

            environment = stack.enter_context(s3_server(root / "s3"))
            os.environ.update(environment)
            place = Place("object_store", f"s3://{BUCKET}/bench", environment)

        def say(text: str) -> None:
            print(text, file=sys.stderr, flush=True)

        size = max(given.mib << 20, LEAST)
        print(json.dumps(asyncio.run(measure(root, place, size, given.repeats, say)), indent=2))


if __name__ == "__main__":
    main()
