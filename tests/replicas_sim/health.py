"""Which copies a run may take away now: so many that a majority of each segment is left, and no more.

The promise is about a minority of a segment's disks, lost for good or rotten; the nemesis keeps to it. A disk
that was struck counts until the segment is whole without it, or again on it: as a person would wait for full
replication before the next disk is pulled.

A tail that a power cut has torn looks like rot in what was acknowledged, and such a replica is in doubt (P3).
While an open segment has a copy that was struck, a second one in doubt would leave too few to say what was
acknowledged. So for that time (`is_grave`) power cuts lose what was not synced as a whole, and disks do not
fail.
"""

from __future__ import annotations

from collections.abc import Iterator

from ister.metadata.state import ClusterState, SegmentState, TopicState
from ister.protocol.peer import node_of
from tests.cluster.node import ClusterNode
from tests.cluster.watch import log_path
from tests.replicas_sim.watch import ReplicaWatch


class Health:
    def __init__(self, watch: ReplicaWatch, nodes: list[ClusterNode]) -> None:
        self.watch, self.nodes = watch, nodes
        self._struck: dict[int, int] = {}
        """By a segment's uid: the member whose copy was struck, until that is mended."""
        self._whole: set[tuple[int, int]] = set()
        """Copies of sealed segments that were seen to be whole, by member and uid."""

    def view(self) -> ClusterState:
        """The metadata as the node knows it that has applied most."""
        up = [node.running.metadata.state for node in self.nodes if node.is_up]
        return max(up, key=lambda state: state.applied_index, default=ClusterState())

    def segments(self, state: ClusterState | None = None) -> Iterator[tuple[TopicState, SegmentState]]:
        """All that have, or had, several replicas."""
        for topic in (state or self.view()).topics.values():
            for segment in topic.segments:
                if len(self.watch.replicas_of(segment)) > 1:
                    yield topic, segment

    # What was struck.

    def rots(self, member: int, segment: SegmentState) -> None:
        self.watch.copies.damaged(member, segment.uid)
        self.struck(member, segment)

    def struck(self, member: int, segment: SegmentState) -> None:
        """This copy is lost, or rotten."""
        self._struck[segment.uid] = member
        self._whole.discard((member, segment.uid))

    @property
    def is_grave(self) -> bool:
        """Whether an open segment has a copy that was struck."""
        if not self._struck:
            return False
        return any(topic.open_segment.uid in self._struck for topic in self.view().topics.values())

    def is_whole(self, member: int, topic: TopicState, segment: SegmentState) -> bool:
        key = member, segment.uid
        if key not in self._whole and self.watch.copies.is_whole(member, topic, segment):
            self._whole.add(key)
        return key in self._whole

    def _forget_mended(self, state: ClusterState) -> None:
        for topic, segment in self.segments(state):
            member = self._struck.get(segment.uid)
            if member is None or not segment.is_sealed:
                continue
            others = [m for m in segment.replicas if m != member]
            is_mended = member not in segment.replicas or self.is_whole(member, topic, segment)
            if is_mended and all(self.is_whole(m, topic, segment) for m in others):
                del self._struck[segment.uid]
        there = {segment.uid for _, segment in self.segments(state)}
        self._struck = {uid: member for uid, member in self._struck.items() if uid in there}

    # What may be struck.

    def may_rot(self, member: int, topic: TopicState, segment: SegmentState) -> bool:
        """Whether one copy of a segment may be damaged."""
        state = self.view()
        self._forget_mended(state)
        if segment.uid in self._struck or member not in segment.replicas:
            return False
        others = [m for m in segment.replicas if m != member]
        if segment.is_sealed:
            return any(state.is_active(m) and self.is_whole(m, topic, segment) for m in others)
        return self._disks_are_quiet() and self._are_certain(state, topic, segment)

    def may_lose(self, node: ClusterNode) -> bool:
        """Whether a node's disk may be lost: all that it has, the others of each segment have too."""
        if not self.is_settled(but=node):
            return False
        state, member = self.view(), node.running.metadata.member
        for topic, segment in self.segments(state):
            if segment.is_empty:
                continue
            if member not in segment.replicas:
                # One that left the list keeps its copy until those in it are known to be good (C4).
                if segment.uid in self._struck and node.disk.exists(log_path(topic, segment)):
                    return False
                continue
            others = [m for m in segment.replicas if m != member]
            # Who left for good was taken off the list, if there was nobody to come: it may be a list of one.
            if not others or segment.uid in self._struck or not all(map(state.is_active, others)):
                return False
            if not segment.is_sealed and not self._are_certain(state, topic, segment):
                return False
            if segment.is_sealed and not all(self.is_whole(m, topic, segment) for m in others):
                return False
        return self._disks_are_quiet()

    def is_settled(self, *, but: ClusterNode | None = None) -> bool:
        """Everybody is up, is in the metadata as it is now, votes, and knows all."""
        if not all(node.is_up for node in self.nodes):
            return False
        state = self.view()
        self._forget_mended(state)
        members = {node.running.metadata.member for node in self.nodes}
        if set(state.active_members) != members:
            return False
        for node in self.nodes:
            metadata, membership = node.running.metadata, node.running.metadata.status().membership
            # A learner that has lost its disk is promoted all the same, if it had just been heard.
            if set(membership.voters) != members or membership.learners:
                return False
            if metadata.state.applied_index < state.applied_index:
                return False
        return True

    def all_vote(self) -> bool:
        """Everybody is up, with the disk that has its vote: no other disk is lost, or not any more."""
        if not all(node.is_up for node in self.nodes):
            return False
        members = {node.running.metadata.member for node in self.nodes}
        newest = max(self.nodes, key=lambda node: node.running.metadata.state.applied_index)
        return members <= set(newest.running.metadata.status().membership.voters)

    def _are_certain(self, state: ClusterState, topic: TopicState, segment: SegmentState) -> bool:
        copies = self.watch.copies
        return all(state.is_active(m) and copies.is_certain(m, topic, segment) for m in segment.replicas)

    def _disks_are_quiet(self) -> bool:
        return all(node.disk.faults.is_quiet and node.disk.free_bytes() > 1 << 30 for node in self.nodes)

    # What is to hold in the end.

    def what_is_missing(self) -> str:
        """What is not as it is to be when everything is well again; empty if it is (invariants 5 and 9)."""
        state = self.view()
        for topic in state.topics.values():
            opened = topic.open_segment
            if opened.recovery:
                return f"{topic.key_of(opened)} is being recovered, by node {node_of(opened.coordinator)}"
        for topic, segment in self.segments(state):
            key = topic.key_of(segment)
            if segment.is_empty or segment.is_released:
                continue  # whoever loses its copy has lost nothing
            if not all(map(state.is_active, segment.replicas)):
                there = [node_of(member) for member in segment.replicas]
                return f"{key} has replicas on nodes {there}, and not all of these disks are in the cluster"
            if segment.is_sealed:
                lacking = [node_of(m) for m in segment.replicas if not self.is_whole(m, topic, segment)]
                if lacking:
                    return f"{key} is not whole on nodes {lacking}"
                if len(segment.replicas) < min(topic.settings.replicas, len(self.nodes)):
                    return f"{key} has {len(segment.replicas)} copies of {topic.settings.replicas}"
        return ""
