"""Reading a topic's sealed segments from this node's copies, and what a read that went wrong says of a copy.

Damage is told to whom it concerns: where another copy may be better, this one is not served from any more and
the reader is sent on; where there is none, what is good of it is served and the damage named. A read that
failed is no damage (`ister.wal.read_faults`): another copy is asked, or the reader asks again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ister.broker.node.storage import Storage
from ister.broker.topic.known import KnownTopic
from ister.errors import CorruptSegment, IsterError, NotLeader, OffsetOutOfRange
from ister.metadata.state import SegmentState
from ister.replication.copies.copies import Read
from ister.wal.read_faults import read_failed
from ister.wal.reader import Found


class SealedReads:
    def __init__(self, topic: KnownTopic, storage: Storage, end_offset: Callable[[], int]) -> None:
        """`end_offset` is where the topic ends, as far as is known: for what people are told."""
        self._topic = topic
        self._end_offset = end_offset
        self._storage = storage

    async def read(self, segment: SegmentState, offset: int, max_bytes: int) -> Found:
        identity = self._topic.identity_of(segment)

        def read() -> Awaitable[Found]:
            return self._storage.sealed.read(identity, segment, offset, max_bytes)

        try:
            found = await read()
        except CorruptSegment as error:
            self._met_damage(segment, offset, error)
            raise
        except OSError as error:
            raise self._failed(segment, f"offset {offset}", error, read) from error
        if found.damage is not None:
            self._met_damage(segment, offset, found.damage)
        return found

    async def offset_at(self, segment: SegmentState, time_us: int) -> int | None:
        """None if the segment was trimmed while it was being read."""
        topic, identity = self._topic, self._topic.identity_of(segment)

        def read() -> Awaitable[int | None]:
            return self._storage.sealed.offset_at(identity, segment, time_us)

        try:
            found = await read()
            if found is None:
                raise CorruptSegment(
                    f"{identity.key} was sealed with a record appended at {segment.last_append_time_us}, and "
                    f"has none from {time_us} on"
                )
            return found
        except CorruptSegment as error:
            if topic.is_deleted:
                raise topic.deleted() from None
            if segment in topic.state.segments:
                self._check_is_current(error)
                self.suspect(segment.uid, error)
                raise
            return None
        except OSError as error:
            raise self._failed(segment, f"time {time_us}", error, read) from error

    def _met_damage(self, segment: SegmentState, offset: int, error: CorruptSegment) -> None:
        """Returns if no copy is better than this one: what is good of it is served."""
        topic = self._topic
        if topic.is_deleted:
            raise topic.deleted() from None
        if offset < topic.state.start_offset:  # trimmed while it was being read
            raise out_of_range(topic, offset, self._end_offset()) from None
        self._check_is_current(error)
        self.suspect(segment.uid, error)

    def suspect(self, segment_uid: int, error: CorruptSegment) -> None:
        """A damaged copy, where there are others, is not served from any more, and is mended."""
        replication = self._storage.replication
        place = replication.copies.place(self._topic.state.uid, segment_uid)
        if place is not None and replication.completions.suspect(place, error.message):
            raise NotLeader(f"this node's copy is not served: {error.message}") from error

    def _failed(self, segment: SegmentState, where: str, error: OSError, read: Read) -> IsterError:
        """Of a read that failed, and that `read` does again: `NotLeader` where another copy is asked."""
        topic, replication = self._topic.state, self._storage.replication
        failed = read_failed(topic.key_of(segment), where, error)
        place = replication.copies.place(topic.uid, segment.uid)
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


def out_of_range(topic: KnownTopic, offset: int, end: int) -> OffsetOutOfRange:
    start = topic.state.start_offset
    there = f"it has {start} to {end - 1}" if end > start else f"it is empty, and starts at {end}"
    return OffsetOutOfRange(f"offset {offset} of topic {topic.state.name} is not there: {there}")
