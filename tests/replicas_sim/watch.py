"""What only a simulation can see of replicated segments: acknowledgements, fences, seals, against all disks.

Besides what `tests.cluster.watch` looks at:

- A segment acknowledges: the frame is in the synced images of Q of its replicas (invariant 1), and is the
  producer's own (invariant 6).
- A seal is applied: Q of those that it names have all of the segment (F2).
- A copy was completed or replaced, or another node has one now: it is whole (F4, invariant 5).
- Copies agree on their common prefix: at acknowledgements, at seals, and now and then (invariant 2).
- A fence is written: its number is that of a recovery of this segment that was committed (F1).
- Nobody meets a broken invariant, a committed record that no replica has, or logs that differ, be it only to
  say so in a log (invariant 4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ister.broker.node.broker import Broker
from ister.broker.topic.topic_log import TopicLog
from ister.errors import InvariantBroken
from ister.frame import FrameHeader
from ister.metadata.commands import (
    BeginRecovery,
    Command,
    Outcome,
    ReportCopies,
    Result,
    SealSegment,
    SetReplicas,
)
from ister.metadata.state import SegmentState, TopicState
from ister.protocol.peer import node_of
from ister.replication.copies import copies as product_copies
from ister.replication.copies.completing import Completions
from ister.replication.places import Place
from ister.replication.recovery import recovering
from ister.replication.recovery.failover_events import Done, GiveUp, Reason
from ister.testing.history import History
from ister.wal.segment import FsyncPolicy, Segment
from tests.cluster.raft_watch import is_dead
from tests.cluster.watch import Watch, log_path
from tests.replicas_sim.copies import DurableCopies

NEVER = (Reason.COMMITTED_MISSING, Reason.DIVERGED)


class ReplicaWatch(Watch):
    def __init__(self, history: History) -> None:
        super().__init__(history)
        self.copies = DurableCopies(history, self.disk_of)
        self.failovers = 0
        """Seals at the end of a recovery."""
        self.begun: dict[int, list[int]] = {}
        """By a segment's uid: the numbers of its recoveries."""
        self.gave_up: list[str] = []
        self.reports = 0
        """Of copies that are whole, and count for that."""
        self._changes_seen: set[int] = set()
        self._opened_with: dict[int, list[int]] = {}
        """By a segment's uid: the replicas that it was opened with."""

    def applied(self, broker: Broker, command: Command | None, outcome: Outcome) -> None:
        if outcome.ok and not is_dead():
            topic = broker.metadata.state.topic_by_uid(outcome.topic_uid)
            if topic is not None:
                self._opened_with.setdefault(topic.open_segment.uid, topic.open_segment.replicas)
                if isinstance(command, BeginRecovery) and outcome.result is Result.APPLIED:
                    self.begun.setdefault(topic.open_segment.uid, []).append(outcome.index)
                if isinstance(command, SetReplicas) and outcome.result is Result.APPLIED:
                    self._check_new_copies(topic, command, outcome.index)
            if isinstance(command, ReportCopies) and outcome.index not in self._changes_seen:
                self._changes_seen.add(outcome.index)
                self._check_report(broker, command)
        super().applied(broker, command, outcome)

    def replicas_of(self, segment: SegmentState) -> list[int]:
        """Those it was opened with, and those it has now."""
        opened_with = self._opened_with.get(segment.uid, segment.replicas)
        return list(dict.fromkeys((*opened_with, *segment.replicas)))

    def quorum_of(self, segment: SegmentState) -> int:
        return len(self._opened_with.get(segment.uid, segment.replicas)) // 2 + 1

    def _quorum_at(self, segment: SegmentState, end: int) -> int:
        """How many have to have what is acknowledged up to here."""
        return self.quorum_of(segment)

    # Acknowledgements.

    def acknowledged(self, segment: Segment, node: int, base: int, header: FrameHeader) -> None:
        owner = segment._owner
        assert isinstance(owner, TopicLog)
        uid = segment.identity.uid
        if len(self._opened_with.get(uid, ())) == 1:
            super().acknowledged(segment, node, base, header)
        elif not is_dead():
            self.acknowledgements += 1
            self._check_not_sealed(segment, base, header)
            state = next((found for found in owner.state.segments if found.uid == uid), None)
            if state is not None and segment.policy is FsyncPolicy.FSYNC and base >= state.base_offset:
                self._acknowledged_end[uid] = max(self._acknowledged_end.get(uid, 0), base + header.count)
                self._check_held(owner.state, state, base, header)

    def _check_held(self, topic: TopicState, state: SegmentState, base: int, header: FrameHeader) -> None:
        ends = {member: self.copies.end_of(member, topic, state) for member in self.replicas_of(state)}
        holders = [member for member, end in ends.items() if end >= base + header.count]
        if len(holders) < self._quorum_at(state, base + header.count):
            shown = {node_of(member): end for member, end in ends.items()}
            self.history.violated(
                f"invariant 1: offset {base} of {topic.key_of(state)} was acknowledged, and is durable on "
                f"{len(holders)} of {len(state.replicas)} disks, which end at {shown}"
            )
            return
        found = next(frame for frame in self.copies.frames(state.uid) if frame.end_offset > base)
        if found[6:9] != header[6:9] or found.base_offset != base:
            self.history.violated(
                f"invariant 6: offset {base} of {topic.key_of(state)} was acknowledged to producer "
                f"{header.producer_id:x} for sequence {header.sequence}, but is {found}"
            )

    # Seals.

    def _seal_applied(self, broker: Broker, command: SealSegment, index: int) -> None:
        if index not in self._seals_seen and not is_dead():
            self.failovers += command.recovery > 0
            topic = broker.metadata.state.topic_by_uid(command.topic_uid)
            assert topic is not None
            state = topic.segment(command.segment)
            assert state is not None
            if len(self.replicas_of(state)) > 1 and topic.name not in self.weak:
                self._check_sealed_copies(topic, state)
        super()._seal_applied(broker, command, index)

    def _check_sealed_copies(self, topic: TopicState, state: SegmentState) -> None:
        assert state.end_offset is not None
        ends = {member: self.copies.end_of(member, topic, state) for member in self.replicas_of(state)}
        for member in state.whole:
            if ends[member] < state.end_offset:
                self.history.violated(
                    f"C1: the seal of {topic.key_of(state)} at {state.end_offset} says that node "
                    f"{node_of(member)} has all of it, which ends at {ends[member]}"
                )
        if sum(end >= state.end_offset for end in ends.values()) < self.quorum_of(state):
            shown = {node_of(member): end for member, end in ends.items()}
            self.history.violated(
                f"invariant 5: {topic.key_of(state)} was sealed at {state.end_offset}, and its copies end at "
                f"{shown}"
            )

    # Repair.

    def _check_new_copies(self, topic: TopicState, command: SetReplicas, index: int) -> None:
        segment = topic.segment(command.segment)
        if index in self._changes_seen or segment is None:
            return
        self._changes_seen.add(index)
        for member in command.replicas:
            # One that was started again while the change was under way gave its copy up, and begins anew.
            is_there = self.disk_of(member).exists(log_path(topic, segment))
            if member not in command.expected and is_there:
                self._check_whole(member, topic, segment)

    def _check_report(self, broker: Broker, command: ReportCopies) -> None:
        """C2: who says that it has all of a segment, durably, has; and counts for that from now on."""
        for entry in command.entries:
            topic = broker.metadata.state.topic_by_uid(entry.topic_uid)
            segments = topic.segments if topic is not None else []
            segment = next((one for one in segments if one.uid == entry.segment_uid), None)
            if topic is not None and segment is not None and segment.is_whole_at(command.member):
                self.reports += 1
                self._check_whole(command.member, topic, segment)

    def _check_whole(self, member: int, topic: TopicState, segment: SegmentState) -> None:
        copies, key = self.copies, topic.key_of(segment)
        if not copies.is_damaged(member, segment.uid) and not copies.is_whole(member, topic, segment):
            self.history.violated(
                f"invariant 5: the copy of {key} on node {node_of(member)} counts as whole, and is good up "
                f"to {copies.end_of(member, topic, segment)} of {segment.end_offset}"
            )

    def _watched_try(self, try_: Callable[..., Any]) -> Callable[..., Any]:
        async def watched(completions: Completions, place: Place, *args: Any) -> bool:
            is_whole: bool = await try_(completions, place, *args)
            if is_whole and not is_dead() and self._is_there(completions, place):
                self._check_whole(completions._member, place.topic, place.segment)
            return is_whole

        return watched

    def _is_there(self, completions: Completions, place: Place) -> bool:
        """Not trimmed or deleted meanwhile."""
        return completions._copies.place(place.topic.uid, place.segment.uid) is not None

    def _log_at_seal(self, topic: TopicState, state: SegmentState) -> Iterator[FrameHeader]:
        if len(self.replicas_of(state)) == 1:
            return super()._log_at_seal(topic, state)
        return iter(self.copies.frames(state.uid))

    # Now and then.

    def check_bounds(self, broker: Broker, in_flight_bytes: int) -> None:
        super().check_bounds(broker, in_flight_bytes)
        for topic in broker.metadata.state.topics.values():
            if len(topic.open_segment.replicas) > 1:
                for member in topic.open_segment.replicas:
                    self.copies.end_of(member, topic, topic.open_segment)

    # The hooks.

    def hooks(self) -> list[tuple[object, str, object]]:
        return [
            *super().hooks(),
            (product_copies, "write_fence", self._watched_fence(vars(product_copies)["write_fence"])),
            (recovering.Attempt, "run", self._watched_attempt(recovering.Attempt.run)),
            (Completions, "_try", self._watched_try(Completions._try)),
            (InvariantBroken, "__init__", self._watched_invariant(InvariantBroken.__init__)),
        ]

    def _watched_fence(self, write_fence: Callable[..., None]) -> Callable[..., None]:
        def watched(disk: Any, path: str, recovery: int) -> None:
            uid = int(path.rpartition("-")[2])
            if recovery not in self.begun.get(uid, ()) and not is_dead():
                self.history.violated(
                    f"F1: {path} is fenced by recovery {recovery}, and was recovered by {self.begun.get(uid)}"
                )
            write_fence(disk, path, recovery)

        return watched

    def _watched_attempt(self, run: Callable[..., Any]) -> Callable[..., Any]:
        async def watched(attempt: recovering.Attempt) -> Done | GiveUp:
            ended: Done | GiveUp = await run(attempt)
            if isinstance(ended, GiveUp):
                self.gave_up.append(ended.message)
                if ended.why in NEVER and not is_dead():
                    self.history.violated(f"invariant 4: {attempt._key}: {ended.message}")
            return ended

        return watched

    def _watched_invariant(self, init: Callable[..., None]) -> Callable[..., None]:
        def watched(error: InvariantBroken, message: str, **options: Any) -> None:
            init(error, message, **options)
            if not is_dead():
                self.history.violated(f"an invariant is broken: {message}")

        return watched
