"""The state machine: topics and the chains of their segments.

Deterministic and total (R3): no clock, no I/O, no iteration over unordered sets; an unknown or impossible
command has a result that says so. Applying the same commands in the same order gives the same bytes.

Invariants of a chain, checked at each change:
- exactly one open segment, the last;
- each segment's base is the end of the one before it;
- a sealed segment never changes again, except that trimming drops it whole.
"""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from ister.errors import invariant
from ister.metadata.commands import (
    AlterTopic,
    AnyCommand,
    CreateTopic,
    DeleteTopic,
    FoundCluster,
    OpenedSegment,
    Outcome,
    RemoveNode,
    Result,
    SealSegment,
    TrimTopic,
    UpsertNode,
)
from ister.names import wal_key
from ister.protocol.messages import TopicSettings
from ister.wal.producers import ProducerRow


class SegmentState(msgspec.Struct, array_like=True):
    segment: int
    uid: int
    base_offset: int
    leader: int
    replicas: list[int]
    opened_at_us: int
    carried_producers: list[ProducerRow]
    """What the seal before this one brought; dropped when this one is sealed."""
    carried_append_time_us: int
    log_exists: bool = False
    end_offset: int | None = None
    end_position: int = 0
    last_append_time_us: int = 0
    sealed_by: int = 0
    sealed_at_us: int = 0

    @property
    def is_sealed(self) -> bool:
        return self.end_offset is not None


class NodeState(msgspec.Struct, array_like=True, frozen=True):
    """A node as it last told of itself."""

    node_id: int
    disk_id: str
    starts: int
    peer_host: str
    peer_port: int
    client_host: str
    client_port: int


class TopicState(msgspec.Struct, array_like=True):
    name: str
    uid: int
    settings: TopicSettings
    created_at_us: int
    segments: list[SegmentState]
    """Those not trimmed, in order; the last one is open."""
    start_offset: int = 0

    @property
    def open_segment(self) -> SegmentState:
        return self.segments[-1]

    def key_of(self, segment: SegmentState) -> str:
        return wal_key(self.name, segment.segment)

    def holding(self, offset: int) -> SegmentState | None:
        """The segment that holds `offset`, or will once it is written."""
        # Empty sealed segments share their base with the next one: the last of them is the one.
        place = bisect_right(self.segments, offset, key=_base_of) - 1
        return self.segments[place] if place >= 0 else None


def _base_of(segment: SegmentState) -> int:
    return segment.base_offset


class _Snapshot(msgspec.Struct, array_like=True, frozen=True):
    """The whole state, as it is kept. Grows at the end."""

    applied_index: int
    cluster_id: str
    topics: list[TopicState]
    nodes: list[NodeState] = []


class ClusterState:
    def __init__(self) -> None:
        self.applied_index = 0
        self.cluster_id = ""
        """Empty until the cluster was founded; then for ever the same."""
        self.topics: dict[str, TopicState] = {}
        self.nodes: dict[int, NodeState] = {}
        self._by_uid: dict[int, TopicState] = {}

    def topic_by_uid(self, uid: int) -> TopicState | None:
        return self._by_uid.get(uid)

    def led_by(self, node: int) -> list[tuple[TopicState, SegmentState]]:
        """The open segments that a node leads, in the order of topics' creation."""
        return [
            (topic, topic.open_segment)
            for topic in self._by_uid.values()
            if topic.open_segment.leader == node
        ]

    def apply(self, index: int, command: AnyCommand | None) -> Outcome:
        invariant(index == self.applied_index + 1, f"index {index} applied after {self.applied_index}")
        self.applied_index = index
        match command:
            case CreateTopic():
                return self._create(index, command)
            case FoundCluster():
                return self._found(index, command)
            case UpsertNode():
                return self._upsert_node(index, command)
            case RemoveNode():
                return self._remove_node(index, command)
            case None:
                return Outcome(Result.REFUSED, index, "this build does not know the command")
        topic = self._by_uid.get(command.topic_uid)
        if topic is None:
            return Outcome(Result.STALE, index, f"there is no topic with uid {command.topic_uid}")
        match command:
            case AlterTopic():
                topic.settings = command.settings
            case DeleteTopic():
                del self.topics[topic.name]
                del self._by_uid[topic.uid]
            case SealSegment():
                return self._seal(index, topic, command)
            case OpenedSegment():
                if topic.open_segment.segment != command.segment:
                    return Outcome(Result.STALE, index, f"segment {command.segment} is not the open one")
                topic.open_segment.log_exists = True
            case TrimTopic():
                return self._trim(index, topic, command)
        return Outcome(Result.APPLIED, index, topic_uid=topic.uid)

    def _found(self, index: int, command: FoundCluster) -> Outcome:
        if self.cluster_id:
            return Outcome(Result.STALE, index, f"this is cluster {self.cluster_id} already")
        self.cluster_id = command.cluster_id
        return Outcome(Result.APPLIED, index)

    def _upsert_node(self, index: int, command: UpsertNode) -> Outcome:
        known = self.nodes.get(command.node_id)
        told = _node_state(command)
        if (
            known is not None
            and known.disk_id == told.disk_id
            and told.starts <= known.starts
            and told != known
        ):
            detail = (
                f"node {told.node_id} says it was started {told.starts} times, {known.starts} are known: "
                f"its directory is a copy of another one that is in use"
            )
            return Outcome(Result.REFUSED, index, detail)
        self.nodes[told.node_id] = told
        return Outcome(Result.APPLIED, index)

    def _remove_node(self, index: int, command: RemoveNode) -> Outcome:
        """Refused while the node has what nobody else has (R2)."""
        if command.node_id not in self.nodes:
            return Outcome(Result.STALE, index, f"there is no node {command.node_id}")
        where = self._holds(command.node_id)
        if where:
            return Outcome(Result.REFUSED, index, f"node {command.node_id} holds {where}")
        if len(self.nodes) == 1:
            return Outcome(Result.REFUSED, index, f"node {command.node_id} is the last one")
        del self.nodes[command.node_id]
        return Outcome(Result.APPLIED, index)

    def _holds(self, node_id: int) -> str:
        """A segment that is open at this node, or of which it has the last copy; empty if there is none."""
        for topic in self._by_uid.values():
            for segment in topic.segments:
                in_it = node_id in segment.replicas
                if in_it and (not segment.is_sealed or len(segment.replicas) == 1):
                    return f"{'a copy of' if segment.is_sealed else 'the open'} {topic.key_of(segment)}"
        return ""

    def skip(self, index: int) -> None:
        """An index that is not a command of ours."""
        invariant(index == self.applied_index + 1, f"index {index} passed after {self.applied_index}")
        self.applied_index = index

    def _create(self, index: int, command: CreateTopic) -> Outcome:
        existing = self.topics.get(command.name)
        if existing is not None:
            return Outcome(Result.EXISTS, index, f"topic {command.name} exists", existing.uid)
        first = SegmentState(
            segment=1,
            uid=index,
            base_offset=0,
            leader=command.leader,
            replicas=command.replicas,
            opened_at_us=command.created_at_us,
            carried_producers=[],
            carried_append_time_us=0,
        )
        topic = TopicState(command.name, index, command.settings, command.created_at_us, [first])
        self.topics[command.name] = self._by_uid[index] = topic
        return Outcome(Result.CREATED, index, topic_uid=index)

    def _seal(self, index: int, topic: TopicState, command: SealSegment) -> Outcome:
        last = topic.open_segment
        if last.segment != command.segment:
            detail = f"segment {command.segment} of {topic.name} is sealed; {last.segment} is open"
            return Outcome(Result.STALE, index, detail, topic.uid)
        if command.end_offset < last.base_offset:
            detail = f"end {command.end_offset} lies before the base {last.base_offset}"
            return Outcome(Result.REFUSED, index, detail, topic.uid)
        last.end_offset = command.end_offset
        last.end_position = command.end_position
        last.last_append_time_us = command.last_append_time_us
        last.sealed_by, last.sealed_at_us = command.sealed_by, command.sealed_at_us
        last.carried_producers = []
        topic.segments.append(
            SegmentState(
                segment=last.segment + 1,
                uid=index,
                base_offset=command.end_offset,
                leader=command.next_leader,
                replicas=command.next_replicas,
                opened_at_us=command.sealed_at_us,
                carried_producers=command.producers,
                carried_append_time_us=command.last_append_time_us,
            )
        )
        return Outcome(Result.APPLIED, index, topic_uid=topic.uid)

    def _trim(self, index: int, topic: TopicState, command: TrimTopic) -> Outcome:
        if command.start_offset <= topic.start_offset:
            return Outcome(
                Result.STALE, index, f"{topic.name} already starts at {topic.start_offset}", topic.uid
            )
        kept = [segment for segment in topic.segments if not _ends_by(segment, command.start_offset)]
        if not kept or kept[0].base_offset != command.start_offset:
            detail = f"offset {command.start_offset} is not the base of a segment of {topic.name}"
            return Outcome(Result.REFUSED, index, detail, topic.uid)
        topic.segments = kept
        topic.start_offset = command.start_offset
        return Outcome(Result.APPLIED, index, topic_uid=topic.uid)

    # Snapshots.

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(
            _Snapshot(
                self.applied_index, self.cluster_id, list(self._by_uid.values()), list(self.nodes.values())
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> ClusterState:
        state = cls()
        snapshot = msgspec.msgpack.decode(data, type=_Snapshot)
        state.applied_index, state.cluster_id = snapshot.applied_index, snapshot.cluster_id
        state.nodes = {node.node_id: node for node in snapshot.nodes}
        for topic in snapshot.topics:
            state.topics[topic.name] = state._by_uid[topic.uid] = topic
        return state


def _ends_by(segment: SegmentState, offset: int) -> bool:
    return segment.end_offset is not None and segment.end_offset <= offset


def _node_state(command: UpsertNode) -> NodeState:
    return NodeState(
        command.node_id,
        command.disk_id,
        command.starts,
        command.peer_host,
        command.peer_port,
        command.client_host,
        command.client_port,
    )
