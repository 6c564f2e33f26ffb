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
    ClaimCursor,
    CreateTopic,
    DeleteTopic,
    FlushCursors,
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
from ister.protocol.peer import identity_fault, member_of, node_of
from ister.wal.producers import ProducerRow


class SegmentState(msgspec.Struct, array_like=True, gc=False):
    """Outside the garbage collector's sight: there are many, they are in no cycle, and it would be slow."""

    segment: int
    uid: int
    base_offset: int
    leader: int
    """A member: a node with its disk. One that comes back on another disk is not it (I2)."""
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

    @property
    def member(self) -> int:
        return member_of(self.node_id, self.disk_id)


class TopicState(msgspec.Struct, array_like=True):
    name: str
    uid: int
    settings: TopicSettings
    created_at_us: int
    segments: list[SegmentState]
    """Those not trimmed, in order; the last one is open."""
    start_offset: int = 0
    get_owner: int = 0
    """The member that hands out records to GET; 0 until the first GET (S5)."""
    get_epoch: int = 0
    get_offset: int = 0
    """Where GET goes on after a crash of its owner: the next offset (S4)."""

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
    gone: list[int] = []


class ClusterState:
    def __init__(self) -> None:
        self.applied_index = 0
        self.cluster_id = ""
        """Empty until the cluster was founded; then for ever the same."""
        self.topics: dict[str, TopicState] = {}
        self.nodes: dict[int, NodeState] = {}
        self.gone: list[int] = []
        """Members that were removed. They never come back; their nodes may, on another disk (I2)."""
        self._by_uid: dict[int, TopicState] = {}
        self._led: dict[int, dict[int, str]] = {}
        """By member: the keys of the open segments that it leads, by topic. Derived, for a quick answer."""

    def topic_by_uid(self, uid: int) -> TopicState | None:
        return self._by_uid.get(uid)

    def led_by(self, member: int) -> dict[int, str]:
        """The keys of the open segments that a member leads, by topic uid."""
        return self._led.get(member, {})

    def is_active(self, member: int) -> bool:
        """Whether a node is in the cluster on this very disk, and has said where clients find it."""
        node = self.nodes.get(node_of(member))
        return node is not None and node.member == member and node.client_port > 0

    @property
    def active_members(self) -> list[int]:
        """All that may lead a segment, in the order of their numbers."""
        return sorted(node.member for node in self.nodes.values() if node.client_port > 0)

    def _note_open(self, topic: TopicState) -> None:
        self._led.setdefault(topic.open_segment.leader, {})[topic.uid] = topic.key_of(topic.open_segment)

    def _note_not_open(self, topic: TopicState) -> None:
        self._led.get(topic.open_segment.leader, {}).pop(topic.uid, None)

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
            case FlushCursors():
                return self._flush_cursors(index, command)
            case None:
                return Outcome(Result.REFUSED, index, "this build does not know the command")
        topic = self._by_uid.get(command.topic_uid)
        if topic is None:
            return Outcome(Result.STALE, index, f"there is no topic with uid {command.topic_uid}")
        match command:
            case AlterTopic():
                changed = topic.settings.changed(command.changes)
                if changed is None:
                    detail = f"not for a topic's settings: {command.changes}"
                    return Outcome(Result.REFUSED, index, detail, topic.uid)
                topic.settings = changed
            case DeleteTopic():
                self._note_not_open(topic)
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
            case ClaimCursor():
                return self._claim_cursor(index, topic, command)
        return Outcome(Result.APPLIED, index, topic_uid=topic.uid)

    def _found(self, index: int, command: FoundCluster) -> Outcome:
        if self.cluster_id:
            return Outcome(Result.STALE, index, f"this is cluster {self.cluster_id} already")
        self.cluster_id = command.cluster_id
        return Outcome(Result.APPLIED, index)

    def _upsert_node(self, index: int, command: UpsertNode) -> Outcome:
        told = _node_state(command)
        refused = identity_fault(told.node_id, told.disk_id) or self._why_not(told)
        if refused:
            return Outcome(Result.REFUSED, index, refused)
        self.nodes[told.node_id] = told
        return Outcome(Result.APPLIED, index)

    def _why_not(self, told: NodeState) -> str:
        """Why what a node says of itself does not hold (I2); empty if it does."""
        known = self.nodes.get(told.node_id)
        if told.member in self.gone:
            return f"node {told.node_id} was removed from the cluster, and this disk with it"
        if known is None:
            return ""
        if known.disk_id != told.disk_id:
            # A new disk is let in first, and then says nothing of clients yet. One that comes back and
            # announces itself must not push out the one that has its place.
            return f"node {told.node_id} is in the cluster on another disk" if told.client_port else ""
        if told.starts <= known.starts and told != known:
            return (
                f"node {told.node_id} says it was started {told.starts} times, {known.starts} are known: "
                f"its directory is a copy of another one that is in use"
            )
        return ""

    def _remove_node(self, index: int, command: RemoveNode) -> Outcome:
        """Refused while the node has what nobody else has (R2)."""
        if command.node_id not in self.nodes:
            return Outcome(Result.STALE, index, f"there is no node {command.node_id}")
        where = self._holds(command.node_id)
        if where:
            return Outcome(Result.REFUSED, index, f"node {command.node_id} holds {where}")
        if len(self.nodes) == 1:
            return Outcome(Result.REFUSED, index, f"node {command.node_id} is the last one")
        self.gone.append(self.nodes.pop(command.node_id).member)
        return Outcome(Result.APPLIED, index)

    def _holds(self, node_id: int) -> str:
        """A segment that is open at this node, or of which it has the last copy; empty if there is none."""
        for topic in self._by_uid.values():
            for segment in topic.segments:
                in_it = any(node_of(replica) == node_id for replica in segment.replicas)
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
        refused = self._inactive(command.leader, command.replicas)
        if refused:
            return Outcome(Result.REFUSED, index, refused)
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
        self._note_open(topic)
        return Outcome(Result.CREATED, index, topic_uid=index)

    def _inactive(self, leader: int, replicas: list[int]) -> str:
        """Why a segment may not be opened there; empty if it may (H1)."""
        for member in (leader, *replicas):
            if not self.is_active(member):
                return f"node {node_of(member)} is not active on that disk"
        return ""

    def _seal(self, index: int, topic: TopicState, command: SealSegment) -> Outcome:
        last = topic.open_segment
        if last.segment != command.segment:
            detail = f"segment {command.segment} of {topic.name} is sealed; {last.segment} is open"
            return Outcome(Result.STALE, index, detail, topic.uid)
        if command.end_offset < last.base_offset:
            detail = f"end {command.end_offset} lies before the base {last.base_offset}"
            return Outcome(Result.REFUSED, index, detail, topic.uid)
        proposer = self.nodes.get(node_of(command.sealed_by))
        if proposer is None or proposer.member != command.sealed_by:
            detail = f"node {node_of(command.sealed_by)} is not in the cluster on the disk that proposed this"
            return Outcome(Result.REFUSED, index, detail, topic.uid)
        if proposer.starts != command.starts:
            detail = f"node {proposer.node_id} was started again after it proposed this"
            return Outcome(Result.REFUSED, index, detail, topic.uid)
        if command.unopened and last.log_exists:
            detail = f"the log of {topic.key_of(last)} was made after this was proposed"
            return Outcome(Result.REFUSED, index, detail, topic.uid)
        refused = self._inactive(command.next_leader, command.next_replicas)
        if refused:
            return Outcome(Result.REFUSED, index, refused, topic.uid)
        self._note_not_open(topic)
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
        self._note_open(topic)
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

    def _claim_cursor(self, index: int, topic: TopicState, command: ClaimCursor) -> Outcome:
        if command.epoch != topic.get_epoch + 1:
            detail = f"the cursor of {topic.name} is in epoch {topic.get_epoch}, {command.epoch} was claimed"
            return Outcome(Result.STALE, index, detail, topic.uid)
        refused = self._inactive(command.owner, [])
        if refused:
            return Outcome(Result.REFUSED, index, refused, topic.uid)
        topic.get_owner, topic.get_epoch = command.owner, command.epoch
        return Outcome(Result.APPLIED, index, topic_uid=topic.uid)

    def _flush_cursors(self, index: int, command: FlushCursors) -> Outcome:
        stale: list[int] = []
        for uid, epoch, offset in command.rows:
            topic = self._by_uid.get(uid)
            if (
                topic is None
                or (topic.get_owner, topic.get_epoch) != (command.owner, epoch)
                or offset < topic.get_offset
            ):
                stale.append(uid)
            else:
                topic.get_offset = offset
        detail = f"not the owner's to move any more: topics {', '.join(map(str, stale))}" if stale else ""
        result = Result.STALE if len(stale) == len(command.rows) else Result.APPLIED
        return Outcome(result, index, detail)

    # Snapshots.

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(
            _Snapshot(
                self.applied_index,
                self.cluster_id,
                list(self._by_uid.values()),
                list(self.nodes.values()),
                self.gone,
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> ClusterState:
        state = cls()
        snapshot = msgspec.msgpack.decode(data, type=_Snapshot)
        state.applied_index, state.cluster_id = snapshot.applied_index, snapshot.cluster_id
        state.nodes = {node.node_id: node for node in snapshot.nodes}
        state.gone = list(snapshot.gone)
        for topic in snapshot.topics:
            state.topics[topic.name] = state._by_uid[topic.uid] = topic
            state._note_open(topic)
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
