"""The driver's part: decide a batch once, append it, say that it is done.

What can fail, the invariants and the interleavings are in docs/internals/spark-sink.md. Nothing here is kept
from one commit to the next. `reach` is told of each step; tests let a driver die there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from ister.client.log import Log
from ister.errors import (
    IsterError,
    MessageTooLarge,
    OtherCluster,
    StagedRecordsGone,
    StaleBatch,
    UnexpectedOffset,
    UnknownTopic,
)
from ister.protocol.messages import TopicDescription
from ister.spark.sink.failpoints import Reach, nowhere
from ister.spark.sink.ledger import Decided, Ledger, append_entry, read_ledger, trim_ledger
from ister.spark.sink.looking import Landed
from ister.spark.sink.origin import Origin, is_a_jobs
from ister.spark.sink.records import FORM, Done, Manifest, Place, Position, Rebase, Run, Target
from ister.spark.sink.staging import Staged, StagedRun
from ister.spark.sink.target import TargetAppend

log = logging.getLogger("ister.spark")

K = TypeVar("K")
V = TypeVar("V")

_AT_ONCE: Final = 8
"""So many targets are appended to at a time."""
_POSITIONS_KEPT: Final = 1000
"""Of so many targets the ledger knows how to go on. One that is written to again after so many others takes a
new identity."""


@dataclass(frozen=True)
class Committed:
    """A batch that is done."""

    batch: int
    counts: dict[str, int]
    """How many records each target got."""
    places: tuple[tuple[str, Place], ...]
    """Where they are; empty for what was appended to a target that was trimmed meanwhile."""
    is_repeated: bool
    """It was decided before this call, perhaps of other stages than were given now."""
    note: str


class _AlreadyDone(Exception):
    """Another driver has finished the batch."""

    def __init__(self, decided: Decided) -> None:
        super().__init__()
        self.decided = decided


class Committer:
    """Commits the batches of one origin. Any number of them, anywhere, may do so at once."""

    def __init__(self, log: Log, origin: Origin, reach: Reach = nowhere) -> None:
        self._log = log
        self._origin = origin
        self._reach = reach

    @property
    def origin(self) -> Origin:
        return self._origin

    async def newest(self) -> Decided | None:
        """The last batch that was decided."""
        return (await read_ledger(self._log, self._origin.ledger)).newest

    async def commit(self, batch: int, staged: Sequence[Staged], note: str = "") -> Committed:
        """Append what was staged, unless this batch was decided before: then that holds. Returns when all of
        it is in its targets and the ledger says so."""
        targets = asyncio.create_task(self._targets(staged))  # meanwhile the ledger is read
        try:
            return await self._commit(batch, staged, targets, note)
        finally:
            targets.cancel()
            await asyncio.wait([targets])

    async def _commit(
        self,
        batch: int,
        staged: Sequence[Staged],
        targets: asyncio.Task[dict[str, TopicDescription]],
        note: str,
    ) -> Committed:
        while True:
            ledger = await read_ledger(self._log, self._origin.ledger, batch)
            decided = ledger.of(batch)
            if decided is not None:
                return await self._finish(ledger, decided)
            newest = ledger.newest
            if newest is not None and newest.manifest.batch > batch:
                raise StaleBatch(
                    f"batch {batch} of {self._origin.ledger} was asked for, which has batch "
                    f"{newest.manifest.batch} already and no memory of this one"
                )
            if newest is not None and newest.done is None:
                await self._finish(ledger, newest)
                continue
            manifest = _manifest(ledger, batch, staged, await targets, note)
            await self._reach("before-manifest")
            told_index = self._log.told_index
            try:
                at = await append_entry(self._log, ledger, manifest)
            except UnexpectedOffset:
                continue
            await self._reach("manifest")
            decided = Decided(manifest, (), None)
            return await self._finish(ledger._replace(end=at + 1), decided, told_index)

    async def finish_newest(self) -> Committed | None:
        """Carry out what was decided last, if nobody has yet. None if nothing was ever decided."""
        ledger = await read_ledger(self._log, self._origin.ledger)
        if ledger.newest is None:
            return None
        return await self._finish(ledger, ledger.newest)

    async def drop(self) -> None:
        """Delete what a job has on the brokers; nobody asks for its batch again. The ledger goes first: what
        is decided and has no stage could not be carried out."""
        for topic in (self._origin.ledger, self._origin.stage):
            if is_a_jobs(topic):
                await self._delete(topic)

    # Before it is decided.

    async def _targets(self, staged: Sequence[Staged]) -> dict[str, TopicDescription]:
        """Each target as it is now, made if it is not there. Nothing was decided yet: what can't be appended
        is refused here."""
        topics = dict.fromkeys(run.topic for part in staged for run in part.runs)
        await self._check_stages(staged)
        found = dict(zip(topics, await _each(topics, self._target), strict=True))
        for part in staged:
            for topic, largest in part.largest.items():
                limit = found[topic].settings.max_message_bytes
                if largest > limit:
                    raise MessageTooLarge(
                        f"a batch of {largest} bytes for {topic}, whose max_message_bytes is {limit}"
                    )
        return found

    async def _check_stages(self, staged: Sequence[Staged]) -> None:
        """What is not there now would never be."""
        first: dict[tuple[str, int], int] = {}
        for part in staged:
            if part.runs:
                self._check_cluster(part.cluster, f"records were staged on {part.stage}")
                key = part.stage, part.uid
                start = min(run.start for run in part.runs)
                first[key] = min(first.get(key, start), start)
        for (stage, uid), start in first.items():
            try:
                there = await self._log.describe_topic(stage)
            except UnknownTopic as error:
                raise StagedRecordsGone(f"{stage} was deleted before its records were committed") from error
            if there.uid != uid or there.start_offset > start:
                what = f"records staged from offset {start} of {stage} on"
                raise StagedRecordsGone(f"{what} were dropped before they were committed")

    def _check_cluster(self, cluster: str, what: str) -> None:
        """I1: the same names and uids may well be there on another one, too."""
        if cluster not in ("", self._log.cluster_id):
            raise OtherCluster(f"{what} of cluster {cluster}, and this is cluster {self._log.cluster_id}")

    async def _target(self, topic: str) -> TopicDescription:
        try:
            return await self._log.describe_topic(topic)
        except UnknownTopic:
            return await self._log.create_topic(topic, if_absent=True)

    # After it.

    async def _finish(self, ledger: Ledger, decided: Decided, told_index: int | None = None) -> Committed:
        """With `told_index`, the manifest was written by this call, when that was known of the metadata:
        nothing of it can be in a target but what another driver appends at this moment."""
        if decided.done is None:
            what = f"batch {decided.manifest.batch} of {ledger.topic} was decided for topics"
            self._check_cluster(decided.manifest.cluster, what)
            try:
                landed = await self._append(ledger, decided, told_index)
            except _AlreadyDone as already:
                decided = already.decided
            except StagedRecordsGone:
                # Another driver has finished it, and trimmed them; or they are gone.
                batch = decided.manifest.batch
                now = (await read_ledger(self._log, self._origin.ledger, batch)).of(batch)
                if now is None or now.done is None:
                    raise
                decided = now
            else:
                await self._reach("appended")
                done = Done(FORM, decided.manifest.batch, [place for one in landed for place in one.places])
                at = await append_entry(self._log, ledger, done, expects_end=False)
                decided = decided._replace(done=done)
                await self._reach("done")
                await self._tidy(decided.manifest, ledger, at + 1)
        return _committed(decided, is_repeated=told_index is None)

    async def _append(self, ledger: Ledger, decided: Decided, told_index: int | None) -> list[Landed]:
        batch = decided.manifest.batch

        async def rebase(uid: int, record: int, known: int) -> tuple[Decided, bool]:
            return await self._rebase(batch, uid, record, known)

        async def append(target: int) -> Landed:
            one = TargetAppend(self._log, ledger.uid, decided, target, rebase, self._reach)
            return await one.run(told_index)

        return await _each(range(len(decided.manifest.targets)), append)

    async def _rebase(self, batch: int, uid: int, record: int, known: int) -> tuple[Decided, bool]:
        while True:
            ledger = await read_ledger(self._log, self._origin.ledger, batch)
            decided = ledger.of(batch)
            if decided is None:
                raise StaleBatch(
                    f"the ledger {ledger.topic} has forgotten batch {batch} while it was appended"
                )
            if decided.done is not None:
                raise _AlreadyDone(decided)
            place = next(at for at, target in enumerate(decided.manifest.targets) if target.uid == uid)
            if len(decided.legs(place)) > known:
                return decided, False
            entry = Rebase(FORM, batch, uid, record)
            try:
                at = await append_entry(self._log, ledger, entry)
            except UnexpectedOffset:
                continue
            await self._reach("rebased")
            return decided._replace(rebases=(*decided.rebases, (at, entry))), True

    async def _tidy(self, manifest: Manifest, ledger: Ledger, end: int) -> None:
        """It is done: what goes wrong from here on must not make it look undone."""
        try:
            await self._release(manifest)
            await trim_ledger(self._log, ledger, end)
        except IsterError as error:
            log.warning("batch %d is done; tidying up behind it failed: %s", manifest.batch, error.message)

    async def _release(self, manifest: Manifest) -> None:
        """Nobody needs what was staged for it any more."""
        if is_a_jobs(manifest.stage):
            await self._delete(manifest.stage)
        elif manifest.runs:
            behind = max(run.end for run in manifest.runs)
            try:
                await self._log.trim_topic(manifest.stage, behind, uid=manifest.stage_uid)
            except UnknownTopic:
                return  # somebody deleted it

    async def _delete(self, topic: str) -> None:
        try:
            await self._log.delete_topic(topic)
        except UnknownTopic:
            return


async def _each(keys: Iterable[K], work: Callable[[K], Awaitable[V]]) -> list[V]:
    """The work of each, a few at a time; the first error ends all of it."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(key: K) -> V:
        async with room:
            return await work(key)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(key)) for key in keys]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _manifest(
    ledger: Ledger, batch: int, staged: Sequence[Staged], targets: dict[str, TopicDescription], note: str
) -> Manifest:
    """Goes on where the newest one ended; a target that is new to the ledger begins an identity here."""
    known = {found.uid: found for found in ledger.newest.positions()} if ledger.newest else {}
    counts: dict[str, int] = dict.fromkeys(targets, 0)
    places = {topic: place for place, topic in enumerate(targets)}
    runs = []
    for part in staged:
        for run in part.runs:
            counts[run.topic] += run.end - run.start
            runs.append(_run(run, places[run.topic]))
    chosen = []
    for topic, there in targets.items():
        position = known.pop(there.uid, None) or Position(there.uid, ledger.end, 0)
        chosen.append(
            Target(topic, there.uid, position.epoch, position.sequence, there.end_offset, counts[topic])
        )
    positions = [
        *known.values(),
        *(Position(target.uid, target.epoch, target.sequence + target.count) for target in chosen),
    ]
    stage, uid, cluster = next(
        ((part.stage, part.uid, part.cluster) for part in staged if part.runs), ("", 0, "")
    )
    return Manifest(FORM, batch, stage, uid, chosen, runs, positions[-_POSITIONS_KEPT:], note, cluster)


def _run(run: StagedRun, target: int) -> Run:
    return Run(target, run.start, run.end, run.size, run.producer_id)


def _committed(decided: Decided, *, is_repeated: bool) -> Committed:
    manifest, done = decided.manifest, decided.done
    topics = [target.topic for target in manifest.targets]
    places = tuple((topics[place.target], place) for place in done.places) if done else ()
    counts = {target.topic: target.count for target in manifest.targets}
    return Committed(manifest.batch, counts, places, is_repeated, manifest.note)
