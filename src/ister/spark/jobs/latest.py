"""`compact --latest-by-key`: each key's latest record of a topic, in another topic, which is kept up to date.

A run takes the records that are new since the last one. Spark finds each key's latest among them, tasks stage
these in the order of their offsets, and the driver commits them through the sink's ledger, which says in the
same entry how far the source was read. So records and progress can't part: a run that dies anywhere, or two
at once, lose and repeat nothing (internals/spark-sink.md). The ledger is named by the uids of both topics:
one that was made again is another (I3). A target with records and no such ledger is refused: nothing would
ever delete the keys that they have.

What the target says: of each key, the last record in it is the source's last one up to where the last run
ended. A record without a value deletes its key: the first run leaves such keys out, later ones append that
record, so that who folds the target forgets the key too. Offsets in the target are its own. Times are those
of the source's records; keys, values and headers stay as they are. Records without a key are nobody's latest,
are left out, and are counted.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

import ister
from ister import sync
from ister.client.log import Log
from ister.errors import ConfigError, OffsetOutOfRange, TableMismatch, UnknownTopic
from ister.io.clock import monotonic
from ister.names import normalise_topic
from ister.protocol.messages import TopicDescription
from ister.spark.jobs.latest_tasks import ROWS, made_of, read_parts, stage_shares
from ister.spark.jobs.running import Stop, parallelism, task_failed
from ister.spark.jobs.snapshot import Snapshot, take_snapshot
from ister.spark.jobs.watching import Unwatched, Watch
from ister.spark.sink.committing import Committed, Committer
from ister.spark.sink.failpoints import reach_of_environment
from ister.spark.sink.origin import Origin, make_stage
from ister.spark.sink.staging import Staged
from ister.spark.source.planning import divide

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FORM: Final = 1
_SHARE_BYTES: Final = 64 * 1024 * 1024
"""About so much of the source is one task's latest records, at most."""


class Note(msgspec.Struct, frozen=True):
    """What a run's manifest says: the source's offsets that it has read, from `start` to before `end`."""

    cluster: str
    topic: str
    uid: int
    start: int
    end: int
    form: int = _FORM
    gaps: list[tuple[int, int]] = []
    """Those of them that were not there, and were skipped."""


@dataclass
class Latest:
    """What a run did."""

    topic: str
    target: str
    start_offset: int
    """Of the source: where the last run had ended."""
    end_offset: int
    records: int = 0
    """That were appended to the target."""
    deleted: int = 0
    """Those of them that delete their key."""
    without_key: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Offsets of the source, from the first to before the second, that were skipped."""
    was_done: bool = False
    """Another run did this at the same time."""
    seconds: float = 0.0
    is_complete: bool = True
    """False if it was stopped before the end: then nothing was appended."""


def latest_by_key(
    spark: SparkSession,
    topic: str,
    *,
    to: str,
    skip_missing: bool = False,
    bootstrap: str = "127.0.0.1:9091",
    watch: Watch | None = None,
    stop: Stop | None = None,
) -> Latest:
    """Bring the target up to where the source ends now; it is made if it is not there, and keeps what it
    has for ever, unless it is told otherwise. With `skip_missing` it goes on behind offsets that are not
    there (trimmed, given up, damaged), and notes them."""
    began = monotonic()
    watch, stop = watch or Unwatched(), stop or Stop()
    target = normalise_topic(to)
    with sync.connect(bootstrap) as log:
        snapshot = take_snapshot(log, normalise_topic(topic))
    if target == snapshot.topic:
        raise ConfigError(f"{target} would be compacted into itself", hint="Give another topic with --to.")
    origin, newest = asyncio.run(_resume(bootstrap, snapshot, target))
    note = None if newest is None else msgspec.json.decode(newest.note, type=Note)
    done = Latest(snapshot.topic, target, snapshot.start if note is None else note.end, snapshot.end)
    first = max(done.start_offset, snapshot.start)
    if done.start_offset < first and not skip_missing:
        raise OffsetOutOfRange(
            f"offsets {done.start_offset} to {snapshot.start - 1} of {snapshot.topic} are not there: it "
            f"begins at {snapshot.start} now, and {target} has not got them yet",
            hint="--skip-missing goes on behind them; a new topic begins where the source does. A longer "
            "retention of the source, or compacting more often, avoids this.",
            offsets=(done.start_offset, snapshot.start),
        )
    if done.start_offset >= done.end_offset:
        done.end_offset = done.start_offset
        return done
    if stop.is_asked:
        return _stopped(done)
    if done.start_offset < first:
        done.gaps.append((done.start_offset, first))
    size = snapshot.size_between(first, done.end_offset)
    watch.begins(f"compact {snapshot.topic}", done.end_offset - done.start_offset, size)
    try:
        staged = _stage(
            spark, bootstrap, snapshot, origin, done,
            first=first, keeps_deletes=note is not None, skip_missing=skip_missing,
        )  # fmt: skip
        if stop.is_asked:
            return _stopped(done)
        batch = 0 if newest is None else newest.batch + 1
        read = Note(
            snapshot.cluster, snapshot.topic, snapshot.uid, done.start_offset, done.end_offset, gaps=done.gaps
        )
        committed = asyncio.run(_commit(bootstrap, origin, batch, staged, read))
        watch.advances(done.end_offset - done.start_offset, size)
    finally:
        watch.ends()
    done.was_done = committed.is_repeated
    told = msgspec.json.decode(committed.note, type=Note)
    done.end_offset, done.gaps = told.end, told.gaps
    done.records = sum(committed.counts.values())
    done.seconds = monotonic() - began
    return done


def _stopped(done: Latest) -> Latest:
    """Before anything was decided."""
    done.end_offset, done.is_complete = done.start_offset, False
    return done


# The ledger.


async def _resume(bootstrap: str, snapshot: Snapshot, target: str) -> tuple[Origin, Committed | None]:
    """Whose runs these are, and the last one, finished by now."""
    async with ister.connect(bootstrap) as log:
        there = await _find_target(log, target, snapshot)
        end = await log.offsets_at(target, "latest")
        what = f"{snapshot.cluster}/{snapshot.uid}/{there.uid}".encode()
        origin = Origin.named(f"latest-{hashlib.blake2b(what, digest_size=12).hexdigest()}")
        # Asked after the end: what another run has appended by then is in it.
        newest = await Committer(log, origin).finish_newest()
        if newest is None and end > there.start_offset:
            raise TableMismatch(
                f"{target} has records that are not of this compaction, at offsets {there.start_offset} to "
                f"{end - 1}: of another topic, or of a {snapshot.topic} that was deleted and made again",
                hint="Give a new topic with --to. Keys that only those records have would never be deleted.",
            )
        await make_stage(log, origin.stage)
        return origin, newest


async def _find_target(log: Log, target: str, snapshot: Snapshot) -> TopicDescription:
    try:
        return await log.describe_topic(target)
    except UnknownTopic:
        # A key's latest record may be old: age is no reason to drop it.
        settings = msgspec.structs.asdict(snapshot.there.settings) | {"retention_ms": 0, "retention_bytes": 0}
        return await log.create_topic(target, if_absent=True, **settings)


async def _commit(bootstrap: str, origin: Origin, batch: int, staged: list[Staged], note: Note) -> Committed:
    async with ister.connect(bootstrap) as log:
        committer = Committer(log, origin, reach_of_environment())
        return await committer.commit(batch, staged, msgspec.json.encode(note).decode())


# The records.


def _stage(
    spark: SparkSession,
    bootstrap: str,
    snapshot: Snapshot,
    origin: Origin,
    done: Latest,
    *,
    first: int,
    keeps_deletes: bool,
    skip_missing: bool,
) -> list[Staged]:
    """The latest records from `first` on are on the stage, in the order of their offsets."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as sf

    cores = parallelism(spark)
    parts = divide([snapshot.range(first, done.end_offset)], cores, None, None)
    if not parts:
        return []
    work = partial(read_parts, bootstrap, parts, skip_missing)
    rows = spark.range(0, len(parts), 1, len(parts)).mapInArrow(work, ROWS)
    last = sf.max_by(sf.struct("offset", "timestamp", "value", "headers"), "offset")
    latest = (
        rows.groupBy("key", "told")
        .agg(last.alias("last"), sf.count("*").alias("count"))
        .select("key", "last.*", "count", "told")
    )
    if not keeps_deletes:
        latest = latest.where("value IS NOT NULL OR key IS NULL")
    size = snapshot.size_between(first, done.end_offset)
    shares = max(1, min(cores * 4, -(-size // _SHARE_BYTES)))
    width = -(-(done.end_offset - first) // shares)
    share = sf.floor((sf.col("offset") - sf.lit(first)) / sf.lit(width)).cast("int")
    placed = latest.withColumn("share", share).repartition(shares, "share").sortWithinPartitions("offset")
    staging = partial(stage_shares, bootstrap, origin.stage, done.target)
    try:
        found = placed.mapInArrow(staging, "made binary").collect()
    except PySparkException as error:
        raise task_failed(error) from error
    made = sorted(made_of(bytes(row["made"]) for row in found), key=lambda one: one.share)
    done.deleted = sum(one.deleted for one in made)
    done.without_key = sum(one.without_key for one in made)
    done.gaps += [gap for one in made for gap in one.gaps]
    return [one.staged for one in made]
