"""Measure export and catch-up reads of the history, beside the store alone: python -m bench.history

All in one run, on one directory. The broker writes a topic without a store, and is started again with one, so
that all of it is exported at once; the time is that from the start of the process. Before and after it the
store alone writes objects of that size from memory, sync included; the faster one counts. Then the copies are
released, and the topic is read from its first record; beside it the store alone reads the same objects in the
same ranges. Both are done twice: out of the page cache, and after the kernel was told to forget it. A last
pair is the rate of appends without a store, and while what was written is exported.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import ister
from ister.bench.target import peak_rss_bytes, scratch_directory
from ister.history.reading import CHUNK_BYTES
from ister.io.file_store import FilesystemStore

_SERVE = "from ister.cli.main import main; main()"
_OPTIONS = ("--client-port", "0", "--admin-port", "-1", "--log-level", "warning", "--output", "json")
PIECE = bytes(range(256)) * 8192
"""2 MiB, as an export has them."""
SEGMENT = 256 << 20


@contextmanager
def broker(root: Path, *, has_store: bool) -> Iterator[tuple[str, int]]:
    settings = [f"segment_bytes={SEGMENT}", "export_after_ms=0", "segment_records=1000000000"]
    if has_store:
        settings += ["storage_mode=shared_fs", f"storage_url=file://{root}/history"]
    options = [option for setting in settings for option in ("--set", setting)]
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE, "serve", "--data-dir", str(root / "data"), *_OPTIONS, *options],
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
    """MB/s of records of 1 KiB in batches of 1,000, some in flight."""
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
            await asyncio.sleep(0.02)


async def raw_write(root: Path, name: str, size: int, count: int) -> float:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(size // len(PIECE)):
            yield PIECE

    store = FilesystemStore(root / name, "bench")
    began = time.perf_counter()
    for number in range(count):
        await store.put_if_absent(f"object-{number}", pieces())
    rate = count * size / (time.perf_counter() - began) / 1e6
    store.close()
    return rate


async def raw_read(root: Path, names: list[str]) -> float:
    store = FilesystemStore(root / "history", "bench")
    began, read = time.perf_counter(), 0
    for name in names:
        position = 0
        while data := await store.get(name, position, CHUNK_BYTES):
            position += len(data)
        read += position
    store.close()
    return read / (time.perf_counter() - began) / 1e6


def forget(root: Path, names: list[str]) -> None:
    """Have the kernel drop what it keeps of these objects in memory."""
    for name in names:
        fd = os.open(root / "history" / name, os.O_RDONLY)
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


async def main(size: int) -> None:
    with scratch_directory() as root:
        with broker(root, has_store=False) as (bootstrap, _):
            alone = await fill(bootstrap, "t", size)
        os.sync()  # what the broker wrote is not to be in the way
        raw = await raw_write(root, "before", SEGMENT, max(1, size // SEGMENT))
        began = time.perf_counter()
        with broker(root, has_store=True) as (bootstrap, pid):
            before = peak_rss_bytes(pid)
            total, names = await exported(bootstrap, "t")
            rate = total / (time.perf_counter() - began) / 1e6
            memory = peak_rss_bytes(pid) - before
            raw = max(raw, await raw_write(root, "after", SEGMENT, max(1, size // SEGMENT)))
            async with ister.connect(bootstrap) as log:
                await log.alter_topic("t", local_retention_ms=1)
            await exported(bootstrap, "t", released=True)
            warm = await raw_read(root, names), await catch_up(bootstrap, "t", total * 9 // 10)
            forget(root, names)
            cold_raw = await raw_read(root, names)
            forget(root, names)
            cold = cold_raw, await catch_up(bootstrap, "t", total * 9 // 10)
            beside = await fill(bootstrap, "u", size)
        print(
            json.dumps(
                {
                    "segments_mb": round(total / 1e6),
                    "store_write_mb_per_s": round(raw),
                    "export_mb_per_s": round(rate),
                    "export_ratio": round(rate / raw, 2),
                    "memory_grown_mb": round(memory / 1e6),
                    "store_read_mb_per_s": round(cold[0]),
                    "catch_up_mb_per_s": round(cold[1]),
                    "catch_up_ratio": round(cold[1] / cold[0], 2),
                    "store_read_cached_mb_per_s": round(warm[0]),
                    "catch_up_cached_mb_per_s": round(warm[1]),
                    "append_mb_per_s": round(alone),
                    "append_while_exporting_mb_per_s": round(beside),
                },
                indent=2,
            )
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=1024)
    asyncio.run(main(parser.parse_args().mib << 20))
