"""A topic whose open segment has other replicas: what is different for its leader.

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
from ister.broker.topic.held import HeldAppend
from ister.broker.topic.opening import OpenableTopic
from ister.broker.topic.sealing import replicas_for
from ister.errors import CorruptSegment, IsterError, NotLeader, SegmentFenced, UnknownProducer
from ister.frame import FrameHeader, decode_header
from ister.metadata.state import SegmentState, TopicState
from ister.protocol.peer import node_of
from ister.quorum import revealing
from ister.replication.stream.follower import Known
from ister.replication.stream.leader import Leading
from ister.wal.recovery import Synced
from ister.wal.segment import Segment
from ister.wal.sink import Sink, Waiting

log = logging.getLogger("ister.broker.topic")

CONFIRM_SECONDS = 1.0
"""How long the followers have to say that this node still leads, before it tells somebody of an end."""


class ReplicatedTopic(OpenableTopic):
    leading: Leading | None = None
    """The followers of the open segment, where it has some and this node leads it."""
    _stands: tuple[int, int, float] | None = None
    """The segment, its committed end, and when that was first seen while something waited behind it."""

    def __init__(self, storage: Storage, state: TopicState) -> None:
        super().__init__(storage, state)
        self._refusing: set[asyncio.Task[None]] = set()
        """Appends that are refused once it is confirmed that this node may."""

    def _run_soon(self, effects: list[steps.Effect]) -> None:
        raise NotImplementedError

    def roll_over(self) -> None:
        raise NotImplementedError

    def _sealed_already(self, segment: Segment) -> list[steps.Effect] | None:
        raise NotImplementedError

    # Leading.

    def _replicate(self, segment: Segment, state: SegmentState) -> None:
        """A new segment: nothing was appended to it, here or anywhere."""
        if len(state.replicas) > 1:
            storage = self._storage
            segment.replication = self.leading = Leading(
                self.state.uid,
                segment,
                storage.member,
                state.replicas,
                storage.replication.streams,
                storage.disk,
                self.lose,
            )

    def recovery_began(self) -> None:
        """The metadata says that somebody recovers the open segment."""
        if self.leads:
            coordinator = node_of(self.state.open_segment.coordinator)
            self.lose(f"node {coordinator} has begun to recover it")

    def lose(self, why: str) -> None:
        """The open segment is not this process's to go on with (A3, H4)."""
        segment = self.segment
        if segment is None or segment.identity.uid != self.state.open_segment.uid:
            return
        is_sealing = self._handoff.phase is steps.Phase.SEALING
        effects = self._handoff.step(steps.Lost())
        if effects:
            # While it is sealed that is no news: a follower may have heard of the seal first.
            level = logging.INFO if is_sealing else logging.WARNING
            log.log(level, "%s takes no more appends: %s", segment.identity.key, why)
            self._stop_leading(segment, why)
            self._run_soon(effects)

    def _leave_if_given_up(self) -> None:
        """An operator was told that this node is stopped, and has given up the segment that it leads (F6).
        What was not acknowledged yet will not be: it goes to the next leader."""
        segment = self.segment
        if segment is None or segment is self.current:
            return
        state = next((one for one in self.state.segments if one.uid == segment.identity.uid), None)
        if state is None or state.lost_from is None:
            return
        effects = self._handoff.step(steps.Lost())
        why = f"its records from {state.lost_from} on were given up by an operator"
        if segment.committed_end > state.lost_from:
            log.error(
                "%s was given up while this node was running: offsets %d to %d were acknowledged, are lost",
                segment.identity.key,
                state.lost_from,
                segment.committed_end - 1,
            )
        self._stop_leading(segment, why)
        if effects:
            self._run_soon(effects)

    def _leave_if_sealed(self) -> None:
        """Somebody else has sealed the segment that this process leads, and it hears of that and of the
        recovery at once: a snapshot brought both. One that drains would wait for followers for ever."""
        segment = self.segment
        if segment is None or segment is self.current or self.is_deleted:
            return
        if self._handing_off is not None and self._handoff.phase is not steps.Phase.DRAINING:
            return
        effects = self._handoff.step(steps.Lost())
        if effects:
            self._stop_leading(segment, "another node has sealed it")
            self._run_soon(effects)

    def _stop_leading(self, segment: Segment, why: str) -> None:
        segment.stop(SegmentFenced(f"{segment.identity.key} takes no more appends: {why}"))
        if self.leading is not None:
            self.leading.close()
            self.leading = None

    def check_quorum(self, now: float) -> None:
        """Whether nothing was committed for too long while something waits for enough replicas. Looked at now
        and then: when an append came does not tell, it may have waited for room before it was admitted."""
        segment, timeout = self.segment, self._storage.quorum_timeout_seconds
        if self.leading is None or segment is None or segment.failure is not None or segment.is_idle:
            self._stands = None
        elif self._stands is None or self._stands[:2] != (segment.identity.uid, segment.committed_end):
            self._stands = segment.identity.uid, segment.committed_end, now
        elif now - self._stands[2] > timeout:
            self._storage.replication.counters.quorum_timeouts.add()
            self.lose(f"too few of its replicas answered for {timeout:g} s")

    def check_replicas(self, now: float) -> None:
        """Hand off to a segment with replicas that answer, where a follower is lost for long; and to one with
        more replicas, where the topic wants more than it has and there are nodes for them."""
        if self.segment is None or not self._handoff.admits:
            return
        seconds = self._storage.replica_lost_seconds
        lost = self.leading.lost(now, seconds) if self.leading is not None else []
        wanted = replicas_for(
            self._storage, self.state.name, self.state.settings.replicas, self._storage.member
        )
        # One that answers, and whom nobody could stand in for, would only be chosen again.
        if set(lost) - set(wanted) or len(wanted) > len(self.state.open_segment.replicas):
            self.roll_over()

    async def fenced(self, segment_uid: int) -> Known:
        """A recovery fences this segment here: nothing is written to it when this returns."""
        segment = self.segment
        if segment is None or segment.identity.uid != segment_uid:
            return Known()
        self.lose("a recovery has fenced it")
        await segment.settled()
        return Known(segment.committed_end, Synced(segment.durable_end, segment.durable_position))

    def found_damage(self, segment: Segment, error: CorruptSegment) -> None:
        """The others have it whole: they end the segment, and this copy is mended then. The only copy is
        reported and served as it is, and what comes next goes to another segment: behind a damaged header
        nobody would find it. A read that only failed is not told here (`_failed_in_led`)."""
        if segment.replication is not None:
            self.lose(error.message)
            raise NotLeader(f"this node's copy is not served: {error.message}") from error
        if error.offsets is not None and segment is self.current and self._handoff.admits:
            self.roll_over()

    @property
    def is_being_sealed(self) -> bool:
        """Whether a seal of the open segment may be under way: it may be applied before this node hears of
        it, and another may have gone on."""
        return self._handing_off is not None

    async def confirm_end(self, segment: Segment | None) -> None:
        if self.is_being_sealed and not self._storage.metadata.is_alone:
            # That is no fence: nobody but the metadata's leader knows.
            await self._storage.metadata.read_index(CONFIRM_SECONDS)
            if segment is not self.current:
                raise NotLeader(f"the open segment of {self.state.name} was sealed meanwhile")
        if segment is not None and segment.replication is None:
            return  # without other replicas nobody else can end it
        leading = self.leading
        if segment is None or leading is None or leading.segment is not segment:
            raise NotLeader(f"the open segment of {self.state.name} is not led by this node any more")
        if not await leading.confirm(CONFIRM_SECONDS):
            raise NotLeader(
                f"too few replicas of {segment.identity.key} confirm that node {self._storage.node_id} still "
                f"leads it: whether it ends here is not known"
            )

    def _refuse_if_leading(self, segment: Segment, error: UnknownProducer, sink: Sink, token: int) -> None:
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

    def follower_committed(self) -> None:
        self.known.wake_waiters()

    @property
    def leads_replicas(self) -> bool:
        return self.leading is not None and self._handoff.admits

    async def handed_over(self) -> None:
        """Returns once the segment that is being handed off is sealed."""
        while self._handing_off is not None and not self.is_deleted:
            await asyncio.wait([self._handing_off])

    # Being recovered.

    @property
    def _is_lost(self) -> bool:
        """Whether the open segment may have been appended to by an earlier process, or before a failure."""
        state = self.state.open_segment
        return self._is_being_recovered or (len(state.replicas) > 1 and state.log_exists)

    @property
    def _is_being_recovered(self) -> bool:
        state = self.state.open_segment
        return len(state.replicas) > 1 and state.recovery > 0

    @property
    def awaits_recovery(self) -> bool:
        """Whether this node led the open segment in an earlier life: it is not opened here before somebody
        has recovered it, which may take as long as too few replicas are there."""
        return self.current is None and self._is_lost

    @property
    def awaits_others(self) -> bool:
        """Whether it waits for a recovery, and too few replicas answer for one: that may take long."""
        state, metadata = self.state.open_segment, self._storage.metadata
        if not self.awaits_recovery or not self._storage.may_lead.is_set():
            return False
        alive = sum(map(metadata.is_alive, state.replicas))
        return alive < revealing(len(state.replicas))

    def _what_is_missing(self) -> str:
        state, metadata = self.state.open_segment, self._storage.metadata
        if not self._is_lost or state.leader != self._storage.member:
            return ""
        silent = [node_of(member) for member in state.replicas if not metadata.is_alive(member)]
        nodes = ", ".join(map(str, silent))
        waits = (
            f"node{'s' if len(silent) > 1 else ''} {nodes} cannot be reached" if silent else "that goes on"
        )
        return f"{self.state.key_of(state)} must be recovered by its replicas first, and {waits}"

    async def _await_recovery(self) -> None:
        """Of a segment that an earlier process led: take part, and wait for the chain to change."""
        turned = self._turned
        self._storage.replication.recover(self.state.uid)
        await turned.wait()

    async def _await_seal(self, segment: Segment) -> list[steps.Effect]:
        while not self.is_deleted and not self._stopping:
            turned = self._turned
            known = self._sealed_already(segment)
            if known is not None:
                await segment.settled()
                assert self._handoff.end_offset is not None
                self._send_on(segment.settle(self._handoff.end_offset))
                return known
            self._storage.replication.recover(self.state.uid)
            await turned.wait()
        return []

    def _send_on(self, waiting: list[Waiting]) -> None:
        """What was admitted and is past the sealed end: first among those that wait for the next leader."""
        held: list[HeldAppend] = []
        for _, sink, token, _, _, started, frame in waiting:
            header = decode_header(frame)
            assert isinstance(header, FrameHeader) and not isinstance(frame, bytes)
            held.append(HeldAppend(frame, header, sink, token, started))
        self._held.put_first(held, self.state.name)
