"""From a stage to a target: whole frames, read ahead while others are appended, none of them decoded.

Memory is bounded by `_AHEAD` runs that were fetched and by what `Sending` lets wait for its answers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Final, NamedTuple

from ister.client.log import Log
from ister.errors import OffsetOutOfRange, RecordsLost, StagedRecordsGone, UnknownTopic
from ister.frame import DEFAULT_LIMIT, Frame
from ister.spark.sink.records import Manifest, Run

_AHEAD: Final = 3


class Copied(NamedTuple):
    """A frame, and the number of its first record within its batch's records for the target."""

    record: int
    frame: Frame


async def staged_frames(log: Log, manifest: Manifest, target: int, start: int = 0) -> AsyncIterator[Copied]:
    """The frames of a manifest for one target, in order, from the one that begins with record `start` on."""
    runs = deque(_runs_from(manifest, target, start))
    fetching: deque[tuple[int, asyncio.Task[list[Frame]]]] = deque()
    try:
        while runs or fetching:
            while runs and len(fetching) < _AHEAD:
                record, run = runs.popleft()
                fetching.append((record, asyncio.create_task(_fetch(log, manifest, run))))
            record, task = fetching[0]
            frames = await task
            fetching.popleft()
            for frame in frames:
                if record >= start:
                    yield Copied(record, frame)
                record += frame.header.count
    finally:
        for _, task in fetching:
            task.cancel()


def _runs_from(manifest: Manifest, target: int, start: int) -> Iterable[tuple[int, Run]]:
    record = 0
    for run in manifest.runs:
        if run.target == target:
            if record + run.count > start:
                yield record, run
            record += run.count


async def _fetch(log: Log, manifest: Manifest, run: Run) -> list[Frame]:
    what = f"offsets {run.start} to {run.end - 1} of {manifest.stage}, staged for batch {manifest.batch},"
    asked = min(max(run.size, 1), DEFAULT_LIMIT)
    try:
        reader = log.read(
            manifest.stage, start=run.start, end=run.end, max_bytes=asked, uid=manifest.stage_uid
        )
        frames = [frame async for frame in reader.frames()]
    except (OffsetOutOfRange, RecordsLost, UnknownTopic) as error:
        raise StagedRecordsGone(f"{what} are not there: {error.message}") from error
    if not frames or (frames[0].header.base_offset, frames[-1].header.end_offset) != (run.start, run.end):
        raise StagedRecordsGone(f"{what} are not there as they were staged")
    if any(frame.header.producer_id != run.producer_id for frame in frames):
        raise StagedRecordsGone(f"{what} are somebody else's: the topic was deleted and made again")
    return frames
