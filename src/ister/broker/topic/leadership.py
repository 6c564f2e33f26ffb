"""Leading an open segment, and losing it: what is different where it has other replicas.

The leader sends what it takes to the followers, and commits what enough of them have. It is the leader for as
long as its process lives and its disk works: after a restart, a failed write, a fence, or too long without
enough followers, it takes nothing more and acknowledges nothing more, and a recovery ends the segment (A3,
H4). What it had admitted is then in the log, and is acknowledged; or it is not, and goes to the next leader
before what came later (H2).
"""

from __future__ import annotations

import asyncio
import logging

from ister.broker.node.storage import Storage
from ister.broker.topic import handoff as steps
from ister.broker.topic.handing_off import HandingOff
from ister.broker.topic.known import KnownTopic
from ister.broker.topic.led_segment import LedSegment
from ister.broker.topic.life import Stage
from ister.broker.topic.rolling_over import RollingOver
from ister.broker.topic.sealing import seen_by
from ister.errors import CorruptSegment, IsterError, NotLeader, SegmentFenced, UnknownProducer
from ister.metadata.placement import Why, replicas_of
from ister.protocol.peer import node_of
from ister.replication.stream.follower import Known
from ister.replication.stream.leader import Leading
from ister.wal.opening import Synced
from ister.wal.segment import Segment
from ister.wal.sink import Sink

log = logging.getLogger("ister.broker.topic")

CONFIRM_SECONDS = 1.0
"""How long the followers have to say that this node still leads, before it tells somebody of an end."""


class Leadership:
    def __init__(
        self,
        topic: KnownTopic,
        storage: Storage,
        led: LedSegment,
        handing_off: HandingOff,
        rolling_over: RollingOver,
    ) -> None:
        self._topic = topic
        self._storage = storage
        self._led = led
        self._handing_off = handing_off
        self._rolling_over = rolling_over
        self._stands: tuple[int, int, float] | None = None
        """The segment, its committed end, and when that was first seen while something waited behind it."""
        self._refusing: set[asyncio.Task[None]] = set()
        """Appends that are refused once it is confirmed that this node may."""

    # What is said of the open segment.

    async def confirm_end(self, segment: Segment | None) -> None:
        """Raise `NotLeader` unless the open segment could not have been ended by others without this node
        having heard: a reader is never told of an early end (promise 5)."""
        led, storage, name = self._led, self._storage, self._topic.state.name
        if led.stage is Stage.ENDING and not storage.metadata.is_alone:
            # A seal may be applied of which this node has not heard, and that is no fence: nobody but the
            # metadata's leader knows.
            await storage.metadata.read_index(CONFIRM_SECONDS)
            if segment is not led.current:
                raise NotLeader(f"the open segment of {name} was sealed meanwhile")
        if segment is not None and segment.replication is None:
            return  # without other replicas nobody else can end it
        leading = led.leading
        if segment is None or leading is None or leading.segment is not segment:
            raise NotLeader(f"the open segment of {name} is not led by this node any more")
        if not await leading.confirm(CONFIRM_SECONDS):
            raise NotLeader(
                f"too few replicas of {segment.identity.key} confirm that node {storage.node_id} still "
                f"leads it: whether it ends here is not known"
            )

    def found_damage(self, segment: Segment, error: CorruptSegment) -> None:
        """In the log of the segment that this node leads. Returns if there is nobody else to ask.

        The others have it whole: they end the segment, and this copy is mended then. The only copy is
        reported and served as it is, and what comes next goes to another segment: behind a damaged header
        nobody would find it. A read that only failed is not told here (`Reads._failed`)."""
        if segment.replication is not None:
            self.lose(error.message)
            raise NotLeader(f"this node's copy is not served: {error.message}") from error
        if error.offsets is not None and segment is self._led.current and self._led.handoff.admits:
            self._rolling_over.roll_over(Why.DAMAGE)

    def refuse_if_leading(self, segment: Segment, error: UnknownProducer, sink: Sink, token: int) -> None:
        """That is final for a producer; and a leader that was replaced, and has not heard of it, knows none
        that began to send since. It has no say then, and the producer looks for who has."""

        async def refuse() -> None:
            answer: IsterError = NotLeader(f"whether {segment.identity.key} ends here is not known")
            try:
                await self.confirm_end(segment)
                answer = error
            except IsterError as doubt:
                answer = doubt
            finally:
                sink.refused(token, answer)

        task = asyncio.get_running_loop().create_task(refuse())
        self._refusing.add(task)
        task.add_done_callback(self._refusing.discard)

    # Leading.

    def begin(self) -> None:
        """A segment was opened. One with other replicas is new: nothing was appended to it anywhere."""
        segment, state, storage = self._led.segment, self._topic.state.open_segment, self._storage
        if segment is not None and len(state.replicas) > 1:
            segment.replication = self._led.leading = Leading(
                self._topic.state.uid,
                segment,
                storage.member,
                state.replicas,
                storage.replication.streams,
                storage.disk,
                self.lose,
            )

    @property
    def has_followers(self) -> bool:
        """Whether this node leads a segment with other replicas, and it takes appends."""
        return self._led.leading is not None and self._led.handoff.admits

    def check_quorum(self, now: float) -> None:
        """Whether nothing was committed for too long while something waits for enough replicas. Looked at now
        and then: when an append came does not tell, it may have waited for room before it was admitted."""
        segment, timeout = self._led.segment, self._storage.quorum_timeout_seconds
        if self._led.leading is None or segment is None or segment.failure is not None or segment.is_idle:
            self._stands = None
        elif self._stands is None or self._stands[:2] != (segment.identity.uid, segment.committed_end):
            self._stands = segment.identity.uid, segment.committed_end, now
        elif now - self._stands[2] > timeout:
            self._storage.replication.counters.quorum_timeouts.add()
            self.lose(f"too few of its replicas answered for {timeout:g} s")

    def check_replicas(self, now: float) -> None:
        """Hand off to a segment with replicas that answer, where a follower is lost for long or drained; and
        to one with more replicas, where the topic wants more than it has and there are nodes for them."""
        led, topic, storage = self._led, self._topic.state, self._storage
        if led.segment is None or not led.handoff.admits:
            return
        lost = led.leading.lost(now, storage.replica_lost_seconds) if led.leading is not None else []
        drained = storage.metadata.state.drains.members
        lost += [member for member in topic.open_segment.replicas if member in drained]
        wanted = replicas_of(storage.member, topic.settings.replicas, topic.name, seen_by(storage))
        # One that answers, and whom nobody could stand in for, would only be chosen again.
        if set(lost) - set(wanted) or len(wanted) > len(topic.open_segment.replicas):
            self._rolling_over.roll_over(Why.REPLICAS)

    # Losing it.

    def recovery_began(self) -> None:
        """The metadata says that somebody recovers the open segment."""
        if self._topic.leads:
            coordinator = node_of(self._topic.state.open_segment.coordinator)
            self.lose(f"node {coordinator} has begun to recover it")

    async def fenced(self, segment_uid: int) -> Known:
        """A recovery fences this segment here: nothing is written to it when this returns."""
        segment = self._led.segment
        if segment is None or segment.identity.uid != segment_uid:
            return Known()
        self.lose("a recovery has fenced it")
        await segment.settled()
        return Known(segment.committed_end, Synced(segment.durable_end, segment.durable_position))

    def lose(self, why: str) -> None:
        """The open segment is not this process's to go on with (A3, H4)."""
        segment = self._led.current
        if segment is None:
            return
        handoff = self._led.handoff
        is_sealing = handoff.phase is steps.Phase.SEALING
        effects = handoff.step(steps.Lost())
        if effects:
            # While it is sealed that is no news: a follower may have heard of the seal first.
            level = logging.INFO if is_sealing else logging.WARNING
            log.log(level, "%s takes no more appends: %s", segment.identity.key, why)
            self.stop_leading(segment, why)
            self._handing_off.carry_out(effects)

    def leave_if_ended(self) -> None:
        """Others have ended the segment that is open here: an operator gave it up, or it was sealed."""
        segment = self._led.segment
        if segment is None or segment is self._led.current:
            return
        state = self._handing_off.state_of(segment)
        if state is not None and state.lost_from is not None:
            self._leave_given_up(segment, state.lost_from)
        elif not self._topic.is_deleted:
            self._leave_sealed(segment)

    def _leave_given_up(self, segment: Segment, lost_from: int) -> None:
        """An operator was told that this node is stopped, and has given up the segment that it leads (F6).
        What was not acknowledged yet will not be: it goes to the next leader."""
        effects = self._led.handoff.step(steps.Lost())
        if segment.committed_end > lost_from:
            log.error(
                "%s was given up while this node was running: offsets %d to %d were acknowledged, are lost",
                segment.identity.key,
                lost_from,
                segment.committed_end - 1,
            )
        self.stop_leading(segment, f"its records from {lost_from} on were given up by an operator")
        self._handing_off.carry_out(effects)

    def _leave_sealed(self, segment: Segment) -> None:
        """Somebody else has sealed the segment that this process leads, and it hears of that and of the
        recovery at once: a snapshot brought both. One that drains would wait for followers for ever."""
        if self._handing_off.task is not None and self._led.handoff.phase is not steps.Phase.DRAINING:
            return
        effects = self._led.handoff.step(steps.Lost())
        if effects:
            self.stop_leading(segment, "another node has sealed it")
            self._handing_off.carry_out(effects)

    def stop_leading(self, segment: Segment, why: str) -> None:
        segment.stop(SegmentFenced(f"{segment.identity.key} takes no more appends: {why}"))
        self._led.stop_leading()
