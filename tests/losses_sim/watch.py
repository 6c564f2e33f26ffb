"""What is seen from outside of a loss that is accepted: it reaches past all that was acknowledged (F6)."""

from __future__ import annotations

from ister.broker.node.broker import Broker
from ister.metadata.commands import AcceptLoss, Command, Outcome, Result
from ister.metadata.state import SegmentState
from ister.testing.history import History
from tests.cluster.raft_watch import is_dead
from tests.replicas_sim.watch import ReplicaWatch


class LossWatch(ReplicaWatch):
    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._lost_from: dict[int, int] = {}
        """By a segment's uid."""

    def _quorum_at(self, segment: SegmentState, end: int) -> int:
        """What lies before a loss is in the chain by the operator's word, however few have it: who waited for
        it is told so."""
        return 1 if end <= self._lost_from.get(segment.uid, -1) else super()._quorum_at(segment, end)

    def applied(self, broker: Broker, command: Command | None, outcome: Outcome) -> None:
        if isinstance(command, AcceptLoss) and outcome.result is Result.APPLIED and not is_dead():
            self._loss_applied(broker, command, outcome.index)
        super().applied(broker, command, outcome)

    def _loss_applied(self, broker: Broker, command: AcceptLoss, index: int) -> None:
        if index in self._seals_seen:
            return
        self._seals_seen.add(index)
        topic = broker.metadata.state.topic_by_uid(command.topic_uid)
        assert topic is not None
        segment = topic.segment(command.segment)
        assert segment is not None
        self._check_chain(topic)
        self._sealed_end[segment.uid] = command.end_offset
        self._lost_from[segment.uid] = command.lost_from
        self._carried.pop((command.topic_uid, command.segment), None)
        self._carried[command.topic_uid, command.segment + 1] = command.producers
        promised = self._acknowledged_end.get(segment.uid, 0)
        if command.end_offset < promised:
            self.history.violated(
                f"invariant 11: {topic.key_of(segment)} was given up as far as {command.end_offset}, and "
                f"offset {promised - 1} was acknowledged: it is given out again"
            )
