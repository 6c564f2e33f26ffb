"""The reading side of a topic: the whole chain as one line, from memory, the open file, or sealed ones.

Only committed records are read. At each place the metadata says which segment holds the offset; where its
bytes are is looked up here. Damage is `CorruptSegment` with the offset, a trimmed or unborn offset is
`OffsetOutOfRange` with the range that is there: never an early end (promise 5).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ister.broker.sealed import SealedSegments
from ister.errors import CorruptSegment, IsterError, OffsetOutOfRange, UnknownTopic
from ister.io.clock import Clock
from ister.io.disk import Disk
from ister.metadata.state import SegmentState, TopicState
from ister.metadata.store import MetadataStore
from ister.wal.group_commit import GroupCommit
from ister.wal.leases import Leases
from ister.wal.reader import Found, first_offset_at_or_after, found_in, plan_read
from ister.wal.recovery import SegmentIdentity
from ister.wal.segment import Segment
from ister.wal.tail import HotTail


@dataclass(frozen=True)
class Storage:
    """What all topics of a node share."""

    node_id: int
    disk: Disk
    clock: Clock
    metadata: MetadataStore
    commits: GroupCommit
    leases: Leases
    hot: HotTail
    sealed: SealedSegments
    max_held_appends: int
    max_held_bytes: int
    max_held_seconds: float


class ReadableTopic:
    """A topic whose committed records can be read. `TopicLog` adds the writing."""

    def __init__(self, storage: Storage, state: TopicState) -> None:
        self.state = state
        self.is_deleted = False
        self._storage = storage
        self._segment: Segment | None = None
        self._fault: IsterError | None = None
        self._waiters: list[Callable[[], None]] = []

    async def ensure_open(self) -> Segment:
        """The open segment, opened if need be; raises what prevents it."""
        raise NotImplementedError

    @property
    def end_offset(self) -> int:
        """The committed end as far as it is known; exact once the open segment is open."""
        return self._segment.committed_end if self._segment else self.state.open_segment.base_offset

    async def known_end(self) -> int:
        if self._segment is None:
            await self.ensure_open()
        return self.end_offset

    async def read(self, offset: int, max_bytes: int) -> Found:
        """Whole committed frames from the one that holds `offset`; empty at the end."""
        end = await self.known_end()
        if not self.state.start_offset <= offset <= end:
            raise self.out_of_range(offset, end)
        state = self.state.holding(offset)
        if state is None or offset == end:
            return found_in([])
        segment = self._segment
        if segment is not None and segment.identity.uid == state.uid:
            hot = segment.tail.read(offset, segment.committed_end, max_bytes)
            if hot is not None:
                return found_in(hot)
            segment.hold()
            try:
                plan = plan_read(
                    segment.identity.key,
                    segment.file,
                    segment.index,
                    segment.committed_position,
                    segment.committed_end,
                    offset,
                    max_bytes,
                )
                return await self._storage.disk.run(plan.run)
            except OSError as error:
                raise CorruptSegment(
                    f"{segment.identity.key} cannot be read at offset {offset}: {error}"
                ) from error
            finally:
                segment.release()
        try:
            return await self._storage.sealed.read(self._identity(state), state, offset, max_bytes)
        except CorruptSegment:
            if self.is_deleted:
                raise self._gone() from None
            if offset < self.state.start_offset:
                raise self.out_of_range(offset, end) from None  # trimmed while it was being read
            raise

    def out_of_range(self, offset: int, end: int) -> OffsetOutOfRange:
        start = self.state.start_offset
        there = f"it has {start} to {end - 1}" if end > start else f"it is empty, and starts at {end}"
        return OffsetOutOfRange(f"offset {offset} of topic {self.state.name} is not there: {there}")

    def wait_for_commit(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, at the next commit or deletion."""
        self._waiters.append(wake)

    def stop_waiting(self, wake: Callable[[], None]) -> None:
        if wake in self._waiters:
            self._waiters.remove(wake)

    async def offset_at(self, time_us: int) -> int:
        """The first offset appended at or after a time; the end if there is none."""
        await self.ensure_open()
        for state in self.state.segments:
            if (
                state.is_sealed
                and state.last_append_time_us >= time_us
                and state.end_offset != state.base_offset
            ):
                try:
                    found = await self._storage.sealed.offset_at(self._identity(state), state, time_us)
                except CorruptSegment:
                    if state in self.state.segments:
                        raise
                    continue  # trimmed while it was being read
                if found is not None:
                    return found
        segment = await self.ensure_open()
        start, limit, key = (
            segment.index.position_for_time(time_us),
            segment.committed_position,
            segment.identity.key,
        )
        segment.hold()
        try:
            found = await self._storage.disk.run(
                lambda: first_offset_at_or_after(key, segment.file, start, limit, time_us)
            )
        except OSError as error:
            raise CorruptSegment(f"{key} cannot be read at time {time_us}: {error}") from error
        finally:
            segment.release()
        return segment.committed_end if found is None else found

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
        sealed = sum(segment.end_position for segment in self.state.segments)
        return sealed + (self._segment.position if self._segment else 0)

    @property
    def producers(self) -> int:
        return len(self._segment.producers) if self._segment else 0

    @property
    def open_segment_bytes(self) -> int:
        return self._segment.position if self._segment else 0

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
