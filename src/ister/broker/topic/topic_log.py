"""The writing side of a topic: admits appends, rolls its segments over, passes on what others lead.

It ties together what the others only know a part of: metadata says which segment is open and where it
begins (E6), that segment's own log says where it ends, the handoff machine says whether an append may be
admitted. Whatever an append meets, a segment being opened, handed off, led by another node, or broken, it is
either appended, held for the next segment within bounds, passed on to the node that leads, or refused with an
error that says why.

Fault model: the disk may be full, or fail in a write or a sync; the metadata may not answer, or apply a
command whose answer is lost. A refusal then means one of two things, and says which. Either the record will
never be read: it was never written, or the cut or the seal that excludes it is durable. Or nobody knows,
because that cut failed too, or the broker stopped first: a `StorageFailed` whose message says "may".
"""

from __future__ import annotations

import asyncio
import logging

from ister.broker.node.storage import Storage
from ister.broker.node.storage_faults import doubt, storage_fault
from ister.broker.topic import handoff as steps
from ister.broker.topic.facts import TopicFacts
from ister.broker.topic.handing_off import HandingOffTopic
from ister.broker.topic.held import HeldAppend
from ister.broker.topic.opening import FAULT_RETRY_SECONDS, WAITS_HINT
from ister.broker.topic.passing_on import PassedAppend
from ister.broker.topic.places import Places
from ister.broker.topic.reads import Reads
from ister.broker.topic.sealing import has_other_nodes, is_past, limits_of
from ister.errors import (
    IsterError,
    MessageTooLarge,
    NotLeader,
    StorageFailed,
    UnknownProducer,
)
from ister.frame import FrameHeader
from ister.metadata.state import TopicState
from ister.protocol.codec import encode_header
from ister.protocol.messages import ANY_OFFSET, Append
from ister.wal.group_commit import FlushJob
from ister.wal.segment import Segment
from ister.wal.sink import OnlyIf, Sink

log = logging.getLogger("ister.broker.topic")

ASK_SECONDS = 1.0
ASK_PAUSE_SECONDS = 0.1


class TopicLog(HandingOffTopic):
    """The life of one topic: from its first segment on this node to its deletion."""

    def __init__(self, storage: Storage, state: TopicState) -> None:
        super().__init__(storage, state)
        self.places = Places(self.known, storage)
        self.reads = Reads(self.known, storage, self.places, self)
        self.facts = TopicFacts(self.known, storage, self.reads, self)
        self.disk = storage.disk
        self._asking: asyncio.Task[None] | None = None
        self._passing = (0, b"")
        """The header with which appends are passed on, and the uid of the segment that it is for."""
        self._now_us = storage.clock.now_us
        self.monotonic = storage.clock.monotonic
        self.settings_changed()

    # Appending.

    def append(
        self, frame: bytearray | memoryview, header: FrameHeader, sink: Sink, token: int, started: float
    ) -> None:
        """Take the frame or raise, at once; the sink hears the rest. No await on this path (A4)."""
        if len(frame) > self.max_frame_bytes:
            raise MessageTooLarge(
                f"a batch of {len(frame)} bytes is over {self.max_frame_bytes}, the max_message_bytes of "
                f"{self.state.name}"
            )
        segment = self.segment
        if segment is not None and segment.failure is None and self._handoff.admits:
            try:
                try:
                    segment.append(frame, header, self._now_us(), sink, token, started)
                except NotLeader:
                    self._storage.sync_leases()  # once: the lease may have come since
                    if not self._storage.leases.holds(segment.identity.key):
                        raise
                    segment.append(frame, header, self._now_us(), sink, token, started)
            except UnknownProducer as error:
                if segment.replication is None:
                    raise
                self._refuse_if_leading(segment, error, sink, token)
                return
            limits = self._limits
            if (
                segment.end_offset >= limits.offset
                or segment.position >= limits.position
                or len(segment.producers) >= limits.producers
            ):
                self._became_full()
            return
        self._hold(HeldAppend(frame, header, sink, token, started))

    def settings_changed(self) -> None:
        """Take the limits from the settings; again whenever they or the open segment change."""
        segment = self.current
        if segment is not None and segment.policy.value != self.state.settings.fsync:
            self.roll_over()  # a segment has one policy for life
        elif segment is not None and is_past(segment, limits_of(self.state, are_hard=True)):
            self.roll_over()  # not one frame more, however often it is opened again (F6 counts on it)
        else:
            self._limits = limits_of(self.state)
        self.max_frame_bytes = self.state.settings.max_message_bytes

    def _became_full(self) -> None:
        if self._limits.are_hard:
            self.start_handoff()
        else:
            self.roll_over()

    def roll_over(self) -> None:
        """Hand off as soon as that is possible. Limits are soft (A8): admission closes once a metadata leader
        has answered, so that an election stalls no topic; until then the segment grows, up to a hard cap."""
        if self._storage.metadata.is_alone:
            self.start_handoff()
            return
        self._limits = limits_of(self.state, are_hard=True)
        if self.current is not None and is_past(self.current, self._limits):
            self.start_handoff()  # a large frame has filled it at once
        elif self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._hand_off_when_possible())

    async def _hand_off_when_possible(self) -> None:
        """Whichever segment is open by then: limits are hard only while the open one is full."""
        try:
            while self._limits.are_hard and not self._stopping:
                try:
                    await self._storage.metadata.read_index(ASK_SECONDS)
                    break
                except IsterError as error:
                    log.debug("the open segment of %s is full, and goes on: %s", self.state.name, error)
                    await asyncio.sleep(ASK_PAUSE_SECONDS)
        finally:
            self._asking = None
        if self._limits.are_hard and not self._stopping:
            self.start_handoff()

    def _hold(self, append: HeldAppend) -> None:
        if self.is_deleted:
            raise self.known.deleted()
        if self._stopping:
            raise self._going()
        if not self.leads and self._handing_off is None and self._opening is None:
            self._pass_on(append)
            return
        self._raise_recent_fault()
        if self.awaits_others and not self._held:
            raise NotLeader(self._what_is_missing(), hint=WAITS_HINT)
        self._held.add(append, self.state.name)
        if self._handing_off is None:
            self._open_soon()

    def _pass_on(self, append: HeldAppend) -> None:
        """To the node that leads the open segment, which must know of it before it answers (H3)."""
        segment = self.state.open_segment
        passed = PassedAppend(self, append, self._storage.max_held_seconds)
        header = self._passing_header(segment.uid)
        sink = append.sink
        if type(sink) is OnlyIf:
            offset = ANY_OFFSET if sink.offset is None else sink.offset
            header = encode_header(Append(self.state.name, segment.uid, offset, sink.told_index))
        self._storage.forwarder.append(segment.leader, header, append.frame, passed)

    def _passing_header(self, uid: int) -> bytes:
        if self._passing[0] != uid:
            self._passing = (uid, encode_header(Append(self.state.name, uid)))
        return self._passing[1]

    def chain_changed(self) -> None:
        """The chain has another open segment, or a snapshot brought another chain: look at it anew."""
        self._leave_if_given_up()
        self._leave_if_sealed()
        if self.leads and self.segment is None and self._handing_off is None and not self.is_deleted:
            self._open_soon()
        self._turn()
        self.known.wake_waiters()

    @property
    def is_old(self) -> bool:
        """Whether the open segment has records and is past its age."""
        age_us = self.state.settings.segment_age_ms * 1000
        open_segment = self.state.open_segment
        segment = self.segment
        return (
            age_us > 0
            and segment is not None
            and segment.end_offset > segment.identity.base_offset
            and self._storage.clock.now_us() - open_segment.opened_at_us >= age_us
        )

    # The segment's owner.

    def committed(self, segment: Segment) -> None:
        if segment.is_idle:
            self._drained.set()
        self.known.wake_waiters()

    def failed(self, segment: Segment, job: FlushJob) -> None:
        """A write or sync failed. Nothing of it was acknowledged, and nothing of it will be.

        The appends that wait are refused once the cut or the seal is durable (`_opened`, `_run_handoffs`):
        a record that was called refused then never appears. If the cut fails too they are told that the
        outcome is unknown (`_not_opened`).
        """
        assert job.error is not None
        fault = storage_fault(self._storage.node_id, segment, job.error, during_sync=job.during_sync)
        key, end, error = segment.identity.key, segment.committed_end, job.error
        log.error("%s", fault.message, extra={"fields": {"segment": key, "end": end, "errno": error.errno}})
        segment.stop(fault)
        if self.leading is not None:
            self.lose(fault.message)
            return
        if segment is not self.segment or not self._handoff.admits:
            return  # `_drain` sees it; or it is no longer this topic's open segment
        if isinstance(fault, StorageFailed) and not has_other_nodes(self._storage):
            self._cut_at = end
            self._open_soon()
        else:  # also a full disk, where another node has room
            self._run_soon(self._handoff.step(steps.StorageBroke(end)))

    def stopped(self, segment: Segment) -> None:
        self._drained.set()

    def _release_held(self) -> None:
        for held in self._held.release():
            try:
                self.append(*held)
            except IsterError as error:
                held.sink.refused(held.token, error)

    def checkpoint_soon(self) -> None:
        if self.segment is not None:
            self.segment.checkpoint_soon()

    # The end.

    @property
    def may_wait(self) -> bool:
        """Whether closing it now may take other nodes."""
        return self.leading is not None or self._handing_off is not None or self._opening is not None

    async def close(self) -> None:
        """Stop: nothing is admitted or held any more, what was admitted is durable, and all are told."""
        self._stopping = True
        self._turn()
        self._handoff.admits = False
        self._held.refuse(self._going())
        if self._asking is not None:
            self._asking.cancel()
        if self._handing_off is not None:
            await asyncio.wait([self._handing_off], timeout=2 * FAULT_RETRY_SECONDS)
        if self._opening is not None:
            if not self._storage.may_lead.is_set():
                self._opening.cancel()
            await asyncio.wait([self._opening])
        segment = self.segment
        if segment is not None:
            await self._wait_idle_at_the_end(segment)
            if segment.failure is None:
                await self._checkpoint(segment)
            else:
                segment.refuse_waiting(doubt(segment, self._going().message))
            self._drop_segment()
        self._turn()
        self.known.wake_waiters()

    def delete(self) -> None:
        """The topic is gone from the metadata: refuse what waits, wake readers, let go of the files."""
        self.known.is_deleted = True
        error = self.known.deleted()
        if self.segment is not None:
            self.segment.fail(error)
        self._held.refuse(error)
        self._drop_segment()
        self._turn()
        self.known.wake_waiters()

    async def settled(self) -> None:
        """Nothing that was begun is under way any more: no file will be made after this."""
        while (task := self._handing_off or self._opening) is not None:
            await asyncio.wait([task])

    def _drop_segment(self) -> None:
        if self.leading is not None:
            self.leading.close()
            self.leading = None
        if self.segment is not None:
            self.segment.close()
            self.segment = None
