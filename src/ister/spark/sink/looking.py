"""How far a batch has come in a target: counted in the headers of its frames, which no log forgets.

Frames of a batch carry producer ids that only its ledger gives out, and sequences that say which of the
batch's records they have. Whatever else is in the topic is passed over.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ister.client.log import Log
from ister.errors import CommitInDoubt, UnknownTopic, invariant
from ister.spark.sink.records import Leg, Place, producer_id


@dataclass
class Landed:
    """What is known to be in a target, of one batch."""

    target: int
    total: int
    count: int = 0
    """So many records are there, the first ones."""
    end: int = 0
    """The target was looked through up to here."""
    leg: int = 0
    """The last leg that any of them came under."""
    places: list[Place] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return self.count >= self.total

    def add(self, record: int, offset: int, count: int) -> None:
        """A frame is there, and so is all that comes before it: a log takes only the next sequence (A5)."""
        invariant(record >= self.count, f"record {record} of a batch lies behind {self.count} others")
        self.count = record + count
        if self.places:
            last = self.places[-1]
            if last.offset + last.count == offset and last.record + last.count == record:
                self.places[-1] = Place(self.target, last.record, last.offset, last.count + count)
                return
        self.places.append(Place(self.target, record, offset, count))

    def passed(self, count: int) -> None:
        """Records that are there, nobody knows where."""
        self.count += count


async def look(log: Log, topic: str, uid: int, ledger_uid: int, legs: list[Leg], landed: Landed) -> None:
    """Go through the target from `landed.end` to where it ends now. Raises `OffsetOutOfRange` or
    `RecordsLost` if headers in between can't be seen."""
    by_id = {producer_id(ledger_uid, uid, leg.epoch): (at, leg) for at, leg in enumerate(legs)}
    end = await log.offsets_at(topic, "latest", uid=uid)
    if end <= landed.end:
        return
    async for frame in log.read(topic, start=landed.end, end=end, uid=uid).frames():
        header = frame.header
        found = by_id.get(header.producer_id)
        if found is None or header.base_offset < landed.end:
            continue
        at, leg = found
        record = leg.record + header.sequence - leg.sequence
        if landed.count <= record < landed.total:
            landed.add(record, header.base_offset, header.count)
            landed.leg = max(landed.leg, at)
    landed.end = end


async def check_same(log: Log, topic: str, uid: int, batch: int) -> int:
    """Where the target begins; `CommitInDoubt` if it is not the one of the manifest any more (I3)."""
    try:
        there = await log.describe_topic(topic)
    except UnknownTopic as error:
        raise not_the_same(topic, uid, batch, "deleted") from error
    if there.uid != uid:
        raise not_the_same(topic, uid, batch, "deleted and made again")
    return there.start_offset


def not_the_same(topic: str, uid: int, batch: int, how: str) -> CommitInDoubt:
    return CommitInDoubt(
        f"batch {batch} was being appended to {topic} (uid {uid}), which was {how} meanwhile"
    )
