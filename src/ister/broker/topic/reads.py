"""The reading side of a topic: the whole chain as one line, from memory, the open file, or sealed ones.

Only committed records are read. At each place the metadata says which segment holds the offset; where its
bytes are is looked up here. Damage is `CorruptSegment` with the offset, a trimmed or unborn offset is
`OffsetOutOfRange` with the range that is there: never an early end (promise 5). Damage of one segment is that
segment's: a broken open one leaves the sealed ones readable, and only its own range and the end are unknown.
A read that failed is no damage (`ister.wal.read_faults`): another copy is asked, or the reader asks again.
Offsets that an operator has given up are `RecordsLost` with their range, at every node alike (F6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ister.broker.losses.gone import is_gone
from ister.broker.node.storage import Storage
from ister.broker.topic.location import (
    Follower,
    GivenUp,
    Here,
    Location,
    Remote,
    Trimmed,
    Unavailable,
)
from ister.errors import (
    CorruptSegment,
    IsterError,
    NotLeader,
    OffsetOutOfRange,
    RecordsLost,
    UnknownTopic,
)
from ister.metadata.state import SegmentState, TopicState
from ister.protocol.peer import node_of
from ister.replication.copies.copies import Read
from ister.wal.followed import FollowedSegment
from ister.wal.read_faults import REPEAT_SECONDS, is_medium_error, read_failed
from ister.wal.reader import Found, first_offset_at_or_after, found_in, plan_read, plan_search
from ister.wal.recovery import SegmentIdentity
from ister.wal.segment import Segment

CURRENT_SECONDS = 1.0
"""How long the metadata leader has to say what is new, before somebody is told that records are gone."""


class ReadableTopic:
    """A topic whose committed records can be read. `TopicLog` adds the writing.

    Protected, for the subclass, which alone sets them:

    - `_storage`: what the node's topics share.
    - `_segment`: the segment that is open here. For a moment in each handoff it is the one just sealed, and
      then None; `_current` is never either.
    - `_fault`: why the open segment could not be opened, until it is. Raise a copy of it (`again`).

    The subclass calls `_wake_waiters` at every commit and at the deletion.
    """

    def __init__(self, storage: Storage, state: TopicState) -> None:
        self.state = state
        self.is_deleted = False
        self.seen_end = 0
        """How far another node that leads is known to have come, by what it answered; for people (F6)."""
        self._storage = storage
        self._segment: Segment | None = None
        self._fault: IsterError | None = None
        self._waiters: list[Callable[[], None]] = []
        self._distrusted = 0
        """The uid of an open segment whose copy here was found damaged."""
        self._unread = (0, 0.0)
        """The uid of an open segment of which the disk could not read something, and when that was first."""

    @property
    def leads(self) -> bool:
        """Whether the chain's open segment is this node's to append to."""
        return self.state.open_segment.leader == self._storage.member

    def locate(self, offset: int) -> Location:
        """Where the record at this offset is, or will be once it is written."""
        segment = self.state.holding(offset)
        if segment is None or offset < self.state.start_offset:
            return Trimmed()
        if segment.lost_from is not None and offset >= segment.lost_from:
            assert segment.end_offset is not None
            return GivenUp(segment.lost_from, segment.end_offset)
        copy = None if segment.is_sealed else self.followed_log
        if copy is not None and copy.identity.base_offset <= offset <= copy.committed_end:
            return Follower(segment, copy)
        return self.whereabouts(segment)

    def is_elsewhere(self, offset: int) -> bool:
        """Whether other nodes are to be asked for it."""
        return isinstance(self.locate(offset), Follower | Remote)

    def whereabouts(self, segment: SegmentState) -> Here | Remote | Unavailable:
        """Who answers for a segment."""
        if not segment.is_sealed:
            return Here(segment) if segment.leader == self._storage.member else Remote(segment)
        is_served = self._storage.replication.completions.is_served(segment.uid)
        if self._storage.member in segment.replicas and is_served:
            return Here(segment)
        if is_gone(segment, self._storage.metadata.state.nodes):
            return Unavailable(segment)
        return Remote(segment)

    @property
    def followed_log(self) -> FollowedSegment | None:
        """The open segment's copy here, if this node follows it and may read from it (F5)."""
        uid = self.state.open_segment.uid
        if self.leads or self.is_deleted or uid == self._distrusted:
            return None
        return self._storage.replication.copies.follower(uid)

    def distrust_copy(self, segment_uid: int) -> None:
        """The copy of the open segment here is damaged: readers are sent to its leader."""
        self._distrusted = segment_uid

    def is_given_up(self, offset: int) -> bool:
        """Whether an operator has given up what was there (F6)."""
        return bool(self.state.lost) and isinstance(self.locate(offset), GivenUp)

    async def ensure_open(self) -> Segment:
        """The chain's open segment, opened if need be; raises what prevents it."""
        raise NotImplementedError

    @property
    def _current(self) -> Segment | None:
        """The segment that is open both here and in the chain."""
        segment = self._segment
        return (
            segment if segment is not None and segment.identity.uid == self.state.open_segment.uid else None
        )

    @property
    def end_offset(self) -> int:
        """The committed end as far as it is known; exact once the open segment is open."""
        return self._current.committed_end if self._current else self.state.open_segment.base_offset

    async def known_end(self) -> int:
        """The committed end; raises what prevents it from being known."""
        segment = self._current or await self.ensure_open()
        return segment.committed_end

    async def confirmed_end(self) -> int:
        """The committed end as of now; raises what prevents it from being known."""
        end = await self.known_end()
        await self._confirm_end(self._current)
        return end

    async def _confirm_end(self, segment: Segment | None) -> None:
        """Raise `NotLeader` unless the open segment could not have been ended by others without this node
        having heard: a reader is never told of an early end (promise 5)."""
        raise NotImplementedError

    async def is_at_end(self, offset: int) -> bool:
        """Whether the next record committed will be at `offset`. Sealed offsets need no open segment."""
        return offset >= self.state.open_segment.base_offset and offset == await self.known_end()

    async def read(self, offset: int, max_bytes: int) -> Found:
        """Whole committed frames from the one that holds `offset`; empty at the end."""
        if self.is_deleted:
            raise self._gone()
        found = self.locate(offset)
        if isinstance(found, Here | Remote | Unavailable):
            led = self._led_until_now(found.segment, offset)
            if led is not None:
                return await self._read_led(led, offset, max_bytes)
        match found:
            case Here(segment):
                read = self._read_sealed if segment.is_sealed else self._read_on
                return await read(segment, offset, max_bytes)
            case Follower(segment) | Remote(segment):
                # The chain has grown since somebody looked where it is: who asked looks again.
                raise NotLeader(f"{self.state.key_of(segment)} is on node {node_of(segment.leader)}")
            case Unavailable():
                raise await self._unavailable(offset)
            case GivenUp(start, end):
                raise self._given_up(offset, start, end)
            case Trimmed():
                raise self.out_of_range(offset, await self._likely_end())

    def _led_until_now(self, state: SegmentState, offset: int) -> Segment | None:
        """A segment that was sealed a moment ago and is still open here, if it has the offset: it was sealed
        by another node, perhaps, and then further on than was committed here."""
        segment = self._segment
        if segment is None or segment.identity.uid != state.uid or not state.is_sealed:
            return None
        return segment if state.lost_from is None and offset < segment.committed_end else None

    async def _read_on(self, state: SegmentState, offset: int, max_bytes: int) -> Found:
        """From the open segment, which this node leads; it may be sealed meanwhile."""
        end = await self.known_end()
        if not self.state.start_offset <= offset <= end:
            raise self.out_of_range(offset, end)
        if offset == end:
            await self._confirm_end(self._current)
            if self.end_offset > offset and not self.is_deleted:
                return await self.read(offset, max_bytes)  # records came while others were asked
            return found_in([])
        segment = self._segment
        if segment is None or segment.identity.uid != state.uid or self._current is not segment:
            return await self.read(offset, max_bytes)  # sealed while the end was looked for
        return await self._read_led(segment, offset, max_bytes)

    async def _read_led(self, segment: Segment, offset: int, max_bytes: int) -> Found:
        try:
            found = await self.read_open(segment, offset, max_bytes)
        except CorruptSegment as error:
            self._found_damage(segment, error)
            raise
        except OSError as error:
            raise self._failed_in_led(segment, f"offset {offset}", error) from error
        if found.damage is not None:
            self._found_damage(segment, found.damage)
        return found

    def _failed_in_led(self, segment: Segment, where: str, error: OSError) -> IsterError:
        """Nobody else answers for an open segment: the reader asks again. If its leader's disk cannot read
        then, or ever again while it is open, those who have other copies end it: that costs little."""
        failed, now = read_failed(segment.identity.key, where, error), asyncio.get_running_loop().time()
        if is_medium_error(error) and segment.replication is not None:
            uid, since = self._unread
            if uid != segment.identity.uid:
                self._unread = segment.identity.uid, now
            elif now - since >= REPEAT_SECONDS:
                self._found_damage(segment, CorruptSegment(failed.message))
        return failed

    def _found_damage(self, segment: Segment, error: CorruptSegment) -> None:
        """In the log of the segment that this node leads. Returns if there is nobody else to ask."""
        raise NotImplementedError

    async def _likely_end(self) -> int:
        """For a message: the end if it can be known, else as far as it is."""
        try:
            return await self.known_end()
        except IsterError:
            return self.end_offset

    async def read_open(self, segment: Segment, offset: int, max_bytes: int) -> Found:
        """Committed frames of a segment that is appended to, here or by its leader. `OSError` if it could not
        be read: what that means is not the same to both."""
        hot = segment.tail.read(offset, segment.committed_end, max_bytes)
        if hot is not None:
            return found_in(hot)
        key = segment.identity.key
        segment.hold()
        try:
            plan = plan_read(
                key,
                segment.file,
                segment.index,
                segment.committed_position,
                segment.committed_end,
                offset,
                max_bytes,
            )
            return await self._storage.disk.run(plan.run_checked)
        finally:
            segment.release()

    async def _read_sealed(self, state: SegmentState, offset: int, max_bytes: int) -> Found:
        def read() -> Awaitable[Found]:
            return self._storage.sealed.read(self._identity(state), state, offset, max_bytes)

        try:
            found = await read()
        except CorruptSegment as error:
            self._met_damage(state, offset, error)
            raise
        except OSError as error:
            raise self._failed_in_sealed(state, f"offset {offset}", error, read) from error
        if found.damage is not None:
            self._met_damage(state, offset, found.damage)
        return found

    def _met_damage(self, state: SegmentState, offset: int, error: CorruptSegment) -> None:
        """In a sealed segment. Returns if no copy is better than this one: what is good of it is served."""
        if self.is_deleted:
            raise self._gone() from None
        if offset < self.state.start_offset:
            raise self.out_of_range(offset, self.end_offset) from None  # trimmed while it was being read
        self._check_is_current(error)
        self._look_elsewhere(state.uid, error)

    def _look_elsewhere(self, segment_uid: int, error: CorruptSegment) -> None:
        """Of a damaged copy where there are others: it is not served from any more, and is mended."""
        replication = self._storage.replication
        place = replication.copies.place(self.state.uid, segment_uid)
        if place is not None and replication.completions.suspect(place, error.message):
            raise NotLeader(f"this node's copy is not served: {error.message}") from error

    def _failed_in_sealed(self, state: SegmentState, where: str, error: OSError, read: Read) -> IsterError:
        """Of a read that failed, and that `read` does again: `NotLeader` where another copy is asked."""
        failed, replication = read_failed(self.state.key_of(state), where, error), self._storage.replication
        place = replication.copies.place(self.state.uid, state.uid)
        if place is not None and replication.completions.read_failed(place, error, read):
            return NotLeader(f"this node's copy is not served now: {failed.message}")
        return failed

    def _check_is_current(self, error: CorruptSegment) -> None:
        """What is known here right after a start may be older than this node's last life, which has removed
        what was trimmed or deleted: what is not there is called damaged only by who knows better."""
        if not self._storage.may_lead.is_set():
            raise NotLeader(
                f"node {self._storage.node_id} was started and does not know yet what was trimmed since: "
                f"{error.message}"
            ) from error

    def out_of_range(self, offset: int, end: int) -> OffsetOutOfRange:
        start = self.state.start_offset
        there = f"it has {start} to {end - 1}" if end > start else f"it is empty, and starts at {end}"
        return OffsetOutOfRange(f"offset {offset} of topic {self.state.name} is not there: {there}")

    def _given_up(self, offset: int, start: int, end: int) -> RecordsLost:
        return RecordsLost(
            f"offset {offset} of topic {self.state.name} is lost, with all from {start} to {end - 1}: the "
            f"node that had them could not be reached, and an operator gave them up",
            hint=f"Read on from offset {end}.",
            offsets=(start, end),
        )

    async def _unavailable(self, offset: int) -> IsterError:
        """That it is lost, unless a copy was registered that this node has not heard of: what is told is
        final."""
        if not self._storage.metadata.is_alone:
            await self._storage.metadata.read_index(CURRENT_SECONDS)
        found = self.locate(offset)
        if not isinstance(found, Unavailable):
            return NotLeader(f"the segment of {self.state.name} that has offset {offset} has changed")
        start, end = found.segment.base_offset, found.segment.data_end
        assert end is not None
        nodes = ", ".join(str(node_of(member)) for member in found.segment.replicas)
        return RecordsLost(
            f"offset {offset} of topic {self.state.name} cannot be read, with all from {start} to {end - 1}: "
            f"its only copies were on disks that left the cluster, of node {nodes}",
            hint=f"Read on from offset {end}. `ister topic recover {self.state.name}` records the loss.",
            offsets=(start, end),
        )

    def wait_for_commit(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, at the next commit or deletion."""
        self._waiters.append(wake)

    def stop_waiting(self, wake: Callable[[], None]) -> None:
        if wake in self._waiters:
            self._waiters.remove(wake)

    def first_since(self, time_us: int) -> SegmentState:
        """The segment in which the first record appended at or after a time is, or would be."""
        for state in self.state.segments[:-1]:
            if state.last_append_time_us < time_us or state.is_empty:
                continue
            if not isinstance(self.whereabouts(state), Unavailable):
                return state
        return self.state.open_segment

    async def offset_at(self, time_us: int) -> int:
        """The first offset appended at or after a time; the end if there is none.

        Asked of a node that has the segment in which that is (`first_since`); raises `NotLeader` if that
        is, or meanwhile became, another node's.

        Others append, seal and trim meanwhile. So a segment is looked through once it can no longer grow, and
        the open one up to an end that is taken together with where the search in it stops.
        """
        while True:
            if self.is_deleted:
                raise self._gone()
            state = self.first_since(time_us)
            if not isinstance(self.whereabouts(state), Here):
                raise self._led_elsewhere(state)
            if state.is_sealed:
                found = await self._sealed_offset_at(state, time_us)
                if found is not None:
                    return found
            else:
                segment = await self.ensure_open()
                if self.first_since(time_us).uid == segment.identity.uid:
                    return await self._open_offset_at(segment, time_us)

    def _led_elsewhere(self, state: SegmentState) -> NotLeader:
        return NotLeader(f"{self.state.key_of(state)} is led by node {node_of(state.leader)}")

    async def _sealed_offset_at(self, state: SegmentState, time_us: int) -> int | None:
        """None if the segment was trimmed while it was being read."""

        def read() -> Awaitable[int | None]:
            return self._storage.sealed.offset_at(self._identity(state), state, time_us)

        try:
            found = await read()
            if found is None:
                raise CorruptSegment(
                    f"{self.state.key_of(state)} was sealed with a record appended at "
                    f"{state.last_append_time_us}, and has none from {time_us} on"
                )
            return found
        except CorruptSegment as error:
            if self.is_deleted:
                raise self._gone() from None
            if state in self.state.segments:
                self._check_is_current(error)
                self._look_elsewhere(state.uid, error)
                raise
            return None
        except OSError as error:
            raise self._failed_in_sealed(state, f"time {time_us}", error, read) from error

    async def _open_offset_at(self, segment: Segment, time_us: int) -> int:
        key, end = segment.identity.key, segment.committed_end
        plan = plan_search(key, segment.file, segment.index, segment.committed_position, end, time_us)
        segment.hold()
        try:
            found = await self._storage.disk.run(lambda: first_offset_at_or_after(plan, time_us))
        except CorruptSegment as error:
            self._found_damage(segment, error)
            raise
        except OSError as error:
            raise self._failed_in_led(segment, f"time {time_us}", error) from error
        finally:
            segment.release()
        if found is None:
            await self._confirm_end(segment)
            return end
        return found

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()

    def _identity(self, segment: SegmentState) -> SegmentIdentity:
        path = segment_path(self.state.uid, segment)
        return SegmentIdentity(self.state.key_of(segment), segment.uid, segment.base_offset, path)

    def _gone(self) -> UnknownTopic:
        return UnknownTopic(f"topic {self.state.name} was deleted")

    # For people.

    @property
    def bytes(self) -> int:
        return sum(segment.end_position for segment in self.state.segments) + self.open_segment_bytes

    @property
    def producers(self) -> int:
        return len(self._segment.producers) if self._segment else 0

    @property
    def open_segment_bytes(self) -> int:
        return self._current.position if self._current else 0

    @property
    def last_append_time_us(self) -> int:
        return self._segment.last_append_time_us if self._segment else 0

    @property
    def trouble(self) -> str:
        if self._fault is not None:
            return self._fault.message
        return self._segment.failure.message if self._segment and self._segment.failure else ""


def segment_path(topic_uid: int, segment: SegmentState) -> str:
    return f"segments/{topic_uid:016d}/{segment.segment:08d}-{segment.uid:016d}"
