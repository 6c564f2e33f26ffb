"""The open segment where this node leads it: what is open, and how its log is opened.

Metadata says which segment is open and who leads it; its own log says where it ends (E6). It is not opened
before this start of the node was announced: what is known before may be older than the node's last life. A
segment that cannot be opened is a fault that is told to whoever asks, and not tried again for each request;
one whose log could not even be made is given away, where another node can go on.

Fault model: as in `log_opening`, and the chain may change while a log is being opened.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Protocol

from ister.broker.node.storage import Storage
from ister.broker.node.storage_faults import doubt
from ister.broker.topic.handoff import Handoff
from ister.broker.topic.held import HeldAppends
from ister.broker.topic.known import KnownTopic
from ister.broker.topic.life import HAS_SEGMENT, Event, Life, Stage
from ister.broker.topic.log_opening import close_files, describe_cut, log_opened, open_log
from ister.broker.topic.resuming import Resumed, resume
from ister.broker.topic.sealing import has_other_nodes, make_empty_seal
from ister.broker.topic.unrecovered import WAITS_HINT, Unrecovered
from ister.errors import IsterError, NotLeader, ShuttingDown, StorageFailed, invariant
from ister.io.clock import monotonic
from ister.protocol.peer import node_of
from ister.replication.stream.leader import Leading
from ister.wal.opening import NEW, OpenedLog, SegmentIdentity
from ister.wal.segment import FsyncPolicy, Owner, Segment

log = logging.getLogger("ister.broker.topic")

FAULT_RETRY_SECONDS = 1.0
NOTES_KEPT = 8
ANNOUNCE_SECONDS = 3.0


class LedOwner(Owner, Protocol):
    def opened(self) -> None:
        """There is another open segment, and it takes appends."""
        ...

    def release_held(self) -> None:
        """Send what waits on its way, in its order."""
        ...


class LedSegment:
    def __init__(
        self,
        topic: KnownTopic,
        storage: Storage,
        unrecovered: Unrecovered,
        held: HeldAppends,
        owner: LedOwner,
    ) -> None:
        """`held` are the appends that wait for an open segment."""
        self._topic = topic
        self._storage = storage
        self._unrecovered = unrecovered
        self._held = held
        self._owner = owner
        self._life = Life()
        self.handoff = Handoff()
        """How the segment that is open ends, and whether it takes appends."""
        self.segment: Segment | None = None
        """What is open here. For a moment in each handoff it is the one just sealed, and then None; `current`
        is never either."""
        self.leading: Leading | None = None
        """Its followers, where it has some."""
        self.fault: IsterError | None = None
        """Why it could not be opened, until it is. Raise a copy of it (`again`)."""
        self.notes: deque[str] = deque(maxlen=NOTES_KEPT)
        """What people should know of this log's past: the last cuts that recovery found necessary."""
        self.resumed: Resumed | None = None
        """Where the segment that was opened last went on, and why (E6)."""
        self.opening: asyncio.Task[None] | None = None
        self.turned = asyncio.Event()
        """Set, and replaced, whenever those who wait for the open segment should look again."""
        self._fault_until = 0.0
        self._cut_at: int | None = None
        """Where a segment that failed, and is to be opened again, has to end."""
        self._opening_count = 0
        self._stopping = False

    @property
    def stage(self) -> Stage:
        return self._life.stage

    @property
    def is_over(self) -> bool:
        return self.stage is Stage.OVER

    @property
    def current(self) -> Segment | None:
        """The segment that is open both here and in the chain."""
        segment = self.segment
        if segment is None or segment.identity.uid != self._topic.state.open_segment.uid:
            return None
        return segment

    def validate(self) -> None:
        """What holds between all steps."""
        stage, has_segment = self.stage, self.segment is not None
        if stage is Stage.OVER:
            return
        what = f"the open segment of {self._topic.state.name} is {stage.name}"
        invariant(has_segment == (stage in HAS_SEGMENT), f"{what}, and there is one: {has_segment}")
        invariant(not self.handoff.admits or stage is not Stage.ENDING, f"{what}, and takes appends")
        invariant(self.leading is None or has_segment, f"{what}, and there are followers of none")
        is_opening = stage in (Stage.OPENING, Stage.REOPENING)
        invariant(not is_opening or self.opening is not None, f"{what}, and nobody opens it")

    def turn(self) -> None:
        self.turned.set()
        self.turned = asyncio.Event()

    # Faults.

    def set_fault(self, fault: IsterError) -> None:
        self.fault = fault.again()  # without the traceback, which would live as long
        self._fault_until = monotonic() + FAULT_RETRY_SECONDS

    def raise_recent_fault(self) -> None:
        """A segment that cannot be opened is not tried again for each request."""
        is_recent = self.stage is Stage.HALTED or monotonic() < self._fault_until
        if self.fault is not None and is_recent:
            raise self.fault.again()

    # For who needs it open.

    async def ensure_open(self) -> Segment:
        """The chain's open segment, also while it is being sealed: that may take as long as there is no
        majority. Between its seal and the next one's opening there is none, and that is waited for: the next
        opening, and no longer; where handoff follows handoff, a reader comes in between.
        """
        while True:
            if self._topic.is_deleted:
                raise self._topic.deleted()
            if self.current is not None:
                return self.current
            if self.stage is not Stage.ENDING:
                if self._stopping:
                    raise self.stopping()
                if not self._topic.leads:
                    raise self._elsewhere()
                self.raise_recent_fault()
                self.open_soon()
            openings = self._opening_count
            await self._wait_for_turn()
            if self._opening_count > openings and self.current is not None:
                return self.current

    async def _wait_for_turn(self) -> None:
        turned = self.turned
        must_not_last = self._unrecovered.may_have_records or not self._storage.may_lead.is_set()
        try:
            async with asyncio.timeout(ANNOUNCE_SECONDS if must_not_last else None):
                await turned.wait()
        except TimeoutError:
            if self._storage.may_lead.is_set():
                raise NotLeader(self._unrecovered.what_is_missing(), hint=WAITS_HINT) from None
            raise NotLeader(
                f"node {self._storage.node_id} was started and finds no majority of the cluster: it cannot "
                f"know whether {self._key} is still its own",
                hint="Start the other nodes, or mend the network; `ister cluster health` names them.",
            ) from None

    @property
    def _key(self) -> str:
        return self._topic.state.key_of(self._topic.state.open_segment)

    def _elsewhere(self) -> NotLeader:
        return NotLeader(f"{self._key} is led by node {node_of(self._topic.state.open_segment.leader)}")

    def stopping(self) -> ShuttingDown:
        return ShuttingDown(f"node {self._storage.node_id} is stopping")

    # Opening.

    def open_soon(self) -> asyncio.Task[None]:
        if self.opening is None:
            self._life.step(Event.WANTED)
            self.opening = asyncio.get_running_loop().create_task(self._open())
        return self.opening

    def open_again(self, cut_at: int) -> None:
        """Its disk was full: go on from its last good end."""
        self._cut_at = cut_at
        self.open_soon()

    @property
    def _is_unwanted(self) -> bool:
        return not self._topic.leads or self._topic.is_deleted or self._stopping

    async def _open(self) -> None:
        """Open the chain's last segment: by its log if it has one, else as a new one (E6).

        Not before this start was announced: the chain that is known here may be older than the last life of
        this node, and a segment that looks open may be sealed.
        """
        failed, cut_at, topic = self.segment, self._cut_at, self._topic
        is_open = False
        try:
            if not self._storage.may_lead.is_set():
                await self._storage.may_lead.wait()
            while True:
                while self._unrecovered.may_have_records and not self._is_unwanted:
                    await self._await_recovery()  # A3: what an earlier process led is not gone on with
                if self._is_unwanted:
                    return
                identity = topic.identity_of(topic.state.open_segment)
                recovered = await open_log(self._storage, topic.state, identity, cut_at)
                is_current = identity.uid == topic.state.open_segment.uid and not self._unrecovered.is_begun
                if is_current or failed is not None or topic.is_deleted or self._stopping:
                    break
                close_files(recovered)  # sealed, or fenced before there was anything to stop (F2)
            is_open = self._opened(identity, recovered, failed, cut_at)
        except OSError as error:
            self._not_opened(StorageFailed(f"segment {self._key} cannot be opened: {error}"))
            await self._give_away()
        except IsterError as error:
            self._not_opened(error)
        finally:
            self.opening = None
            if not is_open:
                self._life.step(Event.NOT_OPENED)
            self.turn()
            if not topic.leads and self.stage is Stage.CLOSED:
                self._owner.release_held()
        if is_open:
            self._owner.opened()

    async def _await_recovery(self) -> None:
        """Of a segment that an earlier process led: take part, and wait for the chain to change."""
        turned = self.turned
        self._storage.replication.recover(self._topic.state.uid)
        await turned.wait()

    def _opened(
        self, identity: SegmentIdentity, recovered: OpenedLog, failed: Segment | None, cut_at: int | None
    ) -> bool:
        """Whether it is still wanted."""
        if recovered.cut_bytes and cut_at is None:  # else it cut what this process wrote and refused: no news
            note = describe_cut(identity, recovered)
            log.warning("%s", note)
            self.notes.append(note)
        if failed is not None:
            failed.refuse_waiting()
        topic, opened = self._topic.state, self._topic.state.open_segment
        is_awaited = self.stage in (Stage.OPENING, Stage.REOPENING)
        if not is_awaited or identity.uid != opened.uid:
            close_files(recovered)  # and the failed one belongs to who ends it, deletes or stops
            return False
        if failed is not None:
            failed.close()
        self.resumed = resume(topic, None if recovered.source == NEW else recovered.end_offset)
        log_opened(identity, recovered, self.resumed, topic.hot_start_offset)
        segment = self.segment = Segment(
            identity,
            recovered,
            owner=self._owner,
            leases=self._storage.leases,
            commits=self._storage.commits,
            tail=self._storage.hot.of_segment(),
            policy=FsyncPolicy(topic.settings.fsync),
        )
        lost = (one.end_offset for one in topic.lost if not one.was_sealed)
        segment.producers.lost_end = max(lost, default=0)
        segment.producers.forgot_at = opened.forgot_at
        self._opening_count += 1
        self.handoff = Handoff()
        self.fault = self._cut_at = None
        self._life.step(Event.OPENED)
        return True

    def _not_opened(self, error: IsterError) -> None:
        level = logging.DEBUG if isinstance(error, ShuttingDown) else logging.ERROR
        fields = {"topic": self._topic.state.name, "hint": error.hint}
        log.log(level, "%s", error.message, extra={"fields": fields})
        self.set_fault(error)
        if self.segment is not None:
            # Nobody can wait for ever, and what was to be cut may lie on the disk for the next start to find.
            self.segment.refuse_waiting(doubt(self.segment, error.message))
        self._held.refuse(error)

    async def _give_away(self) -> None:
        """A segment whose log this node cannot even make: end it where it begins, if another node can go on.

        No record was ever appended to it: the first one comes after `OpenedSegment` (E6)."""
        topic = self._topic.state
        if topic.open_segment.log_exists or not has_other_nodes(self._storage, topic):
            return
        try:
            await self._storage.metadata.propose(make_empty_seal(self._storage, topic))
        except IsterError as error:
            log.warning("the next segment of %s was not given away: %s", topic.name, error)

    # The end.

    def ending(self) -> None:
        """The handoff machine has said what is to be done."""
        self._life.step(Event.END)

    async def sealed(self, segment: Segment) -> None:
        """The chain has this segment as sealed: let go of it, and open the next one if it is this node's."""
        if self.opening is not None:  # of this very segment, again: it comes to nothing
            await asyncio.wait([self.opening])
        if self.segment is not segment:
            return
        if segment.failure is not None:
            segment.refuse_waiting()
        self.drop()
        self._cut_at = None
        self._life.step(Event.SEALED)
        if self._topic.leads and not self.is_over:
            await self.open_soon()

    def halt(self, error: IsterError) -> None:
        """What the chain says cannot be: nothing here goes on before somebody has looked."""
        self.set_fault(error)
        self._life.step(Event.CONTRADICTED)

    def stop_leading(self) -> None:
        """Its followers are not this node's to lead any more."""
        if self.leading is not None:
            self.leading.close()
            self.leading = None

    def stop(self) -> None:
        """Nothing is admitted or opened any more."""
        self._stopping = True
        self.handoff.admits = False
        self._life.step(Event.STOP)
        self.turn()

    def drop(self) -> None:
        self.stop_leading()
        if self.segment is not None:
            self.segment.close()
            self.segment = None
