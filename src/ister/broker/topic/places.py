"""Where the offsets of a topic live, as this node sees it now: by the metadata, and by what its disk has."""

from __future__ import annotations

from ister.broker.losses.missing import is_gone
from ister.broker.node.storage import Storage
from ister.broker.topic.known import KnownTopic
from ister.broker.topic.location import (
    Follower,
    GivenUp,
    Here,
    History,
    Location,
    Remote,
    Trimmed,
    Unavailable,
)
from ister.metadata.state import SegmentState
from ister.wal.followed import FollowedSegment


class Places:
    def __init__(self, topic: KnownTopic, storage: Storage) -> None:
        self._topic = topic
        self._storage = storage
        self._distrusted = 0
        """The uid of an open segment whose copy here was found damaged."""

    def locate(self, offset: int) -> Location:
        """Where the record at this offset is, or will be once it is written."""
        topic = self._topic.state
        segment = topic.holding(offset)
        if segment is None or offset < topic.start_offset:
            return Trimmed()
        if segment.lost_from is not None and offset >= segment.lost_from:
            assert segment.end_offset is not None
            return GivenUp(segment.lost_from, segment.end_offset)
        copy = None if segment.is_sealed else self.followed
        if copy is not None and copy.identity.base_offset <= offset <= copy.committed_end:
            return Follower(segment, copy)
        return self.whereabouts(segment)

    def whereabouts(self, segment: SegmentState) -> Here | Remote | History | Unavailable:
        """Who answers for a segment."""
        storage = self._storage
        if not segment.is_sealed:
            return Here(segment) if segment.leader == storage.member else Remote(segment)
        is_served = storage.replication.completions.is_served(segment.uid)
        if storage.member in segment.replicas and is_served:
            return Here(segment)
        if segment.history is not None and not self._is_with_another(segment):
            return History(segment)
        if is_gone(segment, storage.metadata.state.nodes):
            return Unavailable(segment)
        return Remote(segment)

    def _is_with_another(self, segment: SegmentState) -> bool:
        """Whether another node that answers is to have a copy: it is nearer than the history."""
        metadata, member = self._storage.metadata, self._storage.member
        return any(one != member and metadata.is_alive(one) for one in segment.replicas)

    def is_elsewhere(self, offset: int) -> bool:
        """Whether other nodes are to be asked for it."""
        return isinstance(self.locate(offset), Follower | Remote)

    def is_given_up(self, offset: int) -> bool:
        return bool(self._topic.state.lost) and isinstance(self.locate(offset), GivenUp)

    def first_since(self, time_us: int) -> SegmentState:
        """The segment in which the first record appended at or after a time is, or would be."""
        for segment in self._topic.state.segments[:-1]:
            if segment.last_append_time_us < time_us or segment.is_empty:
                continue
            if not isinstance(self.whereabouts(segment), Unavailable):
                return segment
        return self._topic.state.open_segment

    # The copy of what another node leads.

    @property
    def followed(self) -> FollowedSegment | None:
        """The open segment's copy here, if this node follows it and may read from it (F5)."""
        topic, uid = self._topic, self._topic.state.open_segment.uid
        if topic.leads or topic.is_deleted or uid == self._distrusted:
            return None
        return self._storage.replication.copies.follower(uid)

    def distrust_copy(self, segment_uid: int) -> None:
        """The copy of the open segment here is damaged: readers are sent to its leader."""
        self._distrusted = segment_uid
