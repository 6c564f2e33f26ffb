"""What a task of a copy does: reads its share of the source and stages it for the target, frames as they are.

Frames go whole, their bodies untouched: a share has the frames that begin in it, so that none is cut where
two shares meet. Only at the ends of the whole copy, or where many small frames are worth joining, are records
taken out of their frames. What a task stages is decided by nobody but the driver's commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

import ister
from ister.columns import Flags
from ister.frame import Frame
from ister.spark.jobs.gaps import AllThere
from ister.spark.ranges import OffsetRange
from ister.spark.sink.staging import Staged, Stager, open_stager
from ister.spark.union import UnionFrames

if TYPE_CHECKING:
    import pyarrow as pa

LARGE_BYTES: Final = 64 * 1024
"""A frame of this size goes as it is."""
JOINED_BYTES: Final = 1024 * 1024
JOINED_RECORDS: Final = 10_000
_AT_A_TIME: Final = 32


@dataclass(frozen=True)
class Route:
    """From where to where."""

    source: str
    target: str
    """Bootstrap addresses; the target's is empty if nothing is to be staged."""
    stage: str
    topic: str
    first: int
    end: int
    """The ends of the whole copy: frames that reach beyond them are cut."""
    checksums: bool


@dataclass(frozen=True)
class Part:
    """What became of one share."""

    start: int
    end: int
    """The offsets asked for."""
    reached: int
    """Behind the last record that was staged."""
    records: int
    size: int
    digest: str
    """Of the records asked for; empty if nobody asked for it."""
    staged: Staged | None


class _Whole(AllThere):
    hint = "Nothing was copied of this batch: a copy has all records or none. Choose a range that is there."


def copy_share(route: Route, wanted: OffsetRange) -> Part:
    return asyncio.run(_copy(route, wanted))


async def _copy(route: Route, wanted: OffsetRange) -> Part:
    if not route.target:
        return await _stage(route, wanted, None)
    async with ister.connect(route.target) as log:
        stager = await open_stager(log, route.stage)
        try:
            return await _stage(route, wanted, stager)
        finally:
            stager.close()


async def _stage(route: Route, wanted: OffsetRange, stager: Stager | None) -> Part:
    reached, records, size = wanted.start, 0, 0
    checksum = _Checksum(wanted) if route.checksums else None
    async with aclosing(_frames(route.source, wanted)) as source:
        async for taken in source:
            if checksum is not None:
                checksum.add(taken)
            own = [frame for frame in taken if _is_own(frame, wanted, route)]
            for together in joined(own, route.first, route.end):
                low = max(together[0].header.base_offset, route.first)
                reached = min(together[-1].header.end_offset, route.end)
                records += reached - low
                size += sum(frame.header.size for frame in together)
                if stager is not None:
                    await _put(stager, route, together)
    staged = None if stager is None else await stager.finish()
    digest = "" if checksum is None else checksum.hexdigest()
    return Part(wanted.start, wanted.end, reached, records, size, digest, staged)


async def _frames(bootstrap: str, wanted: OffsetRange) -> AsyncGenerator[list[Frame], None]:
    """Some at a time, read in one thread of their own: meanwhile answers of the target must not wait, and a
    log that works in turns is for one thread and none that has a loop."""
    loop, store = asyncio.get_running_loop(), UnionFrames(bootstrap)
    with ThreadPoolExecutor(1, thread_name_prefix="ister-source") as thread:
        await loop.run_in_executor(thread, store.__enter__)
        try:
            frames = store.frames(wanted, _Whole())
            while taken := await loop.run_in_executor(thread, lambda: list(islice(frames, _AT_A_TIME))):
                yield taken
        finally:
            await loop.run_in_executor(thread, store.__exit__, None, None, None)


def _is_own(frame: Frame, wanted: OffsetRange, route: Route) -> bool:
    """A frame that begins in an earlier share is that one's, unless there is none."""
    return frame.header.base_offset >= wanted.start or wanted.start == route.first


def joined(frames: Iterable[Frame], first: int, end: int) -> Iterator[list[Frame]]:
    """Each large frame by itself; small neighbours together, if all or none have times of their own."""
    gathered: list[Frame] = []
    for frame in frames:
        if gathered and not _may_join(gathered, frame):
            yield gathered
            gathered = []
        gathered.append(frame)
    if gathered:
        yield gathered


def _may_join(gathered: list[Frame], frame: Frame) -> bool:
    last = gathered[-1].header
    return (
        frame.header.size < LARGE_BYTES
        and last.size < LARGE_BYTES
        and last.flags & Flags.TIMES == frame.header.flags & Flags.TIMES
        and sum(one.header.size for one in gathered) + frame.header.size <= JOINED_BYTES
        and sum(one.header.count for one in gathered) + frame.header.count <= JOINED_RECORDS
    )


async def _put(stager: Stager, route: Route, frames: list[Frame]) -> None:
    header = frames[0].header
    is_whole = header.base_offset >= route.first and header.end_offset <= route.end
    if len(frames) == 1 and is_whole:
        await stager.put_frame(route.topic, frames[0])
    else:
        await stager.put_rows(route.topic, _rows(frames, route.first, route.end))


def _rows(frames: list[Frame], first: int, end: int) -> pa.RecordBatch:
    """The records between, without the time of the append where the producer gave none."""
    from ister.arrow import to_record_batch

    columns = ["key", "value", "headers"]
    if frames[0].header.flags & Flags.TIMES:
        columns.append("timestamp")
    return to_record_batch(frames, columns=columns, first_offset=first, end_offset=end)


class _Checksum:
    def __init__(self, wanted: OffsetRange) -> None:
        from ister.spark.jobs.copying.contents import ContentHash

        self._wanted = wanted
        self._hash = ContentHash()

    def add(self, frames: list[Frame]) -> None:
        from ister.arrow import to_record_batch

        wanted = self._wanted
        columns = ["offset", "timestamp", "key", "value", "headers"]
        self._hash.add(
            to_record_batch(frames, columns=columns, first_offset=wanted.start, end_offset=wanted.end)
        )

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
