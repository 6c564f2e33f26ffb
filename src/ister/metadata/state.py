"""The state machine: the cluster, its nodes, its topics.

Deterministic and total (R3): no clock, no I/O, no iteration over unordered sets; an unknown or impossible
command has a result that says so. Applying the same commands in the same order gives the same bytes.

What becomes of a topic's chain of segments is decided in `chain`; here is the rest, and what is derived from
it all for quick answers.
"""

from __future__ import annotations

import msgspec

from ister.errors import invariant
from ister.metadata.chain import accept_gone, accept_loss, begin_recovery, seal, set_replicas, trim
from ister.metadata.commands import (
    AbandonObject,
    AcceptGone,
    AcceptLoss,
    ActivateNode,
    AlterTopic,
    AnyCommand,
    BeginRecovery,
    CancelMove,
    ClaimCursor,
    ClaimSubscription,
    CreateSubscription,
    CreateTopic,
    DeleteSubscription,
    DeleteTopic,
    DrainNode,
    FailMove,
    FlushCursors,
    FlushSubscriptions,
    FoundCluster,
    OpenedSegment,
    Outcome,
    PauseSubscription,
    PublishObject,
    ReleaseCopies,
    ReleaseTopic,
    RemoveNode,
    ReportCopies,
    ReportObject,
    RequestMove,
    Result,
    SealSegment,
    SeekSubscription,
    SetPins,
    SetReplicas,
    TrimTopic,
    UpsertNode,
)
from ister.metadata.copies import may_leave, staying, take_report
from ister.metadata.drains import Drains, DrainState
from ister.metadata.history import change_history
from ister.metadata.moves import Moves, MoveState
from ister.metadata.nodes import (
    NodeState,
    inactive_among,
    is_active,
    node_state_of,
    why_not_placed,
    why_not_proposer,
)
from ister.metadata.pins import set_pins
from ister.metadata.subscriptions import change_subscription, flush
from ister.metadata.topics import LostRange, SegmentState, TopicState
from ister.protocol.peer import identity_fault, node_of

__all__ = ["ClusterState", "LostRange", "NodeState", "SegmentState", "TopicState"]


class _Snapshot(msgspec.Struct, array_like=True, frozen=True):
    """The whole state, as it is kept. Grows at the end."""

    applied_index: int
    cluster_id: str
    topics: list[TopicState]
    nodes: list[NodeState] = []
    gone: list[int] = []
    reports: list[tuple[int, int]] = []
    moves: list[MoveState] = []
    drains: list[DrainState] = []


class ClusterState:
    def __init__(self) -> None:
        self.applied_index = 0
        self.cluster_id = ""
        """Empty until the cluster was founded; then for ever the same."""
        self.topics: dict[str, TopicState] = {}
        self.nodes: dict[int, NodeState] = {}
        self.gone: list[int] = []
        """Members that were removed or replaced: never to come back. Their nodes may, on other disks (I2)."""
        self.reports: dict[int, int] = {}
        """By member: the number of the last report of its copies, of the start that is known (C2)."""
        self.moves = Moves()
        self.drains = Drains()
        self._by_uid: dict[int, TopicState] = {}
        self._led: dict[int, dict[int, str]] = {}
        """By member: the keys of the open segments that it leads, by topic. Derived, for a quick answer."""
        self._followed: dict[int, dict[int, int]] = {}
        """By member: the uids of the open segments that it only follows, by topic. Derived too."""

    def topic_by_uid(self, uid: int) -> TopicState | None:
        return self._by_uid.get(uid)

    def leaders(self) -> list[int]:
        """The members that lead an open segment."""
        return [member for member, led in self._led.items() if led]

    def led_by(self, member: int) -> dict[int, str]:
        """The keys of the open segments that a member leads, by topic uid."""
        return self._led.get(member, {})

    def followed_by(self, member: int) -> dict[int, int]:
        """The uids of the open segments that a member has a replica of and does not lead, by topic uid."""
        return self._followed.get(member, {})

    def is_active(self, member: int) -> bool:
        """Whether a node is in the cluster on this very disk, and has said where clients find it."""
        return is_active(self.nodes, member)

    @property
    def active_members(self) -> list[int]:
        """All that may lead a segment, in the order of their numbers."""
        return sorted(node.member for node in self.nodes.values() if node.client_port > 0)

    def _note_open(self, topic: TopicState) -> None:
        opened = topic.open_segment
        self._led.setdefault(opened.leader, {})[topic.uid] = topic.key_of(opened)
        for member in opened.replicas:
            if member != opened.leader:
                self._followed.setdefault(member, {})[topic.uid] = opened.uid

    def _note_not_open(self, topic: TopicState) -> None:
        opened = topic.open_segment
        self._led.get(opened.leader, {}).pop(topic.uid, None)
        for member in opened.replicas:
            self._followed.get(member, {}).pop(topic.uid, None)

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
            case ReportCopies():
                return self._report_copies(index, command)
            case SetPins():
                return set_pins(index, self._by_uid, command)
            case PublishObject() | AbandonObject() | ReleaseCopies() | ReportObject():
                return change_history(index, self._by_uid, command)
            case CancelMove():
                return self.moves.cancel(index, command)
            case FailMove():
                return self.moves.fail(index, command)
            case DrainNode():
                return self.drains.drain(index, self._by_uid.values(), self.nodes, command)
            case ActivateNode():
                return self.drains.activate(index, command)
            case FlushSubscriptions():
                return flush(index, self._by_uid, command)
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
                opened, before = topic.open_segment, topic.settings.segment_records
                opened.records_limit = max(opened.records_limit, before, changed.segment_records)
                topic.settings = changed
            case DeleteTopic():
                self._note_not_open(topic)
                self.moves.deleted(topic)
                del self.topics[topic.name]
                del self._by_uid[topic.uid]
            case SealSegment():
                return self._seal(index, topic, command)
            case AcceptLoss():
                return self._accept_loss(index, topic, command)
            case AcceptGone():
                return accept_gone(index, topic, self.nodes, command)
            case BeginRecovery():
                return begin_recovery(index, topic, self.nodes, command)
            case SetReplicas():
                return set_replicas(index, topic, self.nodes, command)
            case OpenedSegment():
                if topic.open_segment.segment != command.segment:
                    return Outcome(Result.STALE, index, f"segment {command.segment} is not the open one")
                topic.open_segment.log_exists = True
                self.moves.opened(topic)
            case TrimTopic():
                return trim(index, topic, command)
            case ClaimCursor():
                return self._claim_cursor(index, topic, command)
            case RequestMove():
                return self.moves.request(index, topic, self.nodes, command)
            case ReleaseTopic():
                return self.moves.release(index, topic, command)
            case (
                CreateSubscription()
                | DeleteSubscription()
                | ClaimSubscription()
                | SeekSubscription()
                | PauseSubscription()
            ):
                return change_subscription(index, topic, self.nodes, command)
        return Outcome(Result.APPLIED, index, topic_uid=topic.uid)

    def _found(self, index: int, command: FoundCluster) -> Outcome:
        if self.cluster_id:
            return Outcome(Result.STALE, index, f"this is cluster {self.cluster_id} already")
        self.cluster_id = command.cluster_id
        return Outcome(Result.APPLIED, index)

    def _upsert_node(self, index: int, command: UpsertNode) -> Outcome:
        told = node_state_of(command)
        refused = identity_fault(told.node_id, told.disk_id) or self._why_not(told, command)
        if refused:
            return Outcome(Result.REFUSED, index, refused)
        known = self.nodes.get(told.node_id)
        if known is not None and known.member != told.member:
            self.gone.append(known.member)
            self.reports.pop(known.member, None)
            self.drains.left(known.member)
        if known is not None and known.starts != told.starts:
            self.reports.pop(told.member, None)  # each start counts anew
        self.nodes[told.node_id] = told
        return Outcome(Result.APPLIED, index)

    def _why_not(self, told: NodeState, command: UpsertNode) -> str:
        """Why what a node says of itself does not hold (I2); empty if it does."""
        known = self.nodes.get(told.node_id)
        if told.member in self.gone:
            # A request of that disk to be let in may have been long on its way.
            if known is not None:
                return f"node {told.node_id} is in the cluster on another disk"
            return f"node {told.node_id} was removed from the cluster, and this disk with it"
        if known is None:
            return ""
        if known.disk_id != told.disk_id:
            # A new disk is let in first, and then says nothing of clients yet. One that comes back and
            # announces itself must not push out the one that has its place.
            if told.client_port:
                return f"node {told.node_id} is in the cluster on another disk"
            if command.replaced and command.replaced != known.member:
                return f"node {told.node_id} is on another disk by now than the one that was to be replaced"
            is_looked_at = command.replaced or command.replaced_starts
            if is_looked_at and command.replaced_starts != known.starts:
                return f"node {told.node_id} has come back on the disk that was to be replaced"
            only_copy = ""
            if not command.replaces:
                only_copy = self._only_copy(known.member, may_be_short=True, by_name=command.by_name)
            return f"node {told.node_id} has {only_copy}, on another disk" if only_copy else ""
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
        member, starts = self.nodes[command.node_id].member, self.nodes[command.node_id].starts
        if command.member and command.member != member:
            return Outcome(Result.STALE, index, f"node {command.node_id} is on another disk by now")
        is_looked_at = command.starts or (command.disk_gone and command.member)
        if is_looked_at and command.starts != starts:
            return Outcome(Result.REFUSED, index, f"node {command.node_id} has come back meanwhile")
        where = self._holds_open(member)
        if not where and not command.disk_gone:
            where = self._only_copy(member, may_be_short=command.keeps_whole, by_name=command.by_name)
        if where:
            return Outcome(Result.REFUSED, index, f"node {command.node_id} holds {where}")
        if len(self.nodes) == 1:
            return Outcome(Result.REFUSED, index, f"node {command.node_id} is the last one")
        self.gone.append(self.nodes.pop(command.node_id).member)
        self.reports.pop(member, None)
        self.drains.left(member)
        return Outcome(Result.APPLIED, index)

    def _holds_open(self, member: int) -> str:
        """A segment that is open at this member; empty if none is."""
        for topic in self._by_uid.values():
            if member in topic.open_segment.replicas:
                return f"the open {topic.key_of(topic.open_segment)}"
        return ""

    def _only_copy(self, member: int, *, may_be_short: bool, by_name: bool) -> str:
        """A segment with something in it that nobody else in the cluster has; empty if there is none. What
        another disk of its node had is not held here (I2). `may_be_short`: of a sealed one too only some are
        known to have had all of it; who was behind may not have been completed yet. `by_name`: those are
        known (C3), and not only how many."""
        for topic in self._by_uid.values():
            for segment in topic.segments:
                if member not in segment.replicas or segment.is_empty:
                    continue
                if by_name and segment.is_sealed:
                    stay = staying(self.nodes, segment.replicas, member)
                    if not may_leave(segment, member, segment.replicas, stay):
                        return _why_kept(topic, segment, stay)
                    continue
                others = sum(other != member and self.is_active(other) for other in segment.replicas)
                if not others:
                    return f"the last copy of {topic.key_of(segment)}"
                is_unsure = others <= len(segment.replicas) - segment.surely_whole
                if is_unsure and (may_be_short or not segment.is_sealed):
                    why = "the others may end short of it" if segment.is_sealed else "which is open"
                    return f"one of the last {others + 1} copies of {topic.key_of(segment)}, {why}"
        return ""

    def _report_copies(self, index: int, command: ReportCopies) -> Outcome:
        """What a node says of its copies (C2). What is old in it is passed over, entry by entry."""
        fault = why_not_proposer(self.nodes, command.member, command.starts)
        if not fault and command.number <= (last := self.reports.get(command.member, 0)):
            fault = f"report {command.number} comes after report {last}"
        if fault:
            return Outcome(Result.STALE, index, fault)
        self.reports[command.member] = command.number
        for entry in command.entries:
            take_report(command, self._by_uid.get(entry.topic_uid), entry)
        return Outcome(Result.APPLIED, index)

    def skip(self, index: int) -> None:
        """An index that is not a command of ours."""
        invariant(index == self.applied_index + 1, f"index {index} passed after {self.applied_index}")
        self.applied_index = index

    def _create(self, index: int, command: CreateTopic) -> Outcome:
        existing = self.topics.get(command.name)
        if existing is not None:
            return Outcome(Result.EXISTS, index, f"topic {command.name} exists", existing.uid)
        refused = why_not_placed(self.nodes, command.leader, command.replicas)
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
            records_limit=command.settings.segment_records,
        )
        topic = TopicState(command.name, index, command.settings, command.created_at_us, [first])
        self.topics[command.name] = self._by_uid[index] = topic
        self._note_open(topic)
        return Outcome(Result.CREATED, index, topic_uid=index)

    def _seal(self, index: int, topic: TopicState, command: SealSegment) -> Outcome:
        self._note_not_open(topic)  # by the replicas that it has until then: the seal may name others
        was_opened = topic.open_segment.log_exists
        outcome = seal(index, topic, self.nodes, self.moves, command)
        if outcome.result is Result.APPLIED:
            self.moves.sealed(topic, is_lost=bool(command.recovery), was_opened=was_opened)
        self._note_open(topic)
        return outcome

    def _accept_loss(self, index: int, topic: TopicState, command: AcceptLoss) -> Outcome:
        self._note_not_open(topic)
        was_opened = topic.open_segment.log_exists
        outcome = accept_loss(index, topic, self.nodes, command)
        if outcome.result is Result.APPLIED:
            self.moves.sealed(topic, is_lost=True, was_opened=was_opened)
        self._note_open(topic)
        return outcome

    def _claim_cursor(self, index: int, topic: TopicState, command: ClaimCursor) -> Outcome:
        if command.epoch != topic.get_epoch + 1:
            detail = f"the cursor of {topic.name} is in epoch {topic.get_epoch}, {command.epoch} was claimed"
            return Outcome(Result.STALE, index, detail, topic.uid)
        refused = inactive_among(self.nodes, [command.owner])
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
                list(self.reports.items()),
                self.moves.to_list(),
                list(self.drains.rows.values()),
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> ClusterState:
        state = cls()
        snapshot = msgspec.msgpack.decode(data, type=_Snapshot)
        state.applied_index, state.cluster_id = snapshot.applied_index, snapshot.cluster_id
        state.nodes = {node.node_id: node for node in snapshot.nodes}
        state.gone = list(snapshot.gone)
        state.reports = dict(snapshot.reports)
        state.moves = Moves(snapshot.moves)
        state.drains = Drains(snapshot.drains)
        for topic in snapshot.topics:
            state.topics[topic.name] = state._by_uid[topic.uid] = topic
            state._note_open(topic)
        return state


def _why_kept(topic: TopicState, segment: SegmentState, stay: list[int]) -> str:
    """What a member that may not leave has (C3)."""
    key, whole = topic.key_of(segment), [one for one in stay if segment.is_whole_at(one)]
    if not stay:
        return f"the last copy of {key}"
    known = f"only node {node_of(whole[0])} is" if len(whole) == 1 else f"{len(whole) or 'none'} of them are"
    return f"one of the last {len(stay) + 1} copies of {key}: of the others {known} known to have all of it"
