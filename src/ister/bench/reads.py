"""Reading: a topic from its start as frames, as Arrow batches and record by record, and single fetches.

The catch-up reads begin far behind the broker's hot tail, as a reader that was away does; the records are
still in the page cache, as what was just written is. The bare loop beside them reads as many bytes from a
file in the same pieces. A lone fetch is one request for one record: out of the hot tail, and out of a sealed
segment whose pages were dropped from the cache before each (where the broker is the bench's own).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

from ister.bench.figures import Fields, Repetition, milliseconds, percentile, rounded
from ister.bench.load import Phase, append_batches
from ister.bench.raw import now, raw_file, time_reads, time_writes
from ister.bench.session import Session
from ister.bench.workload import Workload
from ister.client.log import Log
from ister.names import normalise_topic
from ister.protocol.codec import encode_header
from ister.protocol.messages import Fetch, Kind

_FETCH_BYTES: Final = 1 << 20
"""What a reader asks for at a time when nobody says otherwise."""
_LONE_FETCHES: Final = 500
_RAW_CYCLE: Final = 1 << 22


async def measure_read(session: Session) -> Fields:
    work, log = session.work, session.log
    lone = replace(work, records=min(work.records, _LONE_FETCHES), batch=1)
    hot_s = await _fetch_hot(session, lone)
    disk_s, dropped = await _fetch_from_disk(session, lone)
    topic = await session.new_topic()
    written = await append_batches(log, [topic], work.batches(), work)
    frames: list[Repetition] = []
    arrow_s: list[float] = []
    records_s: list[float] = []
    with raw_file(session.target.directory) as file:
        time_writes(file, written.frame_bytes, _RAW_CYCLE)
        for _ in range(work.repeats):
            frames_s = await _read_frames(log, topic)
            raw_s = time_reads(file, written.frame_bytes, _FETCH_BYTES)
            frames.append(_repetition(written, frames_s, hot_s, raw_s))
            arrow_s.append(await _read_arrow(log, topic))
            records_s.append(await _read_records(log, topic))
    frames_mb = median(written.record_bytes / one.seconds for one in frames) / 1e6
    arrow_mb = median(written.record_bytes / seconds for seconds in arrow_s) / 1e6
    return {
        **(await session.report(frames)),
        # A program that reads sees records; the frames are in mb_per_s.
        "records_per_s": rounded(median(written.records / seconds for seconds in records_s)),
        "arrow_mb_per_s": rounded(arrow_mb),
        "arrow_ratio_to_frames": rounded(arrow_mb / frames_mb),
        "fetch_hot_p50_ms": milliseconds(hot_s)["p50_ms"],
        "fetch_disk_p50_ms": rounded(percentile(sorted(disk_s), 0.5) * 1000),
        "fetch_disk_cache": "dropped" if dropped else "kept",
    }


def _repetition(written: Phase, seconds: float, latencies: list[float], raw_s: float) -> Repetition:
    return Repetition(written.records, written.record_bytes, seconds, latencies, raw_s, _FETCH_BYTES)


# The whole topic.


async def _read_frames(log: Log, topic: str) -> float:
    began = now()
    async for _ in log.read(topic).frames():
        pass
    return now() - began


async def _read_arrow(log: Log, topic: str) -> float:
    async for _ in log.read(topic, end=1).batches():
        pass  # pyarrow is loaded before the clock starts
    began = now()
    async for _ in log.read(topic).batches():
        pass
    return now() - began


async def _read_records(log: Log, topic: str) -> float:
    began = now()
    async for _ in log.read(topic):
        pass
    return now() - began


# One record.


async def _fetch_hot(session: Session, lone: Workload) -> list[float]:
    topic = await session.new_topic()
    await append_batches(session.log, [topic], lone.batches(), lone)
    return await _fetch_each(session.log, topic, lone.records, lambda: None)


async def _fetch_from_disk(session: Session, lone: Workload) -> tuple[list[float], bool]:
    """The last of the records fills the segment; a sealed segment is only ever read from its file."""
    data = session.target.data_directory
    known = _segment_files(data)
    topic = await session.new_topic(segment_records=lone.records)
    await append_batches(session.log, [topic], lone.batches(), lone)
    await session.log.append(topic, [b""])  # answered by the next segment, so this one is sealed
    files = [os.open(path, os.O_RDONLY) for path in _segment_files(data) - known]
    try:

        def drop_pages() -> None:
            for file in files:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)

        return await _fetch_each(session.log, topic, lone.records, drop_pages), bool(files)
    finally:
        for file in files:
            os.close(file)


def _segment_files(data: Path | None) -> set[Path]:
    return {path for path in (data / "segments").rglob("*") if path.is_file()} if data is not None else set()


async def _fetch_each(log: Log, topic: str, count: int, before: Callable[[], None]) -> list[float]:
    name = normalise_topic(topic)
    seconds: list[float] = []
    for turn in range(count):
        # Far apart from one to the next: neighbours would be read ahead by the kernel.
        offset = turn * 7919 % count
        before()
        began = now()
        await log.requests.call("fetching", Kind.FETCH, encode_header(Fetch(name, offset, 1)), name)
        seconds.append(now() - began)
    return seconds
