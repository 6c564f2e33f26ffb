"""What a change of the metadata means for this node's topics, in the order of the metadata's log.

The metadata has the change when this is called, and the next one comes after it: nothing here waits, and
what takes time (files to remove, a segment to open) is spawned. So whoever looks between two changes finds
the topics and leases that the metadata says (A2). A change that did not apply changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ister.broker.topic.topic_log import TopicLog
from ister.metadata.commands import (
    AcceptLoss,
    AlterTopic,
    BeginRecovery,
    Command,
    CreateTopic,
    DeleteTopic,
    Outcome,
    PublishObject,
    ReleaseCopies,
    RemoveNode,
    ReportObject,
    RequestMove,
    Result,
    SealSegment,
    SetReplicas,
    TrimTopic,
    UpsertNode,
)
from ister.metadata.copies import find_segment
from ister.metadata.moves import MoveStage
from ister.metadata.state import TopicState

if TYPE_CHECKING:
    from ister.broker.node.broker import Broker


class Applying:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def applied(self, command: Command | None, outcome: Outcome) -> None:
        broker = self._broker
        if not outcome.ok or outcome.result is Result.EXISTS:
            return
        match command:
            case CreateTopic():
                made = self._make(broker.metadata.state.topics[command.name])
                broker.replication.opened(made.state)
                broker.sync_leases()
            case DeleteTopic():
                self._topic_deleted(command.topic_uid)
                broker.sync_leases()
            case SealSegment() | AcceptLoss():
                broker.sync_leases()
                topic = self._topic_of(command.topic_uid)
                sealed = topic.state.segments[-2]
                broker.replication.sealed(topic.state, sealed)
                if broker.history is not None:
                    broker.history.exporting.sealed(topic.state.uid, sealed.uid)
                broker.replication.opened(topic.state)
                topic.chain_changed()
            case BeginRecovery():
                topic = self._topic_of(command.topic_uid)
                broker.replication.recovery_began(topic.state)
                topic.leadership.recovery_began()
            case RequestMove():
                self._topic_of(command.topic_uid).moving.look()
            case AlterTopic():
                self._topic_of(command.topic_uid).settings_changed()
            case SetReplicas():
                topic = self._topic_of(command.topic_uid)
                segment = topic.state.segment(command.segment)
                assert segment is not None
                broker.replication.replicas_changed(topic.state, segment, command.expected)
            case ReleaseCopies():
                topic = self._topic_of(command.topic_uid)
                segment = find_segment(topic.state, command.segment_uid)
                assert segment is not None
                broker.replication.replicas_changed(topic.state, segment, command.expected)
            case PublishObject():
                if broker.history is not None:
                    broker.history.exporting.published(command.segment_uid, command.exported_by)
            case ReportObject():
                if command.damaged and broker.history is not None:
                    broker.history.exporting.sealed(command.topic_uid, command.segment_uid)
            case TrimTopic():
                broker.replication.trimmed(self._topic_of(command.topic_uid).state)
                broker.spawn(broker.upkeep.drop_trimmed(command.topic_uid))
            case UpsertNode() | RemoveNode():
                broker.forwarder.forget(set(broker.metadata.state.active_members))
        move = broker.metadata.state.moves.of(outcome.topic_uid)
        if move is not None and move.stage == MoveStage.EXPORTED and broker.history is not None:
            broker.history.releasing.look_soon()

    def _topic_of(self, uid: int) -> TopicLog:
        broker = self._broker
        state = broker.metadata.state.topic_by_uid(uid)
        assert state is not None
        return broker.topics[state.name]

    def _make(self, state: TopicState) -> TopicLog:
        broker = self._broker
        topic = broker.topics[state.name] = TopicLog(broker.storage, state)
        if topic.leads and broker.storage.may_lead.is_set():
            topic.chain_changed()
        return topic

    def restored(self) -> None:
        """A snapshot brought another state: what the topics hold of the old one is replaced."""
        broker = self._broker
        state = broker.metadata.state
        for topic in list(broker.topics.values()):
            found = state.topic_by_uid(topic.state.uid)
            if found is None:
                self._topic_deleted(topic.state.uid)
                continue
            is_trimmed = found.start_offset > topic.state.start_offset
            topic.known.state = found
            topic.settings_changed()
            if is_trimmed:
                broker.spawn(broker.upkeep.drop_trimmed(found.uid))
        for found in state.topics.values():
            if found.name not in broker.topics:
                self._make(found)
        broker.sync_leases()
        for topic in broker.topics.values():
            topic.chain_changed()
        broker.replication.restored()

    def _topic_deleted(self, uid: int) -> None:
        broker = self._broker
        gone = next((topic for topic in broker.topics.values() if topic.state.uid == uid), None)
        if gone is not None:
            del broker.topics[gone.state.name]
            gone.delete()
            broker.replication.deleted(gone.state)
            broker.on_topics_changed()
            broker.spawn(broker.upkeep.remove_files(gone))
