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
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

import ister
from ister import sync
from ister.client.log import Log
from ister.errors import ConfigError, OffsetOutOfRange, TableMismatch, UnknownTopic
from ister.io.clock import monotonic
from ister.names import normalise_topic
from ister.protocol.messages import TopicDescription
from ister.spark.jobs.running import Stop, parallelism
from ister.spark.jobs.snapshot import Snapshot, take_snapshot
from ister.spark.jobs.watching import Unwatched, Watch
from ister.spark.sink.committing import Committed, Committer
from ister.spark.sink.failpoints import reach_of_environment
from ister.spark.sink.origin import Origin, make_stage
from ister.spark.sink.rows import bounded
from ister.spark.sink.staging import Staged, Stager, open_stager
from ister.spark.source.snapshots import Snapshot as SourceSnapshot
from ister.spark.source.snapshots import TopicSnapshot

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

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
    bootstrap: str = "127.0.0.1:9091",
    watch: Watch | None = None,
    stop: Stop | None = None,
) -> Latest:
    """Bring the target up to where the source ends now; it is made if it is not there, and keeps what it
    has for ever, unless it is told otherwise."""
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
    if done.start_offset < snapshot.start:
        raise OffsetOutOfRange(
            f"offsets {done.start_offset} to {snapshot.start - 1} of {snapshot.topic} are not there: it "
            f"begins at {snapshot.start} now, and {target} has not got them yet",
            hint="Compact into a new topic, which begins where the source does. A longer retention of the "
            "source, or compacting more often, avoids this.",
            offsets=(done.start_offset, snapshot.start),
        )
    if done.start_offset >= done.end_offset:
        done.end_offset = done.start_offset
        return done
    if stop.is_asked:
        return _stopped(done)
    size = snapshot.size_between(done.start_offset, done.end_offset)
    watch.begins(f"compact {snapshot.topic}", done.end_offset - done.start_offset, size)
    try:
        staged = _stage(spark, bootstrap, snapshot, origin, done, keeps_deletes=note is not None)
        if stop.is_asked:
            return _stopped(done)
        batch = 0 if newest is None else newest.batch + 1
        read = Note(snapshot.cluster, snapshot.topic, snapshot.uid, done.start_offset, done.end_offset)
        committed = asyncio.run(_commit(bootstrap, origin, batch, staged, read))
        watch.advances(done.end_offset - done.start_offset, size)
    finally:
        watch.ends()
    done.was_done = committed.is_repeated
    done.end_offset = msgspec.json.decode(committed.note, type=Note).end
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
    keeps_deletes: bool,
) -> list[Staged]:
    """The latest records of the range on the stage, in the order of their offsets."""
    from pyspark.sql import functions as sf

    last = sf.max_by(sf.struct("offset", "timestamp", "value", "headers"), "offset")
    latest = (
        _read(spark, bootstrap, snapshot, done)
        .groupBy("key")
        .agg(last.alias("last"), sf.count("*").alias("count"))
        .select("key", "last.*", "count")
    )
    if not keeps_deletes:
        latest = latest.where("value IS NOT NULL OR key IS NULL")
    size = snapshot.size_between(done.start_offset, done.end_offset)
    shares = max(1, min(parallelism(spark) * 4, -(-size // _SHARE_BYTES)))
    width = -(-(done.end_offset - done.start_offset) // shares)
    share = sf.floor((sf.col("offset") - sf.lit(done.start_offset)) / sf.lit(width)).cast("int")
    placed = latest.withColumn("share", share).repartition(shares, "share").sortWithinPartitions("offset")
    work = partial(_stage_shares, bootstrap, origin.stage, done.target)
    rows = placed.mapInArrow(work, "made binary").collect()
    made = sorted((pickle.loads(bytes(row["made"])) for row in rows), key=lambda one: one.share)
    done.deleted = sum(one.deleted for one in made)
    done.without_key = sum(one.without_key for one in made)
    return [one.staged for one in made]


def _read(spark: SparkSession, bootstrap: str, snapshot: Snapshot, done: Latest) -> DataFrame:
    return (
        spark.read.format("ister")
        .schema(
            "key binary, value binary, offset long, timestamp timestamp, "
            "headers array<struct<key: string, value: binary>>"
        )
        .options(**wanted(bootstrap, snapshot, done))
        .load()
    )


def wanted(bootstrap: str, snapshot: Snapshot, done: Latest) -> dict[str, str]:
    """The options that read the range, of this very topic, and of none that was made again under its name."""
    there = TopicSnapshot(snapshot.uid, done.start_offset, done.end_offset)
    offsets = SourceSnapshot(snapshot.cluster, {snapshot.topic: there})
    return {
        "bootstrap.servers": bootstrap,
        "snapshot.offsets": offsets.to_text(),
        "includeHeaders": "true",
    }


class _Made(NamedTuple):
    """Of one share."""

    share: int
    staged: Staged
    deleted: int
    without_key: int


def _stage_shares(
    bootstrap: str, stage: str, topic: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """On the executor: rows come in the order of their offsets, so share after share."""
    import pyarrow as pa

    made = asyncio.run(_stage_all(bootstrap, stage, topic, batches))
    yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(one) for one in made], pa.binary())], ["made"])


async def _stage_all(
    bootstrap: str, stage: str, topic: str, batches: Iterator[pa.RecordBatch]
) -> list[_Made]:
    made: list[_Made] = []
    async with ister.connect(bootstrap) as log:
        staging: _Staging | None = None
        # In a thread: while Spark prepares the next rows, answers to the last ones must not wait.
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            for share, rows in _by_share(batch):
                if staging is not None and share != staging.share:
                    made.append(await staging.finish())
                    staging = None
                if staging is None:
                    staging = _Staging(share, topic, await open_stager(log, stage))
                await staging.put(rows)
        if staging is not None:
            made.append(await staging.finish())
    return made


class _Staging:
    """One share, on its way to the stage."""

    def __init__(self, share: int, topic: str, stager: Stager) -> None:
        self.share = share
        self._topic = topic
        self._stager = stager
        self._deleted = self._without_key = 0

    async def put(self, rows: pa.RecordBatch) -> None:
        keys = rows.column("key")
        if keys.null_count:
            nobodys = rows.filter(keys.is_null())
            self._without_key += sum(nobodys.column("count").to_pylist())
            rows = rows.filter(keys.is_valid())
        self._deleted += rows.column("value").null_count
        for part in bounded(rows.select(["key", "value", "timestamp", "headers"])):
            await self._stager.put_rows(self._topic, part)

    async def finish(self) -> _Made:
        staged = await self._stager.finish()
        self._stager.close()
        return _Made(self.share, staged, self._deleted, self._without_key)


def _by_share(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    shares, start = batch.column("share").to_pylist(), 0
    for at in range(1, len(shares) + 1):
        if at == len(shares) or shares[at] != shares[start]:
            yield shares[start], batch.slice(start, at - start)
            start = at
