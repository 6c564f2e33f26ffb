"""What people are told of a topic: how far it goes, how large it is, what is wrong with it, who is behind.

All of it is what this node knows without asking anybody: of what another leads, the least that there is.
"""

from __future__ import annotations

from ister.broker.node.storage import Storage
from ister.broker.topic.known import KnownTopic
from ister.broker.topic.led_segment import LedSegment
from ister.broker.topic.reads import Reads
from ister.replication.stream.leader import Behind
from ister.wal.followed import FollowedSegment


class TopicFacts:
    def __init__(self, topic: KnownTopic, storage: Storage, reads: Reads, led: LedSegment) -> None:
        self._topic = topic
        self._storage = storage
        self._reads = reads
        self._led = led

    @property
    def end_is_known(self) -> bool:
        """Whether `least_end` is the end: the open segment is open here, and takes appends."""
        segment = self._led.current
        return segment is not None and segment.failure is None

    @property
    def least_end(self) -> int:
        """The committed end, or the least that it can be by what this node has heard of it."""
        copy, uid = self._followed, self._topic.state.open_segment.uid
        told = self._storage.replication.copies.commit_known.get(uid, 0)
        known = copy.known_commit if copy is not None else 0
        return max(self._reads.end_offset, self._topic.seen_end, told, known)

    @property
    def sealed_bytes(self) -> int:
        return sum(segment.end_position for segment in self._topic.state.segments)

    @property
    def bytes(self) -> int:
        segment = self._led.current
        return self.sealed_bytes + (segment.position if segment is not None else 0)

    @property
    def least_open_bytes(self) -> int:
        """The least that the open segment has; what was appended and not committed may be cut."""
        segment = self._led.current or self._followed
        if segment is None:
            return 0
        return segment.position if self.end_is_known else segment.committed_position

    @property
    def producers(self) -> int:
        segment = self._led.segment
        return len(segment.producers) if segment is not None else 0

    @property
    def last_append_time_us(self) -> int:
        segment = self._led.segment
        return segment.last_append_time_us if segment is not None else 0

    @property
    def trouble(self) -> str:
        segment, fault = self._led.segment, self._led.fault
        if fault is None and segment is not None:
            fault = segment.failure
        return fault.message if fault is not None else ""

    @property
    def copy_lacks(self) -> int:
        """How many committed records this node's copy of the open segment is known not to have."""
        copy = self._followed
        return max(0, self.least_end - copy.durable_end) if copy is not None else 0

    @property
    def _followed(self) -> FollowedSegment | None:
        """The open segment's copy here, also one that takes nothing more."""
        follower = self._storage.replication.copies.followers.get(self._topic.state.open_segment.uid)
        return follower.log if follower is not None else None

    def followers_behind(self) -> list[Behind]:
        """The open segment's followers that lack committed records or get none, if this node leads it."""
        leading = self._led.leading
        return leading.standing() if leading is not None else []

    @property
    def follower_lag(self) -> int:
        """How many committed records the slowest follower is not known to have."""
        leading = self._led.leading
        return leading.lag if leading is not None else 0
