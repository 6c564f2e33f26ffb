"""What only a simulation can see of moves: each command, as it is applied, against what was so before.

Besides what `tests.replicas_sim.watch` looks at:

- A seal that carries a move's id was applied: the move was not cancelled, and the target leads (M2, E7).
- A topic has one move at a time that is not over (M1).
- A drained node left a list: of those that stay, one has all of it on its disk, or had until it rotted (D1).
"""

from __future__ import annotations

from ister.broker.node.broker import Broker
from ister.frame import FrameHeader
from ister.metadata.commands import Command, Outcome, ReleaseCopies, Result, SealSegment, SetReplicas
from ister.metadata.copies import find_segment
from ister.metadata.moves import MoveStage
from ister.metadata.state import SegmentState, TopicState
from ister.protocol.peer import node_of
from ister.testing.history import History
from tests.cluster.raft_watch import is_dead
from tests.moves_sim.stored import StoreWatch
from tests.replicas_sim.watch import ReplicaWatch


class MoveWatch(ReplicaWatch):
    _judged = 0
    """The last index of which the chain's changes were judged."""
    stored: StoreWatch | None = None
    """Where there is a history outside the brokers."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._released: dict[int, int] = {}
        """Segments whose copies may go, and their ends: `stored` has seen that the history has all of it."""

    def applied(self, broker: Broker, command: Command | None, outcome: Outcome) -> None:
        if outcome.result is Result.APPLIED and not is_dead() and outcome.index > self._judged:
            self._judged = outcome.index
            topic = broker.metadata.state.topic_by_uid(outcome.topic_uid)
            if self.stored is not None and command is not None:
                self.stored.applied(broker.metadata.state, command, outcome.topic_uid)
            if isinstance(command, SealSegment) and command.move and topic is not None:
                self._check_seal(broker, topic, command)
            if isinstance(command, SetReplicas) and command.expected_whole is not None and topic is not None:
                self._check_left(topic, command)
            if isinstance(command, ReleaseCopies) and topic is not None:
                released = find_segment(topic, command.segment_uid)
                if released is not None and released.end_offset is not None:
                    self._released[released.uid] = released.end_offset
            moves = broker.metadata.state.moves.rows.values()
            running = [row.topic_uid for row in moves if not row.is_over]
            if len(running) != len(set(running)):
                self.history.violated("M1: a topic has two moves that are not over")
        super().applied(broker, command, outcome)

    def hooks(self) -> list[tuple[object, str, object]]:
        return [*super().hooks(), *(self.stored.hooks() if self.stored is not None else ())]

    def _check_held(self, topic: TopicState, state: SegmentState, base: int, header: FrameHeader) -> None:
        """Who was away since it had a majority may say so when all of it is released already."""
        if base + header.count > self._released.get(state.uid, 0):
            super()._check_held(topic, state, base, header)

    def _check_seal(self, broker: Broker, topic: TopicState, command: SealSegment) -> None:
        row = broker.metadata.state.moves.rows.get(command.move)
        if row is None or row.stage == MoveStage.REQUESTED or not row.segment:
            was = "gone" if row is None else MoveStage(row.stage).name.lower()
            self.history.violated(f"E7: {topic.name} was sealed for move {command.move}, which is {was}")
        elif topic.open_segment.leader != row.target:
            self.history.violated(f"M2: move {row.id} of {topic.name} led elsewhere")

    def _check_left(self, topic: TopicState, command: SetReplicas) -> None:
        segment = topic.segment(command.segment)
        left = [member for member in command.expected if member not in command.replicas]
        if segment is None or not left or segment.is_empty:
            return
        stay = [member for member in command.replicas if member in command.expected]
        # One that has rotted since it said so counts still: it is found before files go (C4).
        uid = segment.uid
        if not any(
            self.copies.is_damaged(one, uid) or self.copies.is_whole(one, topic, segment) for one in stay
        ):
            nodes = ", ".join(str(node_of(member)) for member in left)
            self.history.violated(f"C3: nodes {nodes} left {topic.key_of(segment)}, and nobody is whole")
