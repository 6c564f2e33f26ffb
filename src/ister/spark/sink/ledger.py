"""The ledger of an origin as it is read: what is decided, what is done, how identities go on.

A ledger is appended to on the condition that it still ends where it was read, so that whoever decides has
seen all that was decided before. A view that is behind is harmless: its condition fails.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ister.client.log import Log
from ister.errors import OtherCluster, UnknownTopic
from ister.protocol.messages import TopicDescription
from ister.spark.sink.origin import make_ledger
from ister.spark.sink.records import Done, Entry, Leg, Manifest, Position, Rebase, decode_entry, encode_entry

_FIRST_LOOK: Final = 4
"""Records from the end: the newest manifest and what follows it, and nearly always no more is needed."""
_KEPT: Final = 1000
_TRIMMED_EVERY: Final = 256


class Decided(NamedTuple):
    """A batch's manifest and what came after it."""

    manifest: Manifest
    rebases: tuple[tuple[int, Rebase], ...]
    """With their offsets, which are their epochs."""
    done: Done | None

    def legs(self, target: int) -> list[Leg]:
        """Which identity each part of a target's records has."""
        asked = self.manifest.targets[target]
        first = Leg(0, asked.epoch, asked.sequence)
        return [
            first,
            *(Leg(entry.record, offset, 0) for offset, entry in self.rebases if entry.uid == asked.uid),
        ]

    def positions(self) -> list[Position]:
        """Where each identity stands behind this batch."""
        last = {
            target.uid: (self.legs(at)[-1], target.count) for at, target in enumerate(self.manifest.targets)
        }
        found = []
        for position in self.manifest.positions:
            if position.uid in last:
                leg, count = last[position.uid]
                position = Position(position.uid, leg.epoch, leg.sequence + count - leg.record)
            found.append(position)
        return found


class Ledger(NamedTuple):
    """The last entries of a ledger, as of `end`."""

    topic: str
    uid: int
    end: int
    decided: tuple[Decided, ...]
    """Oldest first; of the oldest ones that are kept, not all may be here."""
    is_whole: bool
    """Whether nothing that is kept is missing here."""

    @property
    def newest(self) -> Decided | None:
        return self.decided[-1] if self.decided else None

    def of(self, batch: int) -> Decided | None:
        return next((found for found in reversed(self.decided) if found.manifest.batch == batch), None)


async def read_ledger(log: Log, topic: str, batch: int | None = None) -> Ledger:
    """As it is now, as far back as is needed to know about `batch`, or about the newest one; made if it is
    not there."""
    try:
        there = await log.describe_topic(topic)
    except UnknownTopic:
        there = await make_ledger(log, topic)
    start, end, count = there.start_offset, there.end_offset, _FIRST_LOOK
    while True:
        first = max(start, end - count)
        entries = await _entries(log, there, first, end)
        decided = fold(entries)
        is_whole = first == start
        reaches = bool(decided) and (batch is None or decided[0].manifest.batch <= batch)
        if is_whole or reaches:
            return Ledger(topic, there.uid, end, decided, is_whole)
        count *= 16


async def check_begun(log: Log, topic: str, batch: int) -> None:
    """That a query's later batch finds the ledger that its first one made. Else the checkpoint is used with
    another cluster, or the ledger was deleted: nobody can say what of this batch, or of those before, was
    appended, and where."""
    try:
        await log.describe_topic(topic)
    except UnknownTopic as error:
        raise OtherCluster(
            f"batch {batch} of a query was asked for, and cluster {log.cluster_id} has no {topic}, which its "
            "first batch made: the checkpoint is of a query that wrote to another cluster, or the ledger was "
            "deleted",
            hint="Give the bootstrap.servers of the cluster that the query wrote to, or a fresh "
            "checkpointLocation. If the query had another sink before, and nothing of this batch can be "
            f"here, say so: ister topic create {topic}",
        ) from error


async def append_entry(log: Log, ledger: Ledger, entry: Entry, *, expects_end: bool = True) -> int:
    """Where it is now; `UnexpectedOffset` if the ledger has gone on since it was read."""
    expected = ledger.end if expects_end else None
    appended = await log.append(ledger.topic, [encode_entry(entry)], expected_offset=expected)
    return appended.base_offset


async def trim_ledger(log: Log, ledger: Ledger, end: int) -> None:
    """Keep the last `_KEPT` entries at least; looked at now and then only."""
    if end // _TRIMMED_EVERY != ledger.end // _TRIMMED_EVERY and end > _KEPT:
        await log.trim_topic(ledger.topic, end - _KEPT, uid=ledger.uid)


def fold(entries: list[tuple[int, Entry]]) -> tuple[Decided, ...]:
    """What entries say of their batches. Those before the first manifest belong to one that is not here."""
    found: list[Decided] = []
    for offset, entry in entries:
        if isinstance(entry, Manifest):
            found.append(Decided(entry, (), None))
            continue
        last = next((at for at in reversed(found) if at.manifest.batch == entry.batch), None)
        if last is None:
            continue
        place = found.index(last)
        if isinstance(entry, Rebase):
            found[place] = last._replace(rebases=(*last.rebases, (offset, entry)))
        elif last.done is None:
            found[place] = last._replace(done=entry)
    return tuple(found)


async def _entries(log: Log, ledger: TopicDescription, start: int, end: int) -> list[tuple[int, Entry]]:
    if start >= end:
        return []
    return [
        (record.offset, decode_entry(ledger.topic, record.offset, record.value))
        async for record in log.read(ledger.topic, start=start, end=end, uid=ledger.uid)
    ]
