"""One target of one manifest: append what is not there yet, under the identity that the ledger gives.

Whoever carries out a manifest sends the same frames with the same sequences, so that the log takes each once
(A5). What is done where it refuses is in docs/internals/spark-sink.md, "Carrying on".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ister.client.batch import Batch
from ister.client.log import Log
from ister.client.sequencer import Identity, Sequencer
from ister.errors import (
    CommitInDoubt,
    ConnectionFailed,
    DuplicateSequence,
    OffsetOutOfRange,
    RecordsLost,
    UnexpectedOffset,
    UnknownProducer,
    UnknownTopic,
    invariant,
)
from ister.io.clock import monotonic
from ister.protocol.messages import ANY_OFFSET
from ister.spark.sink.copying import Copied, staged_frames
from ister.spark.sink.failpoints import Reach
from ister.spark.sink.ledger import Decided
from ister.spark.sink.looking import Landed, check_same, look, not_the_same
from ister.spark.sink.records import Leg, producer_id
from ister.spark.sink.sending import Sending

CONDITION_S: Final = 10.0
"""So long the first frame of a rebase is held to the place that was looked at. Longer than any lease: after
it, nobody can have shown us an old view all the time, and a busy topic must not keep us out for ever."""

Rebase = Callable[[int, int, int], Awaitable[tuple[Decided, bool]]]
"""A target (by uid) needs another identity from a record on, and so many legs are known: the batch as it is
decided then, and whether it was decided here and now."""

_ROUNDS: Final = 100
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 1.0


class TargetAppend:
    def __init__(
        self,
        log: Log,
        ledger_uid: int,
        decided: Decided,
        target: int,
        rebase: Rebase,
        reach: Reach,
    ) -> None:
        self._log = log
        self._ledger_uid = ledger_uid
        self._manifest = decided.manifest
        self._target = decided.manifest.targets[target]
        self._legs = decided.legs(target)
        self._at = target
        self._told_index = 0
        """What was known before the manifest was written, or before the last look: whatever was sent under an
        identity since is in the log's table, or was dropped from it later than this (A5)."""
        self._rebase = rebase
        self._reach = reach
        self._landed = Landed(target, self._target.count, end=self._target.end_offset)
        self._conditional_until: float | None = None

    async def run(self, told_index: int | None) -> Landed:
        """Append all that is missing. With `told_index` the manifest was written by the same call, when that
        was known of the metadata: nothing need be looked for."""
        if told_index is None:
            await self._look()
        else:
            self._told_index = told_index
        turns = 0
        while not self._landed.is_complete:
            before = self._landed.count, len(self._legs)
            try:
                await self._append()
            except UnexpectedOffset:
                await self._look()  # somebody was quicker; for how long we insist is bounded (`_condition`)
            except (DuplicateSequence, UnknownProducer, UnknownTopic) as error:
                await (self._forgotten if isinstance(error, UnknownProducer) else self._look)()
                if before != (self._landed.count, len(self._legs)):
                    continue
                turns += 1  # what we are shown is old
                if turns == _ROUNDS:
                    raise
                await asyncio.sleep(min(_FIRST_PAUSE_S * 2 ** min(turns, 10), _LONGEST_PAUSE_S))
        return self._landed

    @property
    def _leg(self) -> Leg:
        return self._legs[-1]

    @property
    def _last_leg(self) -> int:
        return len(self._legs) - 1

    @property
    def _is_overtaken(self) -> bool:
        """The rebase was made by somebody who saw less than there is."""
        return self._landed.count > self._leg.record and self._landed.leg < self._last_leg

    def _identity(self, record: int) -> Identity:
        leg = self._leg
        sequence = leg.sequence + record - leg.record
        invariant(record >= leg.record, f"record {record} comes before the identity that begins at {leg}")
        producer = producer_id(self._ledger_uid, self._target.uid, leg.epoch)
        return Identity(producer, sequence, self._told_index)

    def _sequencer(self, record: int) -> Sequencer:
        target = self._target
        return self._log.sequencer(target.topic, self._identity(record), uid=target.uid)

    # Appending.

    async def _append(self) -> None:
        """All that is missing, several frames on their way at once."""
        landed = self._landed
        if landed.count < self._leg.record or self._is_overtaken:
            raise UnknownProducer(f"record {landed.count} has no identity yet; {self._leg} was decided")
        sequencer = self._sequencer(landed.count)
        sending = Sending(self._appended)
        expected = self._condition()
        half = landed.total // 2
        try:
            async for copied in staged_frames(self._log, self._manifest, self._at, landed.count):
                batch = sequencer.put_frame(copied.frame, expected)
                await sending.put(copied, batch)
                expected = ANY_OFFSET
                if copied.record <= half < copied.record + batch.count:
                    await self._reach("half-appended")
            await sending.finish()
        finally:
            sequencer.close(ConnectionFailed("the commit ended before this", hint="See its first error."))
        invariant(landed.is_complete, f"{landed.count} of {landed.total} records were on the stage")

    def _appended(self, copied: Copied, batch: Batch, offset: int) -> None:
        self._landed.add(copied.record, offset, batch.count)
        self._landed.leg = self._last_leg

    def _condition(self) -> int:
        """Where the first frame of a rebase must come to be: nowhere but behind all that was looked at."""
        leg = self._leg
        if self._last_leg == 0 or self._landed.count > leg.record:
            return ANY_OFFSET
        now = monotonic()
        if self._conditional_until is None:
            self._conditional_until = now + CONDITION_S
        return self._landed.end if now < self._conditional_until else ANY_OFFSET

    # Finding out.

    async def _look(self) -> None:
        target, batch = self._target, self._manifest.batch
        self._told_index = self._log.told_index
        start = await check_same(self._log, target.topic, target.uid, batch)
        try:
            await self._look_from(start)
        except UnknownTopic as error:
            raise not_the_same(target.topic, target.uid, batch, "deleted") from error

    async def _look_from(self, start: int) -> None:
        target, landed = self._target, self._landed
        try:
            if start <= landed.end:
                await look(self._log, target.topic, target.uid, self._ledger_uid, self._legs, landed)
                return
        except (OffsetOutOfRange, RecordsLost):
            pass  # trimmed a moment ago, or given up
        await self._ask_the_table()

    async def _forgotten(self) -> None:
        """The log does not know the identity. What came under it is seen in the headers; for the rest the
        ledger gives another one."""
        await self._look()
        landed = self._landed
        if landed.is_complete or landed.count < self._leg.record:
            return  # or somebody saw more than we: it will show
        if not self._is_overtaken and self._identity(landed.count).sequence == 0:
            return  # nothing ever came under it; what was known when it was sent was too old (A5), no more
        decided, is_ours = await self._rebase(self._target.uid, landed.count, len(self._legs))
        self._legs = decided.legs(self._at)
        self._conditional_until = None
        if not is_ours:
            # Another driver's, which may have appended by it, before the place that was looked at last.
            self._landed = Landed(self._at, self._target.count, end=self._target.end_offset)
            await self._look()

    async def _ask_the_table(self) -> None:
        """Headers are gone. As long as the log knows the producer, it says of each frame whether it came."""
        landed = self._landed
        landed.end = await self._log.offsets_at(self._target.topic, "latest", uid=self._target.uid)
        if landed.count < self._leg.record:
            landed.passed(self._leg.record - landed.count)  # somebody saw those before the ledger said so
        unasked = 0
        async for copied in staged_frames(self._log, self._manifest, self._at, landed.count):
            count = copied.frame.header.count
            if self._identity(copied.record).sequence == 0:
                # To ask with this one would append it if the log knows of nothing: the next one is asked.
                unasked = count
                continue
            was_there = await self._ask(copied)
            landed.passed(unasked + count)
            landed.leg, unasked = len(self._legs) - 1, 0
            if not was_there:
                return
        if unasked:
            raise self._in_doubt()

    async def _ask(self, copied: Copied) -> bool:
        """Whether a frame came before; if it is the next one, it comes now."""
        sequencer = self._sequencer(copied.record)
        try:
            await sequencer.put_frame(copied.frame).wait(0)
        except DuplicateSequence:
            return True
        except UnknownProducer as error:
            raise self._in_doubt() from error
        finally:
            sequencer.close(ConnectionFailed("the question was answered"))
        return False

    def _in_doubt(self) -> CommitInDoubt:
        target, batch = self._target, self._manifest.batch
        return CommitInDoubt(
            f"batch {batch} was being appended to {target.topic} from offset {target.end_offset} on; "
            f"records behind that were dropped since, and the log has forgotten who appended: nobody can say "
            f"how many of the batch's {target.count} records are there",
        )
