"""`mirror`: a topic into another one, of this cluster or another, each record once and in its order.

Tasks stage the frames of a batch in the target's cluster, and the driver commits them through the sink's
ledger, which says, in the same entry, how far the source was copied. So progress and records can't part: a
mirror that dies at any point, or two that run at once, lose and repeat nothing (internals/spark-sink.md).
The ledger is named by the uids of both topics: one that was made again is another (I3), and begins anew.

The map of offsets is a topic of its own beside the ledger, a record for each batch: where the records from
each source offset on lie in the target. It is written after the batch, at the offset that is the batch's
number, and a batch whose entry is missing gets it at the next start: the ledger has it until then.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

import ister
from ister import sync
from ister.client.log import Log
from ister.errors import ConfigError, OffsetOutOfRange, UnexpectedOffset, UnknownTopic
from ister.io.clock import monotonic
from ister.names import normalise_topic
from ister.protocol.messages import TopicDescription
from ister.spark.jobs.copying.running import BATCH_BYTES, SHARE_BYTES, copy_shares, in_batches
from ister.spark.jobs.copying.staging import Route
from ister.spark.jobs.running import Stop
from ister.spark.jobs.snapshot import Share, Snapshot, shares, take_snapshot
from ister.spark.jobs.watching import Unwatched, Watch
from ister.spark.sink.committing import Committed, Committer
from ister.spark.sink.failpoints import reach_of_environment
from ister.spark.sink.origin import NAMESPACE, Origin, make_stage
from ister.spark.sink.staging import Staged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FORM: Final = 1
_LOOK_AGAIN_S: Final = 0.05
_MAP: Final[dict[str, int | str]] = {"retention_ms": 0, "retention_bytes": 0, "fsync": "fsync"}
"""Kept as long as the target, whatever the cluster does with topics of which nothing is said."""


class Note(msgspec.Struct, frozen=True):
    """What a mirror's manifest says of its batch: offsets of the source, from `start` to before `end`."""

    cluster: str
    topic: str
    uid: int
    start: int
    end: int
    form: int = _FORM


class MappedRange(msgspec.Struct, array_like=True, frozen=True):
    """`count` records from a source offset on, and where the first of them is in the target."""

    source: int
    target: int
    count: int


class _MapEntry(msgspec.Struct, array_like=True, frozen=True):
    form: int
    start: int
    end: int
    ranges: list[MappedRange]


class Pair(NamedTuple):
    """A source and a target, by what they are and not by what they are called."""

    cluster: str
    source: str
    source_uid: int
    target: str
    target_uid: int

    @property
    def name(self) -> str:
        what = f"{self.cluster}/{self.source_uid}/{self.target_uid}".encode()
        return f"mirror-{hashlib.blake2b(what, digest_size=12).hexdigest()}"

    @property
    def map_topic(self) -> str:
        return f"{NAMESPACE}/{self.name}.map"


@dataclass
class Mirrored:
    """What a mirror did."""

    topic: str
    target: str
    start_offset: int
    """Of the source: where the mirror was before."""
    next_offset: int
    end_offset: int
    """Where the source ended when it began."""
    records: int = 0
    bytes: int = 0
    batches: int = 0
    map_topic: str = ""
    seconds: float = 0.0

    @property
    def is_complete(self) -> bool:
        return self.next_offset >= self.end_offset


def mirror(
    spark: SparkSession,
    topic: str,
    *,
    to: str,
    bootstrap: str = "127.0.0.1:9091",
    to_bootstrap: str | None = None,
    batch_bytes: int = BATCH_BYTES,
    watch: Watch | None = None,
    stop: Stop | None = None,
) -> Mirrored:
    """Bring the target up to where the source ends now; it is made if it is not there, with the source's
    settings. Records keep their keys, values, headers and event times; their offsets are in `offset_map`."""
    started = monotonic()
    target_bootstrap = to_bootstrap or bootstrap
    with sync.connect(bootstrap) as log:
        snapshot = take_snapshot(log, normalise_topic(topic))
    pair = asyncio.run(_pair(snapshot, normalise_topic(to), target_bootstrap))
    job = _MirrorJob(spark, bootstrap, target_bootstrap, snapshot, pair, watch or Unwatched(), stop or Stop())
    done = job.run(batch_bytes)
    done.seconds = monotonic() - started
    return done


async def _pair(snapshot: Snapshot, target: str, bootstrap: str) -> Pair:
    async with ister.connect(bootstrap) as log:
        cluster = (await log.cluster()).cluster_id
        if (cluster, target) == (snapshot.cluster, snapshot.topic):
            raise ConfigError(
                f"{target} would be mirrored into itself", hint="Give another topic, or --to-bootstrap."
            )
        there = await _find_target(log, target, snapshot.there)
    return Pair(snapshot.cluster, snapshot.topic, snapshot.uid, target, there.uid)


async def _find_target(log: Log, target: str, like: TopicDescription) -> TopicDescription:
    try:
        return await log.describe_topic(target)
    except UnknownTopic:
        settings = msgspec.structs.asdict(like.settings)
        return await log.create_topic(target, if_absent=True, **settings)


class _MirrorJob:
    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        target_bootstrap: str,
        snapshot: Snapshot,
        pair: Pair,
        watch: Watch,
        stop: Stop,
    ) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._target_bootstrap = target_bootstrap
        self._snapshot = snapshot
        self._pair = pair
        self._origin = Origin.named(pair.name)
        self._watch = watch
        self._stop = stop
        self._reach = reach_of_environment()

    def run(self, batch_bytes: int) -> Mirrored:
        snapshot = self._snapshot
        batch, begins = asyncio.run(self._resume())
        done = Mirrored(snapshot.topic, self._pair.target, begins, begins, snapshot.end)
        done.map_topic = self._pair.map_topic
        if begins < snapshot.start:
            raise OffsetOutOfRange(
                f"offsets {begins} to {snapshot.start - 1} of {snapshot.topic} are not there: it begins at "
                f"{snapshot.start} now, and {self._pair.target} has not got them yet",
                hint="Mirror into a new topic, which begins where the source does. A longer retention of the "
                "source, or mirroring more often, avoids this.",
                offsets=(begins, snapshot.start),
            )
        self._watch.begins(
            f"mirror {snapshot.topic}", snapshot.end - begins, snapshot.size_between(begins, snapshot.end)
        )
        try:
            for cut in in_batches(list(shares(snapshot, begins, snapshot.end, SHARE_BYTES)), batch_bytes):
                if done.next_offset >= cut[-1].range.end:
                    continue  # another mirror was faster
                batch = self._copy(batch, cut, done)
                if self._stop.is_asked:
                    break
        finally:
            self._watch.ends()
        return done

    def _copy(self, batch: int, cut: list[Share], done: Mirrored) -> int:
        """One batch, from where the target is; returns the number of the next one."""
        first, end = done.next_offset, cut[-1].range.end
        wanted = list(shares(self._snapshot, first, end, SHARE_BYTES))
        route = Route(
            self._bootstrap,
            self._target_bootstrap,
            self._origin.stage,
            self._pair.target,
            first,
            self._snapshot.end,
            checksums=False,
        )
        parts = copy_shares(self._spark, route, wanted, self._watch, self._stop)
        if parts is None:
            return batch
        reached = max(part.reached for part in parts)
        note = Note(self._pair.cluster, self._pair.source, self._pair.source_uid, first, reached)
        staged = [part.staged for part in parts if part.staged is not None]
        committed = asyncio.run(self._commit(batch, staged, note))
        held = _note_of(committed)
        done.batches += not committed.is_repeated
        if not committed.is_repeated:
            done.records += held.end - held.start
            done.bytes += sum(part.size for part in parts)
        done.next_offset = held.end
        return batch + 1

    async def _resume(self) -> tuple[int, int]:
        """The next batch, and the source's offset that it begins with."""
        async with ister.connect(self._target_bootstrap) as log:
            await make_stage(log, self._origin.stage)
            await log.create_topic(self._pair.map_topic, if_absent=True, **_MAP)
            newest = await Committer(log, self._origin).finish_newest()
            if newest is None:
                return 0, self._snapshot.start
            await self._keep_map(log, newest)
            return newest.batch + 1, _note_of(newest).end

    async def _commit(self, batch: int, staged: list[Staged], note: Note) -> Committed:
        async with ister.connect(self._target_bootstrap) as log:
            committer = Committer(log, self._origin, self._reach)
            committed = await committer.commit(batch, staged, msgspec.json.encode(note).decode())
            await self._reach("committed")
            await self._keep_map(log, committed)
        return committed

    async def _keep_map(self, log: Log, committed: Committed) -> None:
        note = _note_of(committed)
        ranges = [
            MappedRange(note.start + place.record, place.offset, place.count) for _, place in committed.places
        ]
        entry = msgspec.msgpack.encode(_MapEntry(_FORM, note.start, note.end, ranges))
        while True:
            end = await log.offsets_at(self._pair.map_topic, "latest")
            if end > committed.batch:
                return  # it is there
            missing = [msgspec.msgpack.encode(_MapEntry(_FORM, note.start, note.start, []))]
            missing *= committed.batch - end
            try:
                await log.append(self._pair.map_topic, [*missing, entry], expected_offset=end)
            except UnexpectedOffset:
                await asyncio.sleep(_LOOK_AGAIN_S)  # another mirror writes it at this moment
                continue
            if missing:
                self._watch.tells(
                    f"the map of offsets {self._pair.map_topic} was deleted: it begins anew with source "
                    f"offset {note.start}"
                )
            return


def _note_of(committed: Committed) -> Note:
    return msgspec.json.decode(committed.note, type=Note)


def offset_map(
    topic: str, *, to: str, bootstrap: str = "127.0.0.1:9091", to_bootstrap: str | None = None
) -> list[MappedRange]:
    """Where a mirror's records are in its target, neighbours joined; empty if nothing was mirrored yet."""
    with sync.connect(bootstrap) as log:
        cluster, source = log.cluster().cluster_id, log.describe_topic(normalise_topic(topic))
    found: list[MappedRange] = []
    with sync.connect(to_bootstrap or bootstrap) as log:
        target = log.describe_topic(normalise_topic(to))
        pair = Pair(cluster, source.topic, source.uid, target.topic, target.uid)
        try:
            records = list(log.read(pair.map_topic))
        except UnknownTopic:
            return []
    for record in records:
        for part in msgspec.msgpack.decode(record.value or b"", type=_MapEntry).ranges:
            last = found[-1] if found else None
            if last and (last.source + last.count, last.target + last.count) == (part.source, part.target):
                found[-1] = MappedRange(last.source, last.target, last.count + part.count)
            else:
                found.append(part)
    return found
