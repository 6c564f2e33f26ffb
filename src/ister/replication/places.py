"""Where the metadata has a segment, for messages that name it by its uids."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

from ister.errors import UnknownTopic
from ister.metadata.state import SegmentState, TopicState
from ister.metadata.store import MetadataStore
from ister.wal.opening import SegmentIdentity

APPLY_SECONDS = 3.0
"""How long a message waits for this node to hear of the segment that it is about."""


class Place(NamedTuple):
    """A segment, where the metadata has it."""

    topic: TopicState
    segment: SegmentState
    identity: SegmentIdentity


class Places:
    def __init__(
        self, metadata: MetadataStore, identity_of: Callable[[TopicState, SegmentState], SegmentIdentity]
    ) -> None:
        self._metadata = metadata
        self._identity_of = identity_of

    async def find(self, topic_uid: int, segment_uid: int, index: int) -> Place:
        """The segment, once this node has applied the metadata up to `index`."""
        await self._metadata.wait_applied(index, APPLY_SECONDS)
        place = self.place(topic_uid, segment_uid)
        if place is None:
            raise UnknownTopic(f"there is no segment {segment_uid} of topic {topic_uid} any more")
        return place

    def place(self, topic_uid: int, segment_uid: int) -> Place | None:
        topic = self._metadata.state.topic_by_uid(topic_uid)
        if topic is None:
            return None
        at = bisect_left(topic.segments, segment_uid, key=_uid_of)  # each was opened after the one before it
        found = topic.segments[at] if at < len(topic.segments) else None
        if found is None or found.uid != segment_uid:
            return None
        return Place(topic, found, self._identity_of(topic, found))


def _uid_of(segment: SegmentState) -> int:
    return segment.uid
