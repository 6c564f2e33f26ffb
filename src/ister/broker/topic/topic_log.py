"""One topic on this node: admits its appends, and holds together the parts that do the rest.

It ties together what the others only know a part of: metadata says which segment is open and where it
begins (E6), that segment's own log says where it ends, the handoff machine says whether an append may be
admitted. Whatever an append meets, a segment being opened, handed off, led by another node, or broken, it is
either appended, held for the next segment within bounds, passed on to the node that leads, or refused with an
error that says why.

    known          what the metadata says of it, and who waits for something to happen
    places         where an offset lives
    reads          records, where this node answers for them
    facts          what people are told
    led            the open segment where this node leads it: its life from opening to sealed
    handing_off    how that ends, step by step
    rolling_over   when it is to end
    leadership     its followers, and losing it to a recovery
    moving         its move to another node, if one is wanted

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
from ister.broker.topic.handing_off import HandingOff
from ister.broker.topic.held import HeldAppend, HeldAppends
from ister.broker.topic.known import KnownTopic, another_topic
from ister.broker.topic.leadership import Leadership
from ister.broker.topic.led_segment import FAULT_RETRY_SECONDS, LedSegment
from ister.broker.topic.life import Stage
from ister.broker.topic.moving import Moving
from ister.broker.topic.passing_on import PassedAppend
from ister.broker.topic.places import Places
from ister.broker.topic.reads import Reads
from ister.broker.topic.rolling_over import RollingOver
from ister.broker.topic.sealing import has_other_nodes
from ister.broker.topic.unrecovered import WAITS_HINT, Unrecovered
from ister.errors import IsterError, MessageTooLarge, NotLeader, StorageFailed, UnknownProducer
from ister.frame import FrameHeader
from ister.metadata.state import TopicState
from ister.protocol.codec import encode_header
from ister.protocol.messages import ANY_OFFSET, Append
from ister.wal.group_commit import FlushJob
from ister.wal.segment import Segment
from ister.wal.sink import OnlyIf, Sink

log = logging.getLogger("ister.broker.topic")


class TopicLog:
    """From the topic's first segment on this node to its deletion."""

    def __init__(self, storage: Storage, state: TopicState) -> None:
        self.known = known = KnownTopic(state, storage.member)
        self._unrecovered = unrecovered = Unrecovered(known, storage)
        self._held = HeldAppends(
            storage.max_held_appends,
            storage.max_held_bytes,
            storage.max_held_seconds,
            unrecovered.what_is_missing,
        )
        self.led = led = LedSegment(known, storage, unrecovered, self._held, self)
        self.handing_off = HandingOff(known, storage, led, self._held, self.release_held)
        self.rolling_over = RollingOver(known, storage, led, self.handing_off)
        self.leadership = Leadership(known, storage, led, self.handing_off, self.rolling_over)
        self.moving = Moving(known, storage, led, self.rolling_over)
        self.places = Places(known, storage)
        self.reads = Reads(known, storage, self.places, led, self.leadership)
        self.facts = TopicFacts(known, storage, self.reads, led)
        self._storage = storage
        self._passing = (0, b"")
        """The header with which appends are passed on, and the uid of the segment that it is for."""
        self._now_us = storage.clock.now_us
        self.settings_changed()

    @property
    def state(self) -> TopicState:
        return self.known.state

    @property
    def leads(self) -> bool:
        return self.known.leads

    # Appending.

    def append(
        self, frame: bytearray | memoryview, header: FrameHeader, sink: Sink, token: int, started: float
    ) -> None:
        """Take the frame or raise, at once; the sink hears the rest. No await on this path (A4)."""
        if type(sink) is OnlyIf and sink.topic_uid not in (0, self.state.uid):
            raise another_topic(self.state.name, sink.topic_uid)
        if len(frame) > self.max_frame_bytes:
            raise MessageTooLarge(
                f"a batch of {len(frame)} bytes is over {self.max_frame_bytes}, the max_message_bytes of "
                f"{self.state.name}"
            )
        led = self.led
        segment = led.segment
        if segment is not None and segment.failure is None and led.handoff.admits:
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
                self.leadership.refuse_if_leading(segment, error, sink, token)
                return
            limits = self.rolling_over.limits
            if (
                segment.end_offset >= limits.offset
                or segment.position >= limits.position
                or len(segment.producers) >= limits.producers
            ):
                self.rolling_over.became_full()
            return
        self._hold(HeldAppend(frame, header, sink, token, started))

    def _hold(self, append: HeldAppend) -> None:
        led, known = self.led, self.known
        if known.is_deleted:
            raise known.deleted()
        if led.is_over:
            raise led.stopping()
        if not known.leads and led.stage is Stage.CLOSED:
            self._pass_on(append)
            return
        led.raise_recent_fault()
        if led.current is None and self._unrecovered.lacks_others and not self._held:
            raise NotLeader(self._unrecovered.what_is_missing(), hint=WAITS_HINT)
        self._held.add(append, known.state.name)
        if led.stage is not Stage.ENDING:
            led.open_soon()

    def _pass_on(self, append: HeldAppend) -> None:
        """To the node that leads the open segment, which must know of it before it answers (H3)."""
        segment = self.state.open_segment
        passed = PassedAppend(self, append, self._storage)
        header, sink = self._passing_header(segment.uid), append.sink
        if type(sink) is OnlyIf:
            offset = ANY_OFFSET if sink.offset is None else sink.offset
            terms = offset, sink.told_index, sink.topic_uid
            header = encode_header(Append(self.state.name, segment.uid, *terms))
        self._storage.forwarder.append(segment.leader, header, append.frame, passed)

    def _passing_header(self, uid: int) -> bytes:
        if self._passing[0] != uid:
            self._passing = (uid, encode_header(Append(self.state.name, uid)))
        return self._passing[1]

    def release_held(self) -> None:
        """Send what waits on its way, in its order."""
        for held in self._held.release():
            try:
                self.append(*held)
            except IsterError as error:
                held.sink.refused(held.token, error)

    @property
    def held_count(self) -> int:
        """How many appends wait for an open segment."""
        return len(self._held)

    # What the metadata tells.

    def settings_changed(self) -> None:
        self.rolling_over.settings_changed()
        self.max_frame_bytes = self.state.settings.max_message_bytes

    def chain_changed(self) -> None:
        """The chain has another open segment, or a snapshot brought another chain: look at it anew."""
        self.leadership.leave_if_ended()
        if self.known.leads and self.led.stage is Stage.CLOSED:
            self.led.open_soon()
        self.led.turn()
        self.known.wake_waiters()

    @property
    def awaits_recovery(self) -> bool:
        """Whether this node led the open segment in an earlier life: it is not opened here before somebody
        has recovered it, which may take as long as too few replicas are there."""
        return self.led.current is None and self._unrecovered.may_have_records

    # The segment's owner.

    def opened(self) -> None:
        self.leadership.begin()
        self.settings_changed()
        self.release_held()
        self.moving.look()

    def committed(self, segment: Segment) -> None:
        if segment.is_idle:
            self.handing_off.looked_idle()
        self.known.wake_waiters()

    def stopped(self, segment: Segment) -> None:
        self.handing_off.looked_idle()

    def failed(self, segment: Segment, job: FlushJob) -> None:
        """A write or sync failed. Nothing of it was acknowledged, and nothing of it will be.

        The appends that wait are refused once the cut or the seal is durable: a record that was called
        refused then never appears. If the cut fails too they are told that the outcome is unknown.
        """
        assert job.error is not None
        fault = storage_fault(self._storage.node_id, segment, job.error, during_sync=job.during_sync)
        key, end, error = segment.identity.key, segment.committed_end, job.error
        log.error("%s", fault.message, extra={"fields": {"segment": key, "end": end, "errno": error.errno}})
        segment.stop(fault)
        led = self.led
        if led.leading is not None:
            self.leadership.lose(fault.message)
            return
        if segment is not led.segment or not led.handoff.admits:
            return  # the drain sees it; or it is no longer this topic's open segment
        if isinstance(fault, StorageFailed) and not has_other_nodes(self._storage, self.state):
            led.open_again(cut_at=end)
        else:  # also a full disk, where another node has room
            self.handing_off.carry_out(led.handoff.step(steps.StorageBroke(end)))

    def checkpoint_soon(self) -> None:
        if self.led.segment is not None:
            self.led.segment.checkpoint_soon()

    # The end.

    @property
    def may_wait(self) -> bool:
        """Whether closing it now may take other nodes."""
        return self.led.leading is not None or bool(self._under_way)

    @property
    def _under_way(self) -> list[asyncio.Task[None]]:
        return [task for task in (self.handing_off.task, self.led.opening) if task is not None]

    async def close(self) -> None:
        """Stop: nothing is admitted or held any more, what was admitted is durable, and all are told."""
        led = self.led
        led.stop()
        self._held.refuse(led.stopping())
        self.rolling_over.stop()
        if self.handing_off.task is not None:
            await asyncio.wait([self.handing_off.task], timeout=2 * FAULT_RETRY_SECONDS)
        if led.opening is not None:
            if not self._storage.may_lead.is_set():
                led.opening.cancel()
            await asyncio.wait([led.opening])
        segment = led.segment
        if segment is not None:
            await self.handing_off.wait_idle_at_the_end(segment)
            if segment.failure is None:
                await self.handing_off.checkpoint(segment)
            else:
                segment.refuse_waiting(doubt(segment, led.stopping().message))
            led.drop()
        led.turn()
        self.known.wake_waiters()

    def delete(self) -> None:
        """The topic is gone from the metadata: refuse what waits, wake readers, let go of the files."""
        self.known.is_deleted = True
        error = self.known.deleted()
        if self.led.segment is not None:
            self.led.segment.fail(error)
        self._held.refuse(error)
        self.led.drop()
        self.led.stop()
        self.known.wake_waiters()

    async def settled(self) -> None:
        """Nothing that was begun is under way any more: no file will be made after this."""
        while tasks := self._under_way:
            await asyncio.wait(tasks)
