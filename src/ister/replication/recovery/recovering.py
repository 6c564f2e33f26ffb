"""Carrying out a recovery: the machine of `failover` on real messages, proposals and logs.

One attempt at a time for a segment. What the machine asks for is done side by side, each in its own task that
ends in one event; a pause passes every so often. An attempt that was given up is not the end of the matter:
whoever watches over the segments begins another while the segment is open and it is this node's turn
(`watching`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from ister.errors import (
    CorruptFrame,
    CorruptSegment,
    IsterError,
    NodeUnreachable,
    SegmentFenced,
    StorageFailed,
    UnknownTopic,
)
from ister.io.clock import monotonic
from ister.metadata.commands import BeginRecovery, Outcome, Result, SealSegment
from ister.metadata.state import SegmentState, TopicState
from ister.metadata.store import MetadataStore
from ister.protocol import replication as wire
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.peer import PeerKind, node_of
from ister.replication.copies.copies import Copies
from ister.replication.counters import ReplicationCounters
from ister.replication.recovery import failover_events as events
from ister.replication.recovery.failover import Recovery
from ister.wal.producers import ProducerRow

log = logging.getLogger("ister.replication.recovery")

PAUSE_SECONDS = 0.2
FENCE_SECONDS = 5.0
COPY_SECONDS = 120.0
FIRST_REST_SECONDS = 0.5
LAST_REST_SECONDS = 8.0


class Home(Protocol):
    """What a recovery needs of its node."""

    member: int
    metadata: MetadataStore
    copies: Copies

    async def ask(self, member: int, kind: PeerKind, header: bytes, timeout: float) -> bytes: ...

    def make_recovery_seal(
        self,
        topic: TopicState,
        found: events.ProposeSeal,
        producers: list[ProducerRow],
        last_append_time_us: int,
    ) -> SealSegment: ...


class Attempt:
    """One attempt of this node to recover the open segment of a topic."""

    def __init__(self, home: Home, topic: TopicState, on_answer: Callable[[IsterError | None], None]) -> None:
        """`on_answer` is told whether the metadata took the proposal to begin; else why not."""
        self._home = home
        self._on_answer = on_answer
        self._topic_uid = topic.uid
        self._segment: SegmentState = topic.open_segment
        self._key = topic.key_of(topic.open_segment)
        self._machine = Recovery(home.member, tuple(self._segment.replicas), self._members())
        self._events: asyncio.Queue[events.Event] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self.ended: events.Done | events.GiveUp | None = None

    @property
    def topic_uid(self) -> int:
        return self._topic_uid

    def describe(self) -> str:
        return self._machine.describe()

    def tell(self, event: events.Event) -> None:
        """What the metadata applied meanwhile."""
        self._events.put_nowait(event)

    async def run(self) -> events.Done | events.GiveUp:
        log.info("recovering", extra={"fields": {"segment": self._key}})
        self._events.put_nowait(events.Begin())
        self._start(self._pauses())
        try:
            while self.ended is None:
                event = await self._events.get()
                for effect in self._machine.step(event):
                    self._carry_out(effect)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        match self.ended:
            case events.Done(end_offset):
                fields = {"segment": self._key, "recovery": self._machine.recovery, "end": end_offset}
                log.info("recovery ended", extra={"fields": fields})
            case events.GiveUp(why, message, hint):
                # Where another goes on there is nothing that anybody should look at.
                is_news = why not in (events.Reason.SUPERSEDED, events.Reason.NOT_OPEN)
                fields = {"segment": self._key, "hint": hint}
                log.log(logging.WARNING if is_news else logging.INFO, "%s", message, extra={"fields": fields})
        return self.ended

    def _members(self) -> events.Members:
        state = self._home.metadata.state
        replicas = set(self._segment.replicas)
        active = state.active_members
        alive = [m for m in active if m not in replicas and self._home.metadata.is_alive(m)]
        return events.Members(frozenset(active), tuple(alive))

    async def _pauses(self) -> None:
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            self._events.put_nowait(events.PausePassed(self._members()))

    # Effects.

    def _carry_out(self, effect: events.Effect) -> None:
        match effect:
            case events.ProposeBegin():
                failed: events.Event = events.BeginMissed(events.ProposalFault.FAILED)
                self._start(self._tell_of(self._begin, failed))
            case events.Fence(member, recovery):
                failed = events.FenceMissed(member, events.FenceFault.UNREACHABLE)
                self._start(self._tell_of(partial(self._fence, member, recovery), failed))
            case events.Copy():
                failed = events.CopyMissed(effect.target, effect.source, events.CopyFault.TARGET)
                self._start(self._tell_of(partial(self._copy, effect), failed))
            case events.ProposeSeal():
                failed = events.SealMissed(events.ProposalFault.FAILED)
                self._start(self._tell_of(partial(self._seal, effect), failed))
            case events.Done() | events.GiveUp():
                self.ended = effect

    def _start(self, work: Awaitable[None]) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell_of(self, work: Callable[[], Awaitable[events.Event]], failed: events.Event) -> None:
        """Every effect ends in one event, also one that meets a defect."""
        try:
            event = await work()
        except Exception:
            log.exception("a step of the recovery of %s failed", self._key)
            event = failed
        self._events.put_nowait(event)

    async def _begin(self) -> events.Event:
        home = self._home
        command = BeginRecovery(self._topic_uid, self._segment.segment, home.member, home.metadata.starts)
        try:
            outcome = await home.metadata.propose(command)
        except IsterError as error:
            log.debug("the recovery of %s was not begun: %s", self._key, error)
            self._on_answer(error)
            return events.BeginMissed(events.ProposalFault.FAILED)
        self._on_answer(None)
        if outcome.result is Result.APPLIED:
            return events.Begun(outcome.index)
        return events.BeginMissed(_fault_of(outcome, self._key))

    async def _fence(self, member: int, recovery: int) -> events.Event:
        request = wire.Fence(self._topic_uid, self._segment.uid, recovery)
        try:
            async with asyncio.timeout(FENCE_SECONDS):
                if member == self._home.member:
                    answer = await self._home.copies.fence(request)
                else:
                    header = encode_header(request)
                    found = await self._home.ask(member, PeerKind.FENCE, header, FENCE_SECONDS)
                    answer = decode_header(wire.FenceAnswer, found)
        except (IsterError, OSError, TimeoutError) as error:
            log.info("node %d was not fenced for %s: %s", node_of(member), self._key, error)
            return events.FenceMissed(member, _fence_fault(error))
        return events.Fenced(
            member, answer.end_offset, answer.end_position, answer.in_doubt, answer.commit_end
        )

    async def _copy(self, effect: events.Copy) -> events.Event:
        request = wire.Copy(
            self._topic_uid, self._segment.uid, effect.recovery, effect.source, effect.end_offset
        )
        try:
            if effect.target == self._home.member:
                answer = await self._home.copies.copy(request)
            else:
                header = encode_header(request)
                found = await self._home.ask(effect.target, PeerKind.COPY, header, COPY_SECONDS)
                answer = decode_header(wire.CopyAnswer, found)
        except (IsterError, OSError) as error:
            log.info("node %d did not copy %s: %s", node_of(effect.target), self._key, error)
            return events.CopyMissed(effect.target, effect.source, _copy_fault(error))
        return events.Copied(effect.target, answer.end_offset, answer.end_position)

    async def _seal(self, found: events.ProposeSeal) -> events.Event:
        home = self._home
        try:
            topic = home.metadata.state.topic_by_uid(self._topic_uid)
            if topic is None:
                return events.SealMissed(events.ProposalFault.STALE)
            folded = await home.copies.fold(self._topic_uid, self._segment.uid, found.end_offset)
            seal = home.make_recovery_seal(topic, found, folded.producers.rows(), folded.last_append_time_us)
            outcome = await home.metadata.propose(seal)
        except (IsterError, OSError) as error:
            log.warning("the seal of %s at %d failed: %s", self._key, found.end_offset, error)
            return events.SealMissed(events.ProposalFault.FAILED)
        if outcome.result is Result.APPLIED:
            return events.SegmentSealed(found.end_offset)
        return events.SealMissed(_fault_of(outcome, self._key))


def _fault_of(outcome: Outcome, key: str) -> events.ProposalFault:
    log.info("a proposal for %s came to nothing: %s", key, outcome.detail)
    if outcome.result is Result.STALE:
        return events.ProposalFault.STALE
    return events.ProposalFault.REFUSED


def _fence_fault(error: Exception) -> events.FenceFault:
    match error:
        case SegmentFenced():
            return events.FenceFault.SUPERSEDED
        case UnknownTopic():
            return events.FenceFault.UNKNOWN
        case CorruptSegment() | StorageFailed() | OSError() if not isinstance(error, TimeoutError):
            return events.FenceFault.STORAGE
        case _:
            return events.FenceFault.UNREACHABLE


def _copy_fault(error: Exception) -> events.CopyFault:
    match error:
        case SegmentFenced():
            return events.CopyFault.SUPERSEDED
        case CorruptFrame():
            return events.CopyFault.SOURCE_DAMAGED
        case NodeUnreachable():
            return events.CopyFault.SOURCE_UNREACHABLE
        case _:
            return events.CopyFault.TARGET


class Recoveries:
    """The recoveries that this node coordinates: one for a segment."""

    def __init__(
        self, home: Home, spawn: Callable[[Awaitable[None]], None], counters: ReplicationCounters
    ) -> None:
        self._home = home
        self._spawn = spawn
        self._counters = counters
        self._given_up: dict[int, tuple[int, str]] = {}
        """Of segments whose last attempt here was given up: their topic, and why."""
        self._running: dict[int, Attempt] = {}
        self._is_held_up = False
        """The metadata did not take the last proposal to begin a recovery."""
        self._resting: dict[int, tuple[float, float]] = {}
        """After an attempt that was given up: until when there is no other, and how long the next rest is."""

    def begin(self, topic: TopicState) -> None:
        """Recover the topic's open segment, unless that is under way here, or was given up a moment ago."""
        uid = topic.open_segment.uid
        until, _ = self._resting.get(uid, (0.0, 0.0))
        if uid not in self._running and monotonic() >= until:
            attempt = self._running[uid] = Attempt(self._home, topic, self._answered)
            self._counters.recoveries_begun.add()
            self._spawn(self._run(uid, attempt))

    def _answered(self, error: IsterError | None) -> None:
        """One line for all segments while there is no majority, and one when there is: it is not theirs."""
        if error is not None and not self._is_held_up:
            fields = {"hint": "Start the voters that are down, or mend the network between them."}
            log.warning("recoveries cannot begin: %s", error.message, extra={"fields": fields})
        elif error is None and self._is_held_up:
            log.info("recoveries can begin again")
        self._is_held_up = error is not None

    def is_running(self, segment_uid: int) -> bool:
        return segment_uid in self._running

    def describe(self, segment_uid: int) -> str:
        """What this node's attempt has heard and waits for, or why the last one was given up; else empty."""
        attempt = self._running.get(segment_uid)
        return attempt.describe() if attempt is not None else self._given_up.get(segment_uid, (0, ""))[1]

    def described(self) -> list[tuple[int, int, str]]:
        """The same of all that there are: topic, segment, detail."""
        found = {uid: attempt.topic_uid for uid, attempt in self._running.items()}
        found.update({uid: topic for uid, (topic, _) in self._given_up.items() if uid not in found})
        return [(topic_uid, uid, self.describe(uid)) for uid, topic_uid in found.items()]

    async def _run(self, uid: int, attempt: Attempt) -> None:
        try:
            ended = await attempt.run()
            if isinstance(ended, events.GiveUp):
                self._counters.recoveries_failed.add()
                topic = self._home.metadata.state.topic_by_uid(attempt.topic_uid)
                if topic is not None and topic.open_segment.uid == uid:
                    self._given_up[uid] = (attempt.topic_uid, ended.message)
                    _, pause = self._resting.get(uid, (0.0, FIRST_REST_SECONDS))
                    self._resting[uid] = (
                        monotonic() + pause,
                        min(2 * pause, LAST_REST_SECONDS),
                    )
            else:
                self._counters.recoveries_ended.add()
                self._resting.pop(uid, None)
        finally:
            del self._running[uid]

    def sealed(self, segment_uid: int, end_offset: int) -> None:
        self._answered(None)
        self._given_up.pop(segment_uid, None)
        self._resting.pop(segment_uid, None)
        if segment_uid in self._running:
            self._running[segment_uid].tell(events.SegmentSealed(end_offset))

    def begun(self, segment_uid: int, recovery: int, by: int) -> None:
        self._answered(None)
        if segment_uid in self._running:
            self._running[segment_uid].tell(events.Superseded(recovery, by))

    def restored(self) -> None:
        """Much of the metadata came at once."""
        for uid, (topic_uid, _) in list(self._given_up.items()):
            place = self._home.copies.place(topic_uid, uid)
            if place is None or place.segment.is_sealed:
                self._given_up.pop(uid, None)
                self._resting.pop(uid, None)
        for uid, attempt in list(self._running.items()):
            place = self._home.copies.place(attempt.topic_uid, uid)
            if place is None:
                self.forget(uid)
            elif place.segment.end_offset is not None:
                self.sealed(uid, place.segment.end_offset)
            else:
                self.begun(uid, place.segment.recovery, place.segment.coordinator)

    def forget(self, segment_uid: int) -> None:
        """The topic is gone."""
        self._given_up.pop(segment_uid, None)
        self._resting.pop(segment_uid, None)
        if segment_uid in self._running:
            self._running[segment_uid].tell(events.BeginMissed(events.ProposalFault.STALE))
            self._running[segment_uid].tell(events.SegmentSealed(0))
