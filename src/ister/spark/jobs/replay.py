"""`replay`: a range of a topic, by offsets or times, once more: into another topic or into a table.

The range is decided once, at the start. Every record of it is read and its contents go into the checksums of
a receipt; a replay by a receipt is compared with it before anything becomes visible.

Into a topic, frames are staged by the tasks and committed in one batch of the sink's ledger: all or nothing.
The ledger is named by the source's uid, the range and the target's uid, so that a replay that was killed is
finished by running it again, and one that is done is not done twice unless `again` says so. Into a table, the
range is checked first and then tiered, into a table of its own, whose commits say how far it is.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

import ister
from ister import sync
from ister.client.log import Log
from ister.errors import ConfigError, OffsetOutOfRange, StagedRecordsGone, UnknownTopic
from ister.io.clock import monotonic
from ister.names import normalise_topic
from ister.spark.jobs.copying.receipts import Receipt, receipt_of
from ister.spark.jobs.copying.running import SHARE_BYTES, copy_shares
from ister.spark.jobs.copying.staging import Part, Route
from ister.spark.jobs.running import Stop
from ister.spark.jobs.snapshot import Share, Snapshot, shares, take_snapshot
from ister.spark.jobs.watching import Unwatched, Watch
from ister.spark.sink.committing import Committed, Committer
from ister.spark.sink.failpoints import reach_of_environment
from ister.spark.sink.origin import Origin, make_stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Place = str | int | datetime
_BATCH: Final = 0
"""A replay is one batch."""


@dataclass
class Replayed:
    topic: str
    target: str
    start_offset: int
    end_offset: int
    receipt: Receipt | None = None
    """None if it was stopped before the end: then nothing is visible."""
    was_done: bool = False
    """This very replay was committed before; nothing was appended now."""
    target_start: int | None = None
    """Of a topic: where the first record lies; None if nobody knows any more."""
    records: int = 0
    bytes: int = 0
    seconds: float = 0.0


def replay(
    spark: SparkSession,
    topic: str,
    *,
    to: str | None = None,
    to_table: str | None = None,
    path: str | None = None,
    start: Place = "earliest",
    until: Place = "latest",
    receipt: Receipt | None = None,
    again: bool = False,
    bootstrap: str = "127.0.0.1:9091",
    to_bootstrap: str | None = None,
    table_options: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
    stop: Stop | None = None,
) -> Replayed:
    """Offsets from `start` to before `until` into the topic `to`, or a table `to_table` (`parquet`, `delta`,
    `iceberg`) at `path`. A place is `earliest`, `latest`, an offset, or a time: the first record appended at
    or after it. With a `receipt`, its ranges, and nothing if they are not what it says."""
    if (to is None) == (to_table is None):
        raise ConfigError(
            "a replay goes to a topic or to a table", hint="Give `to`, or `to_table` and `path`."
        )
    began = monotonic()
    with sync.connect(bootstrap) as log:
        snapshot = take_snapshot(log, normalise_topic(topic))
        if receipt is None:
            first, end = (_resolved(log, snapshot, place) for place in (start, until))
        else:
            receipt.check_source(snapshot)
            first, end = receipt.start, receipt.end
    _check_range(snapshot, first, end)
    job = _ReplayJob(spark, bootstrap, to_bootstrap or bootstrap, snapshot, first, end, receipt)
    job.watch, job.stop = watch or Unwatched(), stop or Stop()
    if to is not None:
        done = job.to_topic(normalise_topic(to), again)
    else:
        assert to_table is not None
        done = job.to_table(to_table, path, dict(table_options or {}))
    done.seconds = monotonic() - began
    return done


def _resolved(log: sync.Log, snapshot: Snapshot, place: Place) -> int:
    """What was appended after the snapshot is not meant by any place."""
    return place if isinstance(place, int) else min(snapshot.end, log.offsets_at(snapshot.topic, place))


def _check_range(snapshot: Snapshot, first: int, end: int) -> None:
    if first > end:
        raise ConfigError(
            f"the range starts at offset {first} and ends before it, at {end}", hint="Swap the two."
        )
    if first < snapshot.start or end > snapshot.end:
        raise OffsetOutOfRange(
            f"offsets {first} to {end - 1} were asked for; {snapshot.topic} has {snapshot.start} to "
            f"{snapshot.end - 1}",
            offsets=(first, end),
        )


class _ReplayJob:
    watch: Watch
    stop: Stop

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        target_bootstrap: str,
        snapshot: Snapshot,
        first: int,
        end: int,
        receipt: Receipt | None,
    ) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._target_bootstrap = target_bootstrap
        self._snapshot = snapshot
        self._first = first
        self._end = end
        self._receipt = receipt

    # Into a topic.

    def to_topic(self, target: str, again: bool) -> Replayed:
        done = Replayed(self._snapshot.topic, target, self._first, self._end)
        origin, finished = asyncio.run(self._begin(target, again))
        if finished is not None:
            # What it had read then is not compared with the receipt: it is read once more, and compared.
            parts = self._read(origin, "")
            done.was_done = True
            done.target_start = _start_of(finished)
        else:
            parts = self._read(origin, target)
        if parts is None:
            return done
        done.receipt = self._receipted(parts)
        if finished is None:
            committed = asyncio.run(self._commit(origin, parts))
            done.target_start = _start_of(committed)
            done.records, done.bytes = sum(part.records for part in parts), sum(part.size for part in parts)
        return done

    async def _begin(self, target: str, again: bool) -> tuple[Origin, Committed | None]:
        async with ister.connect(self._target_bootstrap) as log:
            cluster = (await log.cluster()).cluster_id
            if (cluster, target) == (self._snapshot.cluster, self._snapshot.topic):
                raise ConfigError(f"{target} would be replayed into itself", hint="Give another topic.")
            try:
                there = await log.describe_topic(target)
            except UnknownTopic:
                settings = msgspec.structs.asdict(self._snapshot.there.settings)
                there = await log.create_topic(target, if_absent=True, **settings)
            origin = self._origin(there.uid, again)
            await self._finish_others(log, origin)
            await make_stage(log, origin.stage)
            return origin, await Committer(log, origin).finish_newest()

    def _origin(self, target_uid: int, again: bool) -> Origin:
        pair = f"{self._snapshot.cluster}/{self._snapshot.uid}/{target_uid}"
        what = f"{self._first}/{self._end}" + (f"/{os.urandom(8).hex()}" if again else "")
        return Origin.named(f"replay-{_digest(pair)}-{_digest(what)}")

    async def _finish_others(self, log: Log, origin: Origin) -> None:
        """Replays of other ranges into the same topic that were decided and died: all of each or nothing."""
        prefix = origin.ledger.rpartition("-")[0] + "-"
        for there in await log.list_topics(prefix):
            if not there.topic.endswith(".ledger") or there.topic == origin.ledger:
                continue
            other = Committer(log, Origin(there.topic, f"{there.topic.removesuffix('.ledger')}.staged"))
            newest = await other.newest()
            if newest is None or newest.done is not None:
                continue
            try:
                done = await other.finish_newest()
            except StagedRecordsGone as error:
                self.watch.tells(f"an earlier replay was begun and can't be finished: {error.message}")
                continue
            assert done is not None
            count = sum(done.counts.values())
            self.watch.tells(f"an earlier replay had died half-way: its {count:,} records are appended first")

    async def _commit(self, origin: Origin, parts: list[Part]) -> Committed:
        async with ister.connect(self._target_bootstrap) as log:
            staged = [part.staged for part in parts if part.staged is not None]
            return await Committer(log, origin, reach_of_environment()).commit(_BATCH, staged)

    # Into a table.

    def to_table(self, kind: str, path: str | None, options: dict[str, Any]) -> Replayed:
        from ister.spark.jobs.tier import tier_range

        done = Replayed(self._snapshot.topic, path or kind, self._first, self._end)
        parts = self._read(None, "")
        if parts is None:
            return done
        made = self._receipted(parts)
        tiered = tier_range(
            self._spark, self._snapshot, self._first, self._end, to=kind, path=path,
            bootstrap=self._bootstrap, watch=self.watch, stop=self.stop, **options,
        )  # fmt: skip
        if tiered.next_offset >= self._end:
            done.receipt = made
        done.target = tiered.table
        done.records, done.bytes = tiered.records, tiered.log_bytes
        done.was_done = not tiered.commits
        return done

    # Both.

    def _read(self, origin: Origin | None, target: str) -> list[Part] | None:
        """Every record of the range; staged too if there is a target topic. None if it was stopped."""
        cut = self._cut()
        route = Route(
            self._bootstrap,
            self._target_bootstrap if target else "",
            origin.stage if origin is not None else "",
            target,
            self._first,
            self._end,
            checksums=True,
        )
        size = sum(share.size for share in cut)
        what = "replay" if target else "check"
        self.watch.begins(f"{what} {self._snapshot.topic}", self._end - self._first, size)
        try:
            return copy_shares(self._spark, route, cut, self.watch, self.stop)
        finally:
            self.watch.ends()

    def _cut(self) -> list[Share]:
        if self._receipt is None:
            return list(shares(self._snapshot, self._first, self._end, SHARE_BYTES))
        snapshot = self._snapshot
        return [
            Share(snapshot.range(part.start, part.end), snapshot.size_between(part.start, part.end), 0, 0, ())
            for part in self._receipt.ranges
        ]

    def _receipted(self, parts: list[Part]) -> Receipt:
        if self._receipt is not None:
            self._receipt.check_parts(parts)
            return self._receipt
        return receipt_of(self._snapshot, parts)


def _digest(what: str) -> str:
    return hashlib.blake2b(what.encode(), digest_size=12).hexdigest()


def _start_of(committed: Committed) -> int | None:
    return min((place.offset for _, place in committed.places), default=None)
