"""How many copies of segments are missing in the cluster, and why: as far as one node knows.

A topic with one replica has no copies to miss. What is not known is not counted as missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from ister.metadata.copies import gone_from, is_missing
from ister.metadata.state import SegmentState, TopicState
from ister.protocol.peer import node_of
from ister.protocol.standing import Standing

if TYPE_CHECKING:
    from ister.broker.node.broker import Broker


class _Member(NamedTuple):
    is_active: bool
    is_alive: bool


class Shortage:
    """Count topic by topic (`add`); then look. It holds for the moment at which it was made."""

    def __init__(self, broker: Broker, standings: Mapping[int, Standing]) -> None:
        """`standings` are what members say of what they lead, and of their disks."""
        self.segments = 0
        self.copies = 0
        self.topics: dict[str, None] = {}
        self.down: Counter[int] = Counter()
        """By node: copies on nodes that do not answer."""
        self.gone: Counter[int] = Counter()
        """By node: copies on disks that left the cluster."""
        self.incomplete: Counter[int] = Counter()
        """By node: copies of sealed segments that are not known to be whole there."""
        self.away: Counter[int] = Counter()
        """By node: open segments that it should follow, and does not, or not fast enough, though it is up."""
        self.why_away: dict[int, str] = {}
        self.unwritten: Counter[int] = Counter()
        """By node: copies that its disk does not take."""
        self.disks = {node_of(member): told.disk for member, told in standings.items() if told.disk}
        """By node: what is wrong with its disk."""
        self.replaceable: set[int] = set()
        """Nodes that get nothing of open segments, where another could in their place."""
        self.unplaced = 0
        """Copies that no node was asked for yet."""
        self._metadata = broker.metadata
        self._nodes = len(broker.metadata.state.active_members)
        self._members: dict[int, _Member] = {}
        self._now_us = broker.clock.now_us()
        self._lagging = {
            (follower.segment_uid, follower.member): follower.why or f"it lacks {follower.lacks:,} records"
            for told in standings.values()
            for follower in told.followers
        }

    def add(self, topic: TopicState) -> None:
        wanted = min(topic.settings.replicas, self._nodes)
        if wanted < 2:
            return
        for segment in topic.segments:
            if segment.is_empty or segment.is_released:
                continue  # there is nothing to have copies of, or nobody is to have one
            bad = [member for member in segment.replicas if not self._is_good(segment, member)]
            good = len(segment.replicas) - len(bad)
            if good < wanted:
                if gone_from(segment, self._metadata.state.nodes) is not None:
                    continue  # nobody can make them: `cluster_view` says that records are lost
                self.segments += 1
                self.copies += wanted - good
                self.unplaced += max(0, wanted - len(segment.replicas))
                self.topics[topic.name] = None
                for member in bad:
                    self._note(segment, member)

    def _standing(self, member: int) -> _Member:
        found = self._members.get(member)
        if found is None:
            metadata = self._metadata
            found = _Member(metadata.state.is_active(member), metadata.is_alive(member))
            self._members[member] = found
        return found

    def _is_incomplete(self, segment: SegmentState, member: int) -> bool:
        return is_missing(segment, member, self._now_us)

    def _is_good(self, segment: SegmentState, member: int) -> bool:
        return (
            all(self._standing(member))
            and not self._is_incomplete(segment, member)
            and (segment.uid, member) not in self._lagging
        )

    def _note(self, segment: SegmentState, member: int) -> None:
        node, standing = node_of(member), self._standing(member)
        if not standing.is_active:
            self.gone[node] += 1
        elif not standing.is_alive:
            self.down[node] += 1
        elif node in self.disks:
            self.unwritten[node] += 1
        elif self._is_incomplete(segment, member):
            self.incomplete[node] += 1
        else:
            self.away[node] += 1
            self.why_away[node] = self._lagging[segment.uid, member]
        if all(standing) and not segment.is_sealed and self._has_spare(segment):
            self.replaceable.add(node)

    def _has_spare(self, segment: SegmentState) -> bool:
        others = [m for m in self._metadata.state.active_members if m not in segment.replicas]
        return any(self._standing(m).is_alive and node_of(m) not in self.disks for m in others)


def shortage(broker: Broker, standings: Mapping[int, Standing]) -> Shortage:
    """Of all topics, at once."""
    found = Shortage(broker, standings)
    for topic in broker.metadata.state.topics.values():
        found.add(topic)
    return found
