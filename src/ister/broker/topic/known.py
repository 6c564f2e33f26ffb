"""A topic as this node knows it: its chain in the metadata, and who waits for something to happen to it.

What the parts of a topic have in common. The metadata's state is replaced as a whole by a snapshot, so nobody
keeps it: it is looked up here each time.
"""

from __future__ import annotations

from collections.abc import Callable

from ister.errors import UnknownTopic
from ister.metadata.state import SegmentState, TopicState
from ister.wal.opening import SegmentIdentity


class KnownTopic:
    def __init__(self, state: TopicState, member: int) -> None:
        self.state = state
        self.member = member
        """This node with its disk."""
        self.is_deleted = False
        self.seen_end = 0
        """How far another node that leads is known to have come, by what it answered; for people (F6)."""
        self._waiters: list[Callable[[], None]] = []

    @property
    def leads(self) -> bool:
        """Whether the chain's open segment is this node's to append to."""
        return self.state.open_segment.leader == self.member

    def identity_of(self, segment: SegmentState) -> SegmentIdentity:
        return identity_of(self.state, segment)

    def deleted(self) -> UnknownTopic:
        return UnknownTopic(f"topic {self.state.name} was deleted")

    def wait_for_commit(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, at the next commit, change of the chain, or deletion."""
        self._waiters.append(wake)

    def stop_waiting(self, wake: Callable[[], None]) -> None:
        if wake in self._waiters:
            self._waiters.remove(wake)

    def wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()


def identity_of(topic: TopicState, segment: SegmentState) -> SegmentIdentity:
    path = segment_path(topic.uid, segment)
    return SegmentIdentity(topic.key_of(segment), segment.uid, segment.base_offset, path)


def segment_path(topic_uid: int, segment: SegmentState) -> str:
    return f"segments/{topic_uid:016d}/{segment.segment:08d}-{segment.uid:016d}"


def another_topic(name: str, uid: int) -> UnknownTopic:
    """Somebody asks for the topic of this uid, and another one has its name now (I3)."""
    return UnknownTopic(f"topic {name} with uid {uid} was deleted; the one that is there is another")
