"""What each command does: a row for each, and what is too short for a file of its own.

This is where a command is registered: its class in `ister.metadata.commands`, and its row here. The decoder,
what a node announces that it knows and what is refused for want of that follow from the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ister.metadata.announcing import found_cluster, remove_node, upsert_node
from ister.metadata.chain import accept_gone, accept_loss, begin_recovery, seal, set_replicas, trim
from ister.metadata.commands import (
    AbandonObject,
    AcceptGone,
    AcceptLoss,
    ActivateNode,
    AlterTopic,
    BeginRecovery,
    CancelMove,
    ClaimCursor,
    ClaimSubscription,
    Command,
    CreateSubscription,
    CreateTopic,
    DeleteSubscription,
    DeleteTopic,
    DrainNode,
    EndMove,
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
    ReplaceObjects,
    ReportCopies,
    ReportObject,
    RequestMove,
    Result,
    SealSegment,
    SeekSubscription,
    SetPins,
    SetReplicas,
    TopicCommand,
    TrimTopic,
    UpsertNode,
)
from ister.metadata.copies import report_copies
from ister.metadata.cursors import claim_cursor, flush_cursors
from ister.metadata.history import change_history
from ister.metadata.merging import replace_objects
from ister.metadata.nodes import why_not_placed
from ister.metadata.pins import set_pins
from ister.metadata.subscriptions import change_subscription, flush
from ister.metadata.topics import SegmentState, TopicState

if TYPE_CHECKING:
    from ister.metadata.state import ClusterState

Apply = Callable[["ClusterState", int, Any], Outcome]
ApplyToTopic = Callable[["ClusterState", int, TopicState, Any], Outcome]


def apply_command(state: ClusterState, index: int, command: Command) -> Outcome:
    if isinstance(command, TopicCommand):
        topic = state.topic_by_uid(command.topic_uid)
        if topic is None:
            return Outcome(Result.STALE, index, f"there is no topic with uid {command.topic_uid}")
        return TO_TOPICS[type(command)](state, index, topic, command)
    return TO_ALL[type(command)](state, index, command)


def _create(state: ClusterState, index: int, command: CreateTopic) -> Outcome:
    existing = state.topics.get(command.name)
    if existing is not None:
        return Outcome(Result.EXISTS, index, f"topic {command.name} exists", existing.uid)
    refused = why_not_placed(state.nodes, command.leader, command.replicas)
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
    state.add(TopicState(command.name, index, command.settings, command.created_at_us, [first]))
    return Outcome(Result.CREATED, index, topic_uid=index)


def _alter(state: ClusterState, index: int, topic: TopicState, command: AlterTopic) -> Outcome:
    changed = topic.settings.changed(command.changes)
    if changed is None:
        detail = f"not for a topic's settings: {command.changes}"
        return Outcome(Result.REFUSED, index, detail, topic.uid)
    opened, before = topic.open_segment, topic.settings.segment_records
    opened.records_limit = max(opened.records_limit, before, changed.segment_records)
    topic.settings = changed
    return Outcome(Result.APPLIED, index, topic_uid=topic.uid)


def _delete(state: ClusterState, index: int, topic: TopicState, command: DeleteTopic) -> Outcome:
    state.moves.deleted(topic)
    state.drop(topic)
    return Outcome(Result.APPLIED, index, topic_uid=topic.uid)


def _opened(state: ClusterState, index: int, topic: TopicState, command: OpenedSegment) -> Outcome:
    if topic.open_segment.segment != command.segment:
        return Outcome(Result.STALE, index, f"segment {command.segment} is not the open one")
    topic.open_segment.log_exists = True
    state.moves.opened(topic)
    return Outcome(Result.APPLIED, index, topic_uid=topic.uid)


def _seal(state: ClusterState, index: int, topic: TopicState, command: SealSegment) -> Outcome:
    with state.another_open_segment(topic):
        was_opened = topic.open_segment.log_exists
        outcome = seal(index, topic, state.nodes, state.moves, command)
        if outcome.result is Result.APPLIED:
            state.moves.sealed(topic, is_lost=bool(command.recovery), was_opened=was_opened)
    return outcome


def _accept_loss(state: ClusterState, index: int, topic: TopicState, command: AcceptLoss) -> Outcome:
    with state.another_open_segment(topic):
        was_opened = topic.open_segment.log_exists
        outcome = accept_loss(index, topic, state.nodes, command)
        if outcome.result is Result.APPLIED:
            state.moves.sealed(topic, is_lost=True, was_opened=was_opened)
    return outcome


def _subscription(state: ClusterState, index: int, topic: TopicState, command: Any) -> Outcome:
    return change_subscription(index, topic, state.nodes, command)


def _history(state: ClusterState, index: int, command: Any) -> Outcome:
    return change_history(index, state.topics_by_uid, command)


TO_TOPICS: Final[dict[type[TopicCommand], ApplyToTopic]] = {
    AlterTopic: _alter,
    DeleteTopic: _delete,
    TrimTopic: lambda state, index, topic, command: trim(index, topic, command),
    OpenedSegment: _opened,
    SealSegment: _seal,
    BeginRecovery: lambda state, index, topic, command: begin_recovery(index, topic, state.nodes, command),
    SetReplicas: lambda state, index, topic, command: set_replicas(index, topic, state.nodes, command),
    AcceptLoss: _accept_loss,
    AcceptGone: lambda state, index, topic, command: accept_gone(index, topic, state.nodes, command),
    ClaimCursor: lambda state, index, topic, command: claim_cursor(index, topic, state.nodes, command),
    ReplaceObjects: lambda state, index, topic, command: replace_objects(index, topic, command),
    RequestMove: lambda state, index, topic, command: state.moves.request(index, topic, state.nodes, command),
    ReleaseTopic: lambda state, index, topic, command: state.moves.release(index, topic, command),
    CreateSubscription: _subscription,
    DeleteSubscription: _subscription,
    ClaimSubscription: _subscription,
    SeekSubscription: _subscription,
    PauseSubscription: _subscription,
}
"""Those of one topic, which is looked up first."""

TO_ALL: Final[dict[type[Command], Apply]] = {
    FoundCluster: found_cluster,
    UpsertNode: upsert_node,
    RemoveNode: remove_node,
    DrainNode: lambda state, index, command: state.drains.drain(
        index, state.topics_by_uid.values(), state.nodes, command
    ),
    ActivateNode: lambda state, index, command: state.drains.activate(index, command),
    CreateTopic: _create,
    ReportCopies: report_copies,
    FlushCursors: lambda state, index, command: flush_cursors(index, state.topics_by_uid, command),
    SetPins: lambda state, index, command: set_pins(index, state.topics_by_uid, command),
    PublishObject: _history,
    AbandonObject: _history,
    ReleaseCopies: _history,
    ReportObject: _history,
    CancelMove: lambda state, index, command: state.moves.cancel(index, command),
    EndMove: lambda state, index, command: state.moves.end(index, command),
    FailMove: lambda state, index, command: state.moves.fail(index, command),
    FlushSubscriptions: lambda state, index, command: flush(index, state.topics_by_uid, command),
}
"""The others."""
