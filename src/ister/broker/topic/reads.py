"""Reading a topic where this node answers for it: the whole chain as one line, from memory or from files.

Only committed records are read. Damage is `CorruptSegment` with the offset, a trimmed or unborn offset is
`OffsetOutOfRange` with the range that is there: never an early end (promise 5). Damage of one segment is that
segment's: a broken open one leaves the sealed ones readable, and only its own range and the end are unknown.
Offsets that nobody has any more are `RecordsLost` with their range, at every node alike (F6).
"""

from __future__ import annotations

from ister.broker.node.storage import Storage
from ister.broker.topic.history_reads import HistoryReads
from ister.broker.topic.known import KnownTopic
from ister.broker.topic.leadership import Leadership
from ister.broker.topic.led_segment import LedSegment
from ister.broker.topic.location import (
    Follower,
    GivenUp,
    Here,
    History,
    Remote,
    Trimmed,
    Unavailable,
)
from ister.broker.topic.places import Places
from ister.broker.topic.sealed_reads import SealedReads, out_of_range
from ister.errors import CorruptSegment, IsterError, NotLeader, RecordsLost, StorageFailed
from ister.io.clock import monotonic
from ister.io.disk import Disk
from ister.metadata.state import SegmentState, TopicState
from ister.protocol.peer import node_of
from ister.wal.read_faults import REPEAT_SECONDS, is_medium_error, read_failed
from ister.wal.reader import Found, first_offset_at_or_after, found_in
from ister.wal.segment import Segment

CURRENT_SECONDS = 1.0
"""How long the metadata leader has to say what is new, before somebody is told that records are gone."""


class Reads:
    def __init__(
        self, topic: KnownTopic, storage: Storage, places: Places, led: LedSegment, leadership: Leadership
    ) -> None:
        self._topic = topic
        self._leadership = leadership
        self._storage = storage
        self._places = places
        self._led = led
        self._sealed = SealedReads(topic, storage, lambda: self.end_offset)
        self._history = HistoryReads(topic, storage, lambda: self.end_offset)
        self._unread = (0, 0.0)
        """The uid of an open segment of which the disk could not read something, and when that was first."""

    @property
    def state(self) -> TopicState:
        return self._topic.state

    # The end.

    @property
    def end_offset(self) -> int:
        """The committed end as far as it is known; exact once the open segment is open."""
        segment = self._led.current
        return segment.committed_end if segment is not None else self.state.open_segment.base_offset

    async def known_end(self) -> int:
        """The committed end; raises what prevents it from being known."""
        segment = self._led.current or await self._led.ensure_open()
        return segment.committed_end

    async def confirmed_end(self) -> int:
        """The committed end as of now; raises what prevents it from being known."""
        end = await self.known_end()
        await self._leadership.confirm_end(self._led.current)
        return end

    async def is_at_end(self, offset: int) -> bool:
        """Whether the next record committed will be at `offset`. Sealed offsets need no open segment."""
        return offset >= self.state.open_segment.base_offset and offset == await self.known_end()

    # Records.

    async def read(self, offset: int, max_bytes: int) -> Found:
        """Whole committed frames from the one that holds `offset`; empty at the end."""
        if self._topic.is_deleted:
            raise self._topic.deleted()
        found = self._places.locate(offset)
        if isinstance(found, Here | Remote | History | Unavailable):
            led = self._led_until_now(found.segment, offset)
            if led is not None:
                return await self._read_led(led, offset, max_bytes)
        match found:
            case Here(segment):
                read = self._read_sealed if segment.is_sealed else self._read_on
                return await read(segment, offset, max_bytes)
            case History(segment):
                return await self._history.read(segment, offset, max_bytes)
            case Follower(segment) | Remote(segment):
                # The chain has grown since somebody looked where it is: who asked looks again.
                raise NotLeader(f"{self.state.key_of(segment)} is on node {node_of(segment.leader)}")
            case Unavailable():
                raise await self._unavailable(offset)
            case GivenUp(start, end):
                raise self._given_up(offset, start, end)
            case Trimmed():
                raise out_of_range(self._topic, offset, await self._likely_end())

    async def _read_sealed(self, segment: SegmentState, offset: int, max_bytes: int) -> Found:
        """From the copy here; where that is no good and there is no other, from the history."""
        try:
            return await self._sealed.read(segment, offset, max_bytes)
        except (CorruptSegment, StorageFailed):
            if segment.history is None or self._topic.is_deleted:
                raise
            return await self._history.read(segment, offset, max_bytes)

    def _led_until_now(self, state: SegmentState, offset: int) -> Segment | None:
        """A segment that was sealed a moment ago and is still open here, if it has the offset: it was sealed
        by another node, perhaps, and then further on than was committed here."""
        segment = self._led.segment
        if segment is None or segment.identity.uid != state.uid or not state.is_sealed:
            return None
        return segment if state.lost_from is None and offset < segment.committed_end else None

    async def _read_on(self, state: SegmentState, offset: int, max_bytes: int) -> Found:
        """From the open segment, which this node leads; it may be sealed meanwhile."""
        end = await self.known_end()
        if not self.state.start_offset <= offset <= end:
            raise out_of_range(self._topic, offset, end)
        if offset == end:
            await self._leadership.confirm_end(self._led.current)
            if self.end_offset > offset and not self._topic.is_deleted:
                return await self.read(offset, max_bytes)  # records came while others were asked
            return found_in([])
        segment = self._led.current
        if segment is None or segment.identity.uid != state.uid:
            return await self.read(offset, max_bytes)  # sealed while the end was looked for
        return await self._read_led(segment, offset, max_bytes)

    async def _likely_end(self) -> int:
        """For a message: the end if it can be known, else as far as it is."""
        try:
            return await self.known_end()
        except IsterError:
            return self.end_offset

    async def _unavailable(self, offset: int) -> IsterError:
        """That it is lost, unless a copy was registered that this node has not heard of: what is told is
        final."""
        if not self._storage.metadata.is_alone:
            await self._storage.metadata.read_index(CURRENT_SECONDS)
        name, found = self.state.name, self._places.locate(offset)
        if not isinstance(found, Unavailable):
            return NotLeader(f"the segment of {name} that has offset {offset} has changed")
        start, end = found.segment.base_offset, found.segment.data_end
        assert end is not None
        nodes = ", ".join(str(node_of(member)) for member in found.segment.replicas)
        return RecordsLost(
            f"offset {offset} of topic {name} cannot be read, with all from {start} to {end - 1}: "
            f"its only copies were on disks that left the cluster, of node {nodes}",
            hint=f"Read on from offset {end}. `ister topic recover {name}` records the loss.",
            offsets=(start, end),
        )

    def _given_up(self, offset: int, start: int, end: int) -> RecordsLost:
        return RecordsLost(
            f"offset {offset} of topic {self.state.name} is lost, with all from {start} to {end - 1}: the "
            f"node that had them could not be reached, and an operator gave them up",
            hint=f"Read on from offset {end}.",
            offsets=(start, end),
        )

    # The segment that this node leads.

    async def _read_led(self, segment: Segment, offset: int, max_bytes: int) -> Found:
        try:
            found = await read_open(self._storage.disk, segment, offset, max_bytes)
        except CorruptSegment as error:
            self._found_damage(segment, error)
            raise
        except OSError as error:
            raise self._failed(segment, f"offset {offset}", error) from error
        if found.damage is not None:
            self._found_damage(segment, found.damage)
        return found

    def _failed(self, segment: Segment, where: str, error: OSError) -> IsterError:
        """Nobody else answers for an open segment: the reader asks again. If its leader's disk cannot read
        then, or ever again while it is open, those who have other copies end it: that costs little."""
        failed, now = read_failed(segment.identity.key, where, error), monotonic()
        if is_medium_error(error) and segment.replication is not None:
            uid, since = self._unread
            if uid != segment.identity.uid:
                self._unread = segment.identity.uid, now
            elif now - since >= REPEAT_SECONDS:
                self._found_damage(segment, CorruptSegment(failed.message))
        return failed

    def _found_damage(self, segment: Segment, error: CorruptSegment) -> None:
        self._leadership.found_damage(segment, error)
        if error.offsets is not None:
            self._sealed.suspect(segment.identity.uid, error)  # sealed by now, perhaps, with other copies

    # By time.

    async def offset_at(self, time_us: int) -> int:
        """The first offset appended at or after a time; the end if there is none.

        Asked of a node that has the segment in which that is (`first_since`); raises `NotLeader` if that
        is, or meanwhile became, another node's.

        Others append, seal and trim meanwhile. So a segment is looked through once it can no longer grow, and
        the open one up to an end that is taken together with where the search in it stops.
        """
        places = self._places
        while True:
            if self._topic.is_deleted:
                raise self._topic.deleted()
            state = places.first_since(time_us)
            where = places.whereabouts(state)
            if isinstance(where, History):
                found = await self._history.offset_at(state, time_us)
                if found is not None:
                    return found
                continue
            if not isinstance(where, Here):
                raise NotLeader(f"{self.state.key_of(state)} is led by node {node_of(state.leader)}")
            if state.is_sealed:
                found = await self._sealed.offset_at(state, time_us)
                if found is not None:
                    return found
            else:
                segment = await self._led.ensure_open()
                if places.first_since(time_us).uid == segment.identity.uid:
                    return await self._open_offset_at(segment, time_us)

    async def _open_offset_at(self, segment: Segment, time_us: int) -> int:
        end, plan = segment.committed_end, segment.plan_search(time_us)
        segment.hold()
        try:
            found = await self._storage.disk.run(lambda: first_offset_at_or_after(plan, time_us))
        except CorruptSegment as error:
            self._found_damage(segment, error)
            raise
        except OSError as error:
            raise self._failed(segment, f"time {time_us}", error) from error
        finally:
            segment.release()
        if found is None:
            await self._leadership.confirm_end(segment)
            return end
        return found


async def read_open(disk: Disk, segment: Segment, offset: int, max_bytes: int) -> Found:
    """Committed frames of a segment that is appended to, here or by its leader. `OSError` if it could not be
    read: what that means is not the same to both."""
    hot = segment.tail.read(offset, segment.committed_end, max_bytes)
    if hot is not None:
        return found_in(hot)
    segment.hold()
    try:
        return await disk.run(segment.plan_committed(offset, max_bytes).run_checked)
    finally:
        segment.release()
