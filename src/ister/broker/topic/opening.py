"""A topic whose open segment is this node's: how that segment is opened, and what it means if it cannot be.

Metadata says which segment is open and who leads it; its own log says where it ends (E6). It is not opened
before this start of the node was announced: what is known before may be older than the node's last life. A
segment that cannot be opened is a fault that is told to whoever asks, and not tried again for each request;
one whose log could not even be made is given away, where another node can go on.

Fault model: as in `opening`, and the chain may change while a log is being opened.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from ister.broker.node.storage import Storage
from ister.broker.node.storage_faults import doubt
from ister.broker.topic.handoff import Handoff
from ister.broker.topic.held import HeldAppends
from ister.broker.topic.known import KnownTopic
from ister.broker.topic.log_opening import close_files, describe_cut, log_opened, open_log
from ister.broker.topic.sealing import has_other_nodes, make_empty_seal
from ister.errors import IsterError, NotLeader, ShuttingDown, StorageFailed
from ister.metadata.state import SegmentState, TopicState
from ister.protocol.peer import node_of
from ister.wal.group_commit import FlushJob
from ister.wal.recovery import Recovered, SegmentIdentity
from ister.wal.segment import FsyncPolicy, Segment

log = logging.getLogger("ister.broker.topic")

FAULT_RETRY_SECONDS = 1.0
NOTES_KEPT = 8
ANNOUNCE_SECONDS = 3.0
WAITS_HINT = "Start those nodes again; `ister topic recover` shows what else can be done."


class OpenableTopic:
    """A topic that opens its segment where it leads. `TopicLog` adds appending and handing off.

    Protected, for the subclass: `_held` are the appends that wait for an open segment, `_handoff` says if
    it admits, `_handing_off` is the task that seals it; `_cut_at` is where a segment that failed has to end.
    """

    def __init__(self, storage: Storage, state: TopicState) -> None:
        self.known = KnownTopic(state, storage.member)
        self.segment: Segment | None = None
        """The segment that is open here. For a moment in each handoff it is the one just sealed, and then
        None; `current` is never either."""
        self.fault: IsterError | None = None
        """Why the open segment could not be opened, until it is. Raise a copy of it (`again`)."""
        self._storage = storage
        self.notes: deque[str] = deque(maxlen=NOTES_KEPT)
        """What people should know of this log's past: the last cuts that recovery found necessary."""
        self._handoff = Handoff()
        self._held = HeldAppends(
            storage.max_held_appends, storage.max_held_bytes, storage.max_held_seconds, self._what_is_missing
        )
        self._opening: asyncio.Task[None] | None = None
        self._handing_off: asyncio.Task[None] | None = None
        self._turned: asyncio.Event = asyncio.Event()
        """Set, and replaced, whenever those who wait for the open segment should look again."""
        self._opening_count = 0
        self._stopping = False
        self._fault_until = 0.0
        self._cut_at: int | None = None

    @property
    def state(self) -> TopicState:
        return self.known.state

    @state.setter
    def state(self, state: TopicState) -> None:
        self.known.state = state

    @property
    def is_deleted(self) -> bool:
        return self.known.is_deleted

    @property
    def leads(self) -> bool:
        """Whether the chain's open segment is this node's to append to."""
        return self.known.leads

    @property
    def current(self) -> Segment | None:
        """The segment that is open both here and in the chain."""
        segment = self.segment
        return (
            segment if segment is not None and segment.identity.uid == self.state.open_segment.uid else None
        )

    # For the subclass to do.

    def settings_changed(self) -> None:
        """Another segment is open, or the settings are others."""
        raise NotImplementedError

    def _release_held(self) -> None:
        """Send what waits on its way, in its order."""
        raise NotImplementedError

    def committed(self, segment: Segment) -> None:
        raise NotImplementedError

    def failed(self, segment: Segment, job: FlushJob) -> None:
        raise NotImplementedError

    def stopped(self, segment: Segment) -> None:
        raise NotImplementedError

    @property
    def _is_lost(self) -> bool:
        raise NotImplementedError

    @property
    def _is_being_recovered(self) -> bool:
        raise NotImplementedError

    async def _await_recovery(self) -> None:
        raise NotImplementedError

    def _replicate(self, segment: Segment, state: SegmentState) -> None:
        raise NotImplementedError

    def _what_is_missing(self) -> str:
        """For whoever waits for the open segment: why there is none; empty if that is soon over."""
        raise NotImplementedError

    # Faults.

    def _set_fault(self, fault: IsterError) -> None:
        self.fault = fault.again()  # without the traceback, which would live as long
        self._fault_until = self._storage.clock.monotonic() + FAULT_RETRY_SECONDS

    def _raise_recent_fault(self) -> None:
        """A segment that cannot be opened is not tried again for each request."""
        if self.fault is not None and self._storage.clock.monotonic() < self._fault_until:
            raise self.fault.again()

    # Opening the open segment.

    async def ensure_open(self) -> Segment:
        """The chain's open segment, also while it is being sealed: that may take as long as there is no
        majority. Between its seal and the next one's opening there is none, and that is waited for: the next
        opening, and no longer; where handoff follows handoff, a reader comes in between.
        """
        while True:
            if self.is_deleted:
                raise self.known.deleted()
            if self.current is not None:
                return self.current
            if self._handing_off is None:
                if self._stopping:
                    raise self._going()
                if not self.leads:
                    raise self._elsewhere()
                self._raise_recent_fault()
                self._open_soon()
            openings = self._opening_count
            await self._wait_for_turn()
            if self._opening_count > openings and self.current is not None:
                return self.current

    async def _wait_for_turn(self) -> None:
        turned = self._turned
        must_not_last = self._is_lost or not self._storage.may_lead.is_set()
        try:
            async with asyncio.timeout(ANNOUNCE_SECONDS if must_not_last else None):
                await turned.wait()
        except TimeoutError:
            if self._storage.may_lead.is_set():
                raise NotLeader(self._what_is_missing(), hint=WAITS_HINT) from None
            raise NotLeader(
                f"node {self._storage.node_id} was started and finds no majority of the cluster: it cannot "
                f"know whether {self.state.key_of(self.state.open_segment)} is still its own",
                hint="Start the other nodes, or mend the network; `ister cluster health` names them.",
            ) from None

    def _turn(self) -> None:
        self._turned.set()
        self._turned = asyncio.Event()

    def _elsewhere(self) -> NotLeader:
        segment = self.state.open_segment
        return NotLeader(f"{self.state.key_of(segment)} is led by node {node_of(segment.leader)}")

    def _going(self) -> ShuttingDown:
        return ShuttingDown(f"node {self._storage.node_id} is stopping")

    def _open_soon(self) -> asyncio.Task[None]:
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
        return self._opening

    async def _open(self) -> None:
        """Open the chain's last segment: by its log if it has one, else as a new one (E6).

        Not before this start was announced: the chain that is known here may be older than the last life of
        this node, and a segment that looks open may be sealed.
        """
        failed, cut_at = self.segment, self._cut_at
        try:
            if not self._storage.may_lead.is_set():
                await self._storage.may_lead.wait()
            while True:
                while self._is_lost and self.leads and not self.is_deleted and not self._stopping:
                    await self._await_recovery()  # A3: what an earlier process led is not gone on with
                if not self.leads or self.is_deleted or self._stopping:
                    return
                identity = self.known.identity_of(self.state.open_segment)
                recovered = await open_log(self._storage, self.state, identity, cut_at)
                is_current = identity.uid == self.state.open_segment.uid and not self._is_being_recovered
                if is_current or failed is not None or self.is_deleted or self._stopping:
                    break
                close_files(recovered)  # sealed, or fenced before there was anything to stop (F2)
        except OSError as error:
            key = self.state.key_of(self.state.open_segment)
            self._not_opened(StorageFailed(f"segment {key} cannot be opened: {error}"))
            await self._give_away()
        except IsterError as error:
            self._not_opened(error)
        else:
            self._opened(identity, recovered, failed, cut_at)
        finally:
            self._opening = None
            self._turn()
            if not self.leads and self._handing_off is None:
                self._release_held()

    def _opened(
        self, identity: SegmentIdentity, recovered: Recovered, failed: Segment | None, cut_at: int | None
    ) -> None:
        log_opened(identity, recovered)
        if recovered.cut_bytes and cut_at is None:  # else it cut what this process wrote and refused: no news
            note = describe_cut(identity, recovered)
            log.warning("%s", note)
            self.notes.append(note)
        if failed is not None:
            failed.refuse_waiting()
        if self.is_deleted or self._stopping or identity.uid != self.state.open_segment.uid:
            close_files(recovered)  # and the failed one belongs to who deletes or stops
            return
        if failed is not None:
            failed.close()
        self.segment = Segment(
            identity,
            recovered,
            owner=self,
            leases=self._storage.leases,
            commits=self._storage.commits,
            tail=self._storage.hot.of_segment(),
            policy=FsyncPolicy(self.state.settings.fsync),
        )
        lost = (one.end_offset for one in self.state.lost if not one.was_sealed)
        self.segment.producers.lost_end = max(lost, default=0)
        self.segment.producers.forgot_at = self.state.open_segment.forgot_at
        self._replicate(self.segment, self.state.open_segment)
        self._opening_count += 1
        self._handoff = Handoff()
        self.fault = self._cut_at = None
        self.settings_changed()
        self._release_held()

    def _not_opened(self, error: IsterError) -> None:
        level = logging.DEBUG if isinstance(error, ShuttingDown) else logging.ERROR
        log.log(level, "%s", error.message, extra={"fields": {"topic": self.state.name, "hint": error.hint}})
        self._set_fault(error)
        if self.segment is not None:
            # Nobody can wait for ever, and what was to be cut may lie on the disk for the next start to find.
            self.segment.refuse_waiting(doubt(self.segment, error.message))
        self._held.refuse(error)

    async def _give_away(self) -> None:
        """A segment whose log this node cannot even make: end it where it begins, if another node can go on.

        No record was ever appended to it: the first one comes after `OpenedSegment` (E6)."""
        if self.state.open_segment.log_exists or not has_other_nodes(self._storage):
            return
        try:
            await self._storage.metadata.propose(make_empty_seal(self._storage, self.state))
        except IsterError as error:
            log.warning("the next segment of %s was not given away: %s", self.state.name, error)
