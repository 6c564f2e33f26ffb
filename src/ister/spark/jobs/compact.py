"""`compact`: the many small objects of a topic's history become few large ones.

The driver plans runs of neighbouring segments, executors copy each into one object, verify it and read it
back (`ister.history.merging`), and the driver has their descriptors replaced, run by run, as they come. No
record passes the driver, nor a broker.

What can fail, and what happens then: a job that dies leaves objects that nobody names, which the next run
adopts or the sweeper deletes, and uploads cut short, which a task of any job removes an hour later; what it
had replaced stays replaced. Of two jobs at once, the one that comes
second with a run is refused, and says so. Segments that are trimmed meanwhile leave their run as it was, for
the next job. An object that is damaged or missing leaves its run as it was, and is named; nothing of it is
copied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from ister import sync
from ister.errors import BadRequest, CorruptSegment, RequestTimeout, StoreUnavailable
from ister.history.merging import Merge, merge, plan_merges
from ister.history.names import ObjectName
from ister.io.clock import monotonic
from ister.io.stores import open_for_reading
from ister.names import normalise_topic
from ister.spark.jobs.running import Stop, parallelism, run_tasks
from ister.spark.jobs.watching import Unwatched, Watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OBJECT_BYTES: Final = 512 * 1024 * 1024
"""What a merged object has at most, unless it is said."""
PATIENCE_S: Final = 60.0
"""So long a store may not answer before a job gives up."""

LEFT_BEHIND_S: Final = 3600.0
"""An upload that nobody has written to for so long is of a task that was killed."""
_OWNER: Final = "compact"
"""Of the uploads of all tasks of all jobs: whichever comes next sweeps what was left behind."""


class MergedObject(NamedTuple):
    name: str
    start_offset: int
    end_offset: int
    segments: int
    size: int


class Left(NamedTuple):
    """A run that stays as it was."""

    start_offset: int
    end_offset: int
    why: str
    damaged: bool


@dataclass
class Compacted:
    """What a compaction did."""

    topic: str
    objects: int
    """That its segments were in before."""
    merged: list[MergedObject] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    replaced: int = 0
    """Objects whose place the merged ones have taken."""
    seconds: float = 0.0
    is_complete: bool = True
    """False if it was stopped before the end."""

    @property
    def bytes(self) -> int:
        return sum(one.size for one in self.merged)


def compact(
    spark: SparkSession,
    topic: str,
    *,
    object_bytes: int = OBJECT_BYTES,
    bootstrap: str = "127.0.0.1:9091",
    watch: Watch | None = None,
    stop: Stop | None = None,
) -> Compacted:
    """Merge objects until each has half of `object_bytes`, and none more than that. Records stay where they
    are, with their offsets; readers notice nothing."""
    began = monotonic()
    watch, stop = watch or Unwatched(), stop or Stop()
    with sync.connect(bootstrap) as log:
        listed = log.history(normalise_topic(topic))
        if not listed.location:
            raise BadRequest(
                f"{listed.topic} has no history, and nothing to compact: storage_mode is local",
                hint="A history in a directory or a bucket is a setting of the brokers: storage_mode.",
            )
        merges = list(plan_merges(listed, log.cluster_id, object_bytes))
        done = Compacted(listed.topic, len({entry.name for entry in listed.entries if entry.name}))
        watch.begins(f"compact {listed.topic}", 0, sum(one.size for one in merges))
        try:
            _run(spark, log, listed.location, merges, done, watch, stop)
        finally:
            watch.ends()
    done.merged.sort(key=lambda one: one.start_offset)
    done.is_complete = not stop.is_asked
    done.seconds = monotonic() - began
    return done


def _run(
    spark: SparkSession,
    log: sync.Log,
    store: str,
    merges: Sequence[Merge],
    done: Compacted,
    watch: Watch,
    stop: Stop,
) -> None:
    if not merges:
        return
    at_once = min(parallelism(spark), len(merges))
    for number, made in run_tasks(spark, partial(merge_in, store), merges, at_once=at_once, stop=stop):
        wanted = merges[number]
        start, end = wanted.parts[0].start_offset, wanted.parts[-1].end_offset
        if isinstance(made, ObjectName):
            told = log.merge_objects(done.topic, made.topic_uid, made.attempt, wanted.replaced())
            left = Left(start, end, told.problem, damaged=False) if told.problem else None
        else:
            left = Left(start, end, made, damaged=True)
        if left is None:
            done.merged.append(MergedObject(str(made), start, end, len(wanted.parts), wanted.size))
            done.replaced += wanted.objects
        else:
            done.left.append(left)
            watch.tells(f"offsets {start:,} to {end - 1:,} of {done.topic} stay as they were: {left.why}")
        watch.advances(0, wanted.size)


def merge_in(url: str, wanted: Merge) -> ObjectName | str:
    """A task: the object, verified, in the store; or which part of it is damaged."""
    return asyncio.run(_merge_in(url, wanted))


async def _merge_in(url: str, wanted: Merge) -> ObjectName | str:
    store = open_for_reading(url, _OWNER)
    give_up_at, pause = monotonic() + PATIENCE_S, 0.1
    try:
        while True:
            try:
                await store.sweep_unfinished(LEFT_BEHIND_S)
                return await merge(store, wanted)
            except CorruptSegment as error:
                return error.message
            except (StoreUnavailable, RequestTimeout):
                if monotonic() + pause > give_up_at:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, 5.0)
    finally:
        store.close()
