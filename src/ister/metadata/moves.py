"""Moves of topics, as they are kept in the metadata: one row each, one machine, driven by commands alone.

A move is a handoff with a chosen next leader. Who leads the topic carries it out; what it came to is said by
the commands that the handoff consists of anyway, and is decided here when they are applied (R3). The paper on
it, with what a crash at each step does, is docs/internals/moves.md.

What holds:
- a topic has at most one move that is not over (M1); one that only waits for the old node's copies to go
  gives way to the next;
- a seal that carries a move's id applies only while that move is requested, and only to its target (M2);
- one that is over stays as it is.
"""

from __future__ import annotations

from enum import Enum, IntEnum, auto

import msgspec

from ister.metadata.commands import (
    CancelMove,
    EndMove,
    FailMove,
    Outcome,
    ReleaseTopic,
    RequestMove,
    Result,
)
from ister.metadata.nodes import Nodes, inactive_among
from ister.metadata.topics import SegmentState, TopicState
from ister.protocol.peer import node_of

MAX_ENDED = 200
"""So many of those that are over are kept, for people; the oldest go first."""


class MoveReason(IntEnum):
    """Why somebody wants it. For people: what is safe is the same for all (D14)."""

    OPERATOR = 1
    DRAIN = 2
    BALANCE = 3


class MoveStage(IntEnum):
    """In `local` mode nothing leaves its node, and there is neither `EXPORTED` nor `RELEASED`."""

    REQUESTED = 1
    SEALED = 2
    EXPORTED = 3
    """All that was sealed up to then is in the history, published and not known to be damaged."""
    RELEASED = 4
    """The metadata lists the old node for nothing of it; its files are about to go."""
    DONE = 5
    CANCELLED = 6
    FAILED = 7

    @property
    def is_over(self) -> bool:
        return self in (MoveStage.DONE, MoveStage.CANCELLED, MoveStage.FAILED)


class Event(Enum):
    """What happens to a move."""

    SEALED = auto()
    """The next segment was opened at the target."""
    OPENED = auto()
    """The target has made that segment's log."""
    ARRIVED = auto()
    """The same, and the old node's copies are to go to the history."""
    ENDED_UNOPENED = auto()
    """That segment was sealed before its log was made."""
    EXPORTED = auto()
    RELEASED = auto()
    ENDED = auto()
    """The old node has no files of it any more."""
    CANCEL = auto()
    FAIL = auto()
    DELETED = auto()


_NEXT = {
    (MoveStage.REQUESTED, Event.SEALED): MoveStage.SEALED,
    (MoveStage.REQUESTED, Event.CANCEL): MoveStage.CANCELLED,
    (MoveStage.REQUESTED, Event.FAIL): MoveStage.FAILED,
    (MoveStage.REQUESTED, Event.DELETED): MoveStage.FAILED,
    (MoveStage.SEALED, Event.OPENED): MoveStage.DONE,
    (MoveStage.SEALED, Event.ARRIVED): MoveStage.SEALED,
    (MoveStage.SEALED, Event.ENDED_UNOPENED): MoveStage.FAILED,
    (MoveStage.SEALED, Event.EXPORTED): MoveStage.EXPORTED,
    (MoveStage.SEALED, Event.CANCEL): MoveStage.CANCELLED,
    (MoveStage.SEALED, Event.DELETED): MoveStage.FAILED,
    (MoveStage.EXPORTED, Event.RELEASED): MoveStage.RELEASED,
    (MoveStage.EXPORTED, Event.CANCEL): MoveStage.CANCELLED,
    (MoveStage.EXPORTED, Event.DELETED): MoveStage.FAILED,
    (MoveStage.RELEASED, Event.ENDED): MoveStage.DONE,
    (MoveStage.RELEASED, Event.CANCEL): MoveStage.CANCELLED,
    (MoveStage.RELEASED, Event.DELETED): MoveStage.FAILED,
}
"""What is not here changes nothing: it comes too late, or is about another segment."""


class MoveState(msgspec.Struct, array_like=True):
    """On disk, in snapshots. Grows at the end."""

    id: int
    """The index of its `RequestMove`."""
    topic_uid: int
    topic: str
    """Its name, for people: the topic may be deleted since."""
    source: int
    """The member that led the topic when the move was requested, or when it was sealed."""
    target: int
    reason: int
    """A `MoveReason`."""
    stays: bool
    """Whether the target becomes the topic's home."""
    asked: tuple[int, int, int]
    """Who proposed it, in which of its starts, and as its how manieth: a repeat is the same move."""
    requested_at_us: int
    stage: int = MoveStage.REQUESTED
    segment: int = 0
    """The segment that was sealed for it; 0 before."""
    end_offset: int = 0
    sealed_at_us: int = 0
    detail: str = ""
    """Why it failed, or what else a person should know."""
    has_history: bool = False
    """Whether the old node's copies are to go to the history."""
    arrived: bool = False
    """The target has made its log: whatever is left is about the old node's copies."""

    @property
    def is_over(self) -> bool:
        return MoveStage(self.stage).is_over

    @property
    def is_requested(self) -> bool:
        return self.stage == MoveStage.REQUESTED

    @property
    def is_on_its_way(self) -> bool:
        """Whether the topic is not led by the target yet, and is to be."""
        return not self.is_over and not self.arrived

    def left_of(self, topic: TopicState) -> list[SegmentState]:
        """What was sealed up to its end and has records, the newest first."""
        found = reversed(topic.segments)
        return [one for one in found if one.segment <= self.segment and not one.is_empty]


def is_in_history(segment: SegmentState) -> bool:
    return segment.history is not None and not segment.history.damaged


class Moves:
    """All of them: those that are not over, and the last ones that are."""

    def __init__(self, rows: list[MoveState] | None = None) -> None:
        self.rows: dict[int, MoveState] = {row.id: row for row in rows or []}
        self._of_topic = {row.topic_uid: row for row in self.rows.values() if not row.is_over}

    def of(self, topic_uid: int) -> MoveState | None:
        """The topic's move that is not over."""
        return self._of_topic.get(topic_uid)

    def to_list(self) -> list[MoveState]:
        return list(self.rows.values())

    # Commands.

    def request(self, index: int, topic: TopicState, nodes: Nodes, command: RequestMove) -> Outcome:
        uid, leader = topic.uid, topic.open_segment.leader
        asked = (command.by, command.starts, command.number)
        same = next((row for row in self.rows.values() if row.asked == asked), None)
        running = self.of(uid)
        if (
            running is not None
            and (running.target, running.stays) == (command.target, command.stays)
            and (not running.arrived or leader == running.target)
        ):
            same = running
        if same is not None:
            return Outcome(Result.EXISTS, same.id, topic_uid=uid)
        refused = inactive_among(nodes, [command.target])
        if running is not None and not running.arrived:
            refused = (
                f"move {running.id} of {topic.name} to node {node_of(running.target)} is not over: "
                f"cancel it, or wait for it"
            )
        if refused:
            return Outcome(Result.REFUSED, index, refused, uid)
        if running is not None:
            self._step(running, Event.CANCEL, f"move {index} took its place; copies go by retention")
        row = MoveState(
            index,
            uid,
            topic.name,
            leader,
            command.target,
            command.reason,
            command.stays,
            asked,
            command.at_us,
            has_history=command.has_history,
        )
        self.rows[index] = row
        if leader == command.target:
            row.stage, row.detail = MoveStage.DONE, f"node {node_of(leader)} led it already"
            topic.home = command.target if command.stays else 0
        else:
            self._of_topic[uid] = row
        self._forget_old()
        return Outcome(Result.APPLIED, index, topic_uid=uid)

    def cancel(self, index: int, command: CancelMove) -> Outcome:
        row = self.rows.get(command.move)
        if row is None:
            return Outcome(Result.STALE, index, f"there is no move {command.move}, or no more")
        was_sealed = row.stage != MoveStage.REQUESTED
        if not self._step(row, Event.CANCEL):
            said = MoveStage(row.stage).name.lower()
            return Outcome(Result.STALE, index, f"move {row.id} is over: {said}", row.topic_uid)
        if was_sealed:
            row.detail = f"after the seal: node {node_of(row.target)} leads it"
        return Outcome(Result.APPLIED, index, topic_uid=row.topic_uid)

    def end(self, index: int, command: EndMove) -> Outcome:
        row = self.rows.get(command.move)
        if row is None or not self._step(row, Event.ENDED, command.detail):
            return Outcome(Result.STALE, index, f"move {command.move} does not wait for its end")
        return Outcome(Result.APPLIED, index, topic_uid=row.topic_uid)

    def fail(self, index: int, command: FailMove) -> Outcome:
        row = self.rows.get(command.move)
        if row is None or not self._step(row, Event.FAIL, command.why):
            return Outcome(Result.STALE, index, f"move {command.move} is not waiting to begin")
        return Outcome(Result.APPLIED, index, topic_uid=row.topic_uid)

    def release(self, index: int, topic: TopicState, command: ReleaseTopic) -> Outcome:
        running = self.of(topic.uid)
        if running is not None and running.is_on_its_way:
            detail = f"move {running.id} of {topic.name} is not over: cancel it, or wait for it"
            return Outcome(Result.REFUSED, index, detail, topic.uid)
        topic.home = 0
        return Outcome(Result.APPLIED, index, topic_uid=topic.uid)

    # What the chain says.

    def why_no_seal(self, topic: TopicState, move: int, next_leader: int) -> str:
        """Why a seal may not apply for this move (E7); empty if it may."""
        if not move:
            return ""
        row = self.rows.get(move)
        if row is None or row.topic_uid != topic.uid:
            return f"there is no move {move} of {topic.name}, or no more"
        if not row.is_requested:
            return f"move {move} of {topic.name} is {MoveStage(row.stage).name.lower()}"
        if next_leader != row.target:
            return f"move {move} of {topic.name} is to node {node_of(row.target)}, not {node_of(next_leader)}"
        return ""

    def sealed(self, topic: TopicState, *, is_lost: bool, was_opened: bool) -> None:
        """The topic has another open segment. `is_lost` if others ended the one before in its leader's place;
        `was_opened` if that one's log had been made."""
        before, opened = topic.segments[-2], topic.open_segment
        if is_lost and opened.leader != topic.home:
            topic.home = 0
        row = self.of(topic.uid)
        if row is None:
            return
        if row.is_requested and opened.leader == row.target:
            self._step(row, Event.SEALED)
            assert before.end_offset is not None
            row.segment, row.end_offset = before.segment, before.end_offset
            row.sealed_at_us, row.source = before.sealed_at_us, before.leader
            topic.home = row.target if row.stays else 0
        elif not was_opened and not row.is_requested and not row.arrived:
            why = f"node {node_of(row.target)} did not open the segment: it was lost, or cannot make its log"
            self._step(row, Event.ENDED_UNOPENED, why)

    def opened(self, topic: TopicState) -> None:
        """The log of the topic's open segment was made."""
        row = self.of(topic.uid)
        if row is None or row.is_requested:
            return
        if not row.has_history:
            self._step(row, Event.OPENED)
        elif not row.arrived:
            row.arrived = self._step(row, Event.ARRIVED)

    def look(self, topic: TopicState) -> None:
        """Something of the topic changed: are the old node's copies in the history, and let go of?"""
        row = self.of(topic.uid)
        if row is None or not row.arrived:
            return
        # Both go from the oldest on, so that one that is not there yet is among the first here.
        left = row.left_of(topic)
        if row.stage == MoveStage.SEALED and all(map(is_in_history, left)):
            self._step(row, Event.EXPORTED)
        if row.stage == MoveStage.EXPORTED and not any(row.source in one.replicas for one in left):
            self._step(row, Event.RELEASED)

    def deleted(self, topic: TopicState) -> None:
        row = self.of(topic.uid)
        if row is not None:
            self._step(row, Event.DELETED, "the topic was deleted")

    def _step(self, row: MoveState, event: Event, detail: str = "") -> bool:
        """Whether that changed anything."""
        stage = _NEXT.get((MoveStage(row.stage), event))
        if stage is None:
            return False
        row.stage, row.detail = stage, detail
        if stage.is_over:
            self._of_topic.pop(row.topic_uid, None)
            self._forget_old()
        return True

    def _forget_old(self) -> None:
        ended = [row.id for row in self.rows.values() if row.is_over]
        for ended_id in ended[: max(0, len(ended) - MAX_ENDED)]:
            del self.rows[ended_id]
