"""Export: sealed segments become objects of the history, in the background, one after the other.

For each segment, in this order only (E1): upload under a name that no other content ever has, if there is
none -> read it back to its last byte -> publish its descriptor through the metadata. Copies on nodes are
released afterwards, by others (`ister.history.releasing`), and never by this.

Fault model: the process may stop at any line; the store may fail, hang, or apply what it said had failed; the
log here may be rotten; several nodes may export the same segment at once, each with its own view.
What holds, and why:
- What is published is there, and is all of the segment: it was read back before.
- An upload that was cut short, or whose answer was lost, is found under its name by whoever comes next, read
  to its end and adopted (E2). If it is bad, the next attempt has another name.
- Two exporters of one segment write the same bytes under the same name, and one publishes.
- A store that is down costs nothing but time: appends never wait for it.
- An object that was reported damaged is made again, under another name, where a node has a whole copy.

The first whole replica that answers exports; where it does not get that done, the next one steps in. What
cannot be exported from here, for whatever reason, holds up no other segment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from ister.errors import ConfigError, IsterError, ObjectExists
from ister.errors import CorruptSegment as Damaged
from ister.failpoints import Step
from ister.history.format import Exported
from ister.history.giving_way import LEAST, GivingWay
from ister.history.names import ObjectName
from ister.history.objects import Making, Verified, seen_in, verify_object
from ister.io.clock import Clock, monotonic
from ister.io.disk import Disk, File
from ister.io.object_store import ObjectStore
from ister.metadata.commands import PublishObject, Result
from ister.metadata.state import SegmentState, TopicState
from ister.metadata.store import MetadataStore
from ister.metadata.topics import HistoryObject
from ister.metrics import Counter, Gauge
from ister.replication.places import Place
from ister.replication.sharing import run_to_end

log = logging.getLogger("ister.history")

SCAN_SECONDS = 30.0
"""How often all segments are looked through for those that wait."""
LOOK_SECONDS = 1.0
"""How often those are looked at: whose turn it is changes with time, with who answers, with who is whole."""
TURN_SECONDS = 30.0
"""So long a replica waits for each that comes before it, and for what its export takes at the least pace."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 15.0
"""Between attempts while the store fails."""
MAX_ATTEMPTS = 8
"""Names tried in one go. More bad objects than this is a store that keeps nothing."""
SEGMENTS_AT_ONCE = 500


@dataclass(slots=True)
class _Waiting:
    topic_uid: int
    size: int
    since: float
    """When this node was told of the segment."""
    rests_until: float = 0.0
    """It was tried a moment ago."""


class Exporter(Protocol):
    """What export needs of its node."""

    member: int
    metadata: MetadataStore

    def place(self, topic_uid: int, segment_uid: int) -> Place | None: ...

    def is_served(self, segment_uid: int) -> bool:
        """Whether nothing is known against the copy of a sealed segment here."""
        ...

    @property
    def found_damage(self) -> Callable[[Place, str], object]:
        """To be told of damage in the log of a segment here."""
        ...


def exported(cluster_id: str, topic: TopicState, segment: SegmentState) -> Exported:
    """What an object of this sealed segment must be."""
    assert segment.data_end is not None
    return Exported(
        cluster_id,
        topic.name,
        topic.uid,
        segment.segment,
        segment.uid,
        segment.base_offset,
        segment.data_end,
        segment.end_position,
    )


def name_of(segment: Exported, attempt: int) -> str:
    return str(
        ObjectName(
            segment.cluster_id,
            segment.topic,
            segment.topic_uid,
            segment.segment,
            segment.segment_uid,
            segment.start_offset,
            segment.end_offset,
            attempt,
        )
    )


class Exporting:
    def __init__(
        self,
        node: Exporter,
        store: ObjectStore,
        disk: Disk,
        clock: Clock,
        *,
        cluster_id: Callable[[], str],
        bytes_per_second: int,
        received: Callable[[], int],
        on_refused: Callable[[IsterError], None],
        reach: Callable[[Step], None],
    ) -> None:
        """`received` is how many bytes this node was sent so far, to write; `on_refused` is told of a store
        that must not be used."""
        self._reach = reach
        self._node = node
        self._store = store
        self._disk = disk
        self._clock = clock
        self._cluster_id = cluster_id
        self._on_refused = on_refused
        self._pace = GivingWay(bytes_per_second, received, lambda: self.waiting_bytes)
        self._waiting: dict[int, _Waiting] = {}
        """Segments with a copy here that are not in the history yet, as far as was looked."""
        self._published: dict[int, tuple[int, float]] = {}
        """By each member: what it has exported last, and when that was heard of."""
        self._woken = asyncio.Event()
        self._pause = FIRST_PAUSE_SECONDS
        self._told = ""
        """What was last said of the store."""
        self.segments = Counter("exported_segments_total", "Sealed segments that this node has exported.")
        self.bytes = Counter("exported_bytes_total", "Bytes that this node has uploaded of them.")
        self.failures = Counter("export_failures_total", "Exports that came to nothing, and are repeated.")
        self.waiting = Gauge(
            "export_waiting_bytes",
            "Bytes of sealed segments with a copy here that are not in the history yet.",
            lambda: self.waiting_bytes,
        )

    @property
    def waiting_bytes(self) -> int:
        return sum(waiting.size for waiting in self._waiting.values())

    def sealed(self, topic_uid: int, segment_uid: int) -> None:
        """The metadata has sealed a segment, or says of an object that it is no good."""
        place = self._node.place(topic_uid, segment_uid)
        if place is not None and self._is_to_be_exported(place.segment):
            self._add(topic_uid, place.segment)
            self._woken.set()

    def published(self, segment_uid: int, by: int) -> None:
        """The metadata has a descriptor of a segment, made by that member."""
        self._waiting.pop(segment_uid, None)
        self._published[by] = segment_uid, monotonic()

    async def run(self) -> None:
        await self._until_it_may_be_used()
        scan_at = 0.0
        while True:
            look_at = min(scan_at, monotonic() + LOOK_SECONDS) if self._waiting else scan_at
            with suppress(TimeoutError):
                async with asyncio.timeout_at(look_at):
                    await self._woken.wait()
            self._woken.clear()
            if monotonic() >= scan_at:
                await self._scan()
                scan_at = monotonic() + SCAN_SECONDS
            for number, uid in enumerate(list(self._waiting), 1):
                await self._look_at(uid)
                if number % SEGMENTS_AT_ONCE == 0:
                    await asyncio.sleep(0)

    # The store.

    async def _until_it_may_be_used(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                await self._store.sweep_unfinished()
                await self._probe()
            except ConfigError as error:
                self._on_refused(error)
                await asyncio.Event().wait()
            except (IsterError, OSError) as error:
                self._tell(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            else:
                return

    async def _probe(self) -> None:
        """A store that overwrites would let one upload destroy what another has published."""
        name = f"{self._cluster_id()}/probe/{self._node.member}-{self._clock.token():016x}"
        await self._store.put_if_absent(name, b"one")
        try:
            await self._store.put_if_absent(name, b"two")
        except ObjectExists:
            pass
        else:
            raise ConfigError(
                f"the store {self._store.location} does not keep what is there: an upload under a name that "
                f"was taken was not refused",
                hint="Use a store that enforces create-if-absent: a filesystem with hard links, S3 with "
                "conditional writes, GCS, Azure.",
            )
        finally:
            await self._store.delete(name)

    def _tell(self, error: Exception) -> None:
        """The same trouble is told once."""
        self.failures.add()
        level = logging.DEBUG if str(error) == self._told else logging.WARNING
        self._told = str(error)
        log.log(level, "the history waits, and is tried again; appends go on: %s", error)

    # Which segments.

    async def _scan(self) -> None:
        """All of them: after a start, and for what is not told here, as that this node is in a list now."""
        seen = 0
        for topic in list(self._node.metadata.state.topics.values()):
            for segment in list(topic.segments):
                if self._is_to_be_exported(segment):
                    self._add(topic.uid, segment)
                seen += 1
                if seen % SEGMENTS_AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _add(self, topic_uid: int, segment: SegmentState) -> None:
        self._waiting.setdefault(segment.uid, _Waiting(topic_uid, segment.end_position, monotonic()))

    def _is_to_be_exported(self, segment: SegmentState) -> bool:
        """Whether a segment is not in the history yet, and this node is to have a copy."""
        return (
            segment.is_sealed
            and (segment.history is None or segment.history.is_to_be_made_anew)
            and not segment.is_empty
            and self._node.member in segment.replicas
        )

    def _is_turn(self, segment: SegmentState, waiting: _Waiting) -> bool:
        """Whether the copy here is whole, and those who come before this node are away, or had their time.

        That begins anew when one of them has exported a segment that was sealed before: it is on its way."""
        metadata, member = self._node.metadata, self._node.member
        order = [one for one in segment.whole if one == member or metadata.is_alive(one)]
        if member not in order:
            return False
        before = order[: order.index(member)]
        heard = [self._published[one] for one in before if one in self._published]
        since = max([waiting.since, *(at for uid, at in heard if uid < segment.uid)])
        return monotonic() - since >= len(before) * (TURN_SECONDS + 2 * waiting.size / LEAST)

    async def _look_at(self, uid: int) -> None:
        """One attempt, if it is time for one. Where the copy here is no good others have theirs before the
        next; while the store fails each waits longer than the one before: it is one for all of them."""
        waiting = self._waiting.get(uid)
        if waiting is None:
            return  # another node was faster
        place = self._node.place(waiting.topic_uid, uid)
        if place is None or not self._is_to_be_exported(place.segment):
            self._waiting.pop(uid)
            return
        is_resting = monotonic() < waiting.rests_until
        if is_resting or not self._is_turn(place.segment, waiting) or not self._node.is_served(uid):
            return
        try:
            await self._export(place)
        except (Damaged, FileNotFoundError) as error:
            log.error("%s was not exported from here: %s", place.identity.key, error)
            self.failures.add()
            self._node.found_damage(place, str(error))
        except OSError as error:
            self._tell(error)  # of the disk here: of the store it would be `StoreUnavailable`
        except IsterError as error:
            self._tell(error)
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
            return
        else:
            self._told, self._pause = "", FIRST_PAUSE_SECONDS
        waiting.rests_until = monotonic() + TURN_SECONDS

    # One segment.

    async def _export(self, place: Place) -> None:
        topic, segment = place.topic, place.segment
        wanted = exported(self._cluster_id(), topic, segment)
        damaged = segment.history
        first = segment.first_attempt if damaged is None else max(segment.first_attempt, damaged.attempt + 1)
        for attempt in range(first, first + MAX_ATTEMPTS):
            name = name_of(wanted, attempt)
            self._reach(Step.EXPORTING)
            try:
                found = await self._upload(place, wanted, name)
            except Damaged as error:
                if error.offsets is not None:
                    raise
                log.error("what is under %s is not what it should be: %s", name, error)
                continue
            self._reach(Step.UPLOADED)
            await self._publish(place, name, attempt, found)
            self._reach(Step.PUBLISHED)
            return
        raise Damaged(
            f"{place.identity.key} cannot be exported: {MAX_ATTEMPTS} objects in {self._store.location} did "
            f"not keep what was uploaded",
            offsets=(segment.base_offset, wanted.end_offset),
        )

    async def _upload(self, place: Place, wanted: Exported, name: str) -> Verified:
        """The object, read back to its end: made now, or found there."""
        file = await run_to_end(self._disk, lambda: self._disk.open(place.identity.path + ".log"), File.close)
        try:
            making = Making(wanted, self._disk, file, f"the log of {place.identity.key}", self._pace)
            await self._store.put_if_absent(name, self._counted(making.pieces()))
        except ObjectExists:
            log.info("an object is there already, and is looked at", extra={"fields": {"object": name}})
        except Damaged as error:
            # Of the log here, not of the object: other names would not mend it.
            raise Damaged(error.message, offsets=(wanted.start_offset, wanted.end_offset)) from error
        finally:
            await run_to_end(self._disk, file.close)
        return await self.verify(name, wanted)

    async def _counted(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            self.bytes.add(len(piece))
            yield piece

    async def verify(self, name: str, wanted: Exported) -> Verified:
        """`ObjectNotFound`: another one's upload was in the way, and came to nothing. It is made again."""
        return await verify_object(self._store, name, wanted, self._disk, self._pace)

    async def verify_published(self, found: HistoryObject, wanted: Exported) -> Verified:
        """Read what a descriptor names to its end. `CorruptSegment`, also if another one was published;
        `ObjectNotFound`. A move, a drain or a person waits for this: it gives way to nobody."""
        store = seen_in(self._store, found)
        verified = await verify_object(store, found.name, wanted, self._disk, self._pace.limit)
        if (verified.size, verified.crc) != (found.size, found.crc):
            raise Damaged(
                f"object {found.name} has {verified.size} bytes with checksum {verified.crc:08x}, its "
                f"descriptor says {found.size} and {found.crc:08x}"
            )
        return verified

    async def _publish(self, place: Place, name: str, attempt: int, found: Verified) -> None:
        command = PublishObject(
            place.topic.uid,
            place.segment.uid,
            name,
            attempt,
            found.footer.end_offset,
            found.size,
            found.crc,
            found.footer.first_append_time_us,
            self._node.member,
            self._clock.now_us(),
            place.segment.history.name if place.segment.history is not None else "",
        )
        outcome = await self._node.metadata.propose(command)
        fields = {
            "segment": place.identity.key,
            "object": name,
            "size": found.size,
            "result": str(outcome.result),
        }
        log.info("exported", extra={"fields": fields})
        if outcome.result is Result.APPLIED:
            self.segments.add()
