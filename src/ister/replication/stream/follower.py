"""A segment that another node leads, and this one keeps a copy of: the follower's side of the stream.

Fault model: messages stop, and begin again on another connection, at any point; they may come before this
node has heard of the segment, after it was fenced or sealed, or from a leader that does not know of that yet.
Frames may be damaged on the way. The disk may fail. A member that does not lead the segment may send frames,
by a defect or by mistake: one frame of it would make this log another than the leader's.

What holds: what is answered as synced is on this disk, follows from the segment's base without a gap, and is
what the leader has there. After a fence nothing is taken and nothing is answered as synced any more (F2).
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ister.callers import Caller
from ister.errors import BadRequest, IsterError, RequestTimeout, SegmentFenced, StorageFailed, UnknownTopic
from ister.frame import FrameHeader
from ister.protocol.codec import encode_header, encode_message
from ister.protocol.peer import node_of
from ister.protocol.replication import Refusal, Replicate, Replicated
from ister.replication.counters import ReplicationCounters
from ister.wal.checking import check_run
from ister.wal.followed import FollowedSegment
from ister.wal.group_commit import FlushJob
from ister.wal.opening import Synced
from ister.wal.segment import FsyncPolicy, Segment
from ister.wal.tail import Bytes

log = logging.getLogger("ister.replication.stream.follower")


class Known(NamedTuple):
    """What a process that has a log open knows, and its file does not say."""

    commit_end: int = 0
    """What is committed, here or not."""
    synced: Synced | None = None
    """What it has synced and answered for; None if it did not have the log open."""


class _Received(NamedTuple):
    caller: Caller
    message: Replicate
    payload: bytes


class Follower:
    """One segment's copy here, as long as frames come for it. `open_log` makes or recovers its log."""

    def __init__(
        self,
        segment_uid: int,
        open_log: Callable[[Follower], asyncio.Task[FollowedSegment]],
        on_committed: Callable[[], None],
        on_not_opened: Callable[[Follower], None],
        on_doubt_ended: Callable[[Follower], None],
        counters: ReplicationCounters,
        disk_faults: dict[int, str],
    ) -> None:
        """`disk_faults` has, by segment, why the disk did not take the last write."""
        self.segment_uid = segment_uid
        self.log: FollowedSegment | None = None
        self.leader = 0
        """The member that may send: known before the log is open."""
        self._leads: Caller | None = None
        """The connection that is known to be the leader's; it is asked who it is once."""
        self.refusal: Replicated | None = None
        """What everything is answered with: this copy takes nothing more."""
        self.ends_doubt = False
        """Whether the log is in doubt until it has what the leader, from now on, calls committed (P3)."""
        self._on_committed = on_committed
        self._on_not_opened = on_not_opened
        self._on_doubt_ended = on_doubt_ended
        self._counters = counters
        self._disk_faults = disk_faults
        self._queue: deque[_Received] = deque()
        self._tokens = 0
        self._waiting: dict[int, tuple[Caller, int]] = {}
        self.opening: asyncio.Task[FollowedSegment] | None = open_log(self)
        self.opening.add_done_callback(self._opened)

    # What comes from the leader.

    def received(self, caller: Caller, message: Replicate, payload: bytes) -> None:
        if self.log is not None or self.refusal is not None:
            self._take(caller, message, payload)
        else:
            caller.hold(len(payload))
            self._queue.append(_Received(caller, message, payload))

    def _opened(self, task: asyncio.Task[FollowedSegment]) -> None:
        self.opening = None
        if task.cancelled():
            self.refuse(Refusal.STORAGE, 0)
        elif (error := task.exception()) is not None:
            self._not_opened(error)
        elif self.refusal is None:
            self.log = task.result()
        else:
            task.result().close()  # it was fenced or sealed meanwhile
        queue, self._queue = self._queue, deque()
        for caller, message, payload in queue:
            caller.hold(-len(payload))
            try:
                self._take(caller, message, payload)
            except BadRequest as error:
                caller.refuse(error)
        if self.log is None:
            self._on_not_opened(self)

    def _not_opened(self, error: BaseException) -> None:
        if isinstance(error, SegmentFenced):
            self.refuse(Refusal.FENCED, 0)
        elif isinstance(error, UnknownTopic | RequestTimeout):  # it is gone, or was not heard of yet
            self.refuse(Refusal.UNKNOWN, 0)
        else:
            log.error("the copy of segment %d cannot be opened: %s", self.segment_uid, error)
            self._note_fault(error)
            self.refuse(Refusal.STORAGE, 0)

    def _take(self, caller: Caller, message: Replicate, payload: bytes) -> None:
        if self.refusal is not None:
            _answer(caller, self.refusal)
            return
        log_ = self.log
        assert log_ is not None
        if caller is not self._leads:
            self._check_leads(caller)
            log_.policy = FsyncPolicy(message.fsync)
        if message.base_offset > log_.end_offset:
            end = log_.durable_end
            _answer(caller, Replicated(self.segment_uid, end, Refusal.GAP, question=message.question))
            return
        frames = self._new_frames(message, payload, log_.end_offset)
        if not frames:
            if self._disk_faults and message.commit_end <= log_.durable_end:
                self._disk_faults.pop(self.segment_uid, None)  # what could not be written is there after all
            _answer(caller, Replicated(self.segment_uid, log_.durable_end, question=message.question))
        else:
            self._tokens += 1
            self._waiting[self._tokens] = (caller, len(payload))
            caller.hold(len(payload))
            before = log_.end_offset
            log_.follow(frames, self, self._tokens, 0.0)
            self._counters.bytes_in.add(len(payload))
            self._counters.records_in.add(log_.end_offset - before)
        log_.commit_told(message.commit_end)
        self._settle_doubt(log_)

    def _settle_doubt(self, log_: FollowedSegment) -> None:
        if self.ends_doubt and self._leads is not None and log_.durable_end >= log_.known_commit:
            self.ends_doubt = False
            self._on_doubt_ended(self)

    def _check_leads(self, caller: Caller) -> None:
        """What holds of replicas rests on one process having written all of a segment (A3). Who sends and
        does not lead ends the connection, and nothing of it is taken."""
        assert caller.hello is not None, "frames are taken after a hello only"
        if caller.hello.node.member != self.leader:
            sender = caller.hello.node
            raise BadRequest(
                f"node {sender.node_id} (disk {sender.disk_id}) sent frames of segment {self.segment_uid}: "
                f"node {node_of(self.leader)} leads it",
                hint="A broker does this only by a defect: look at its log, and which version it runs.",
            )
        self._leads = caller

    def _new_frames(
        self, message: Replicate, payload: bytes, end_offset: int
    ) -> list[tuple[FrameHeader, Bytes]]:
        """Those that are not here yet, each checked. What is no frame of this segment ends the connection:
        it is sent again on the next one."""
        uid = self.segment_uid
        run = check_run(payload, uid, message.base_offset)
        if run.ends_because:
            raise BadRequest(f"what was sent of segment {uid} is not what follows: {run.ends_because}")
        found: list[tuple[FrameHeader, Bytes]] = []
        view, position = memoryview(payload), 0
        for header in run.headers:
            if header.base_offset >= end_offset:
                found.append((header, view[position : position + header.size]))
            elif header.end_offset > end_offset:
                raise BadRequest(
                    f"a frame of segment {uid} from {header.base_offset} to {header.end_offset}, the copy "
                    f"here has a frame that ends at {end_offset}"
                )
            position += header.size
        return found

    # The log's sink: what was queued is durable, or will not be.

    def appended(self, token: int, base_offset: int, append_time_us: int, leader: int = 0) -> None:
        caller, size = self._waiting.pop(token)
        caller.hold(-size)
        if self._disk_faults:
            self._disk_faults.pop(self.segment_uid, None)
        if self.log is not None and self.refusal is None:
            # On the leader's last connection: the one that this came on may be gone.
            _answer(self._leads or caller, Replicated(self.segment_uid, self.log.durable_end))
            self._settle_doubt(self.log)

    def refused(self, token: int, error: IsterError) -> None:
        caller, size = self._waiting.pop(token)
        caller.hold(-size)
        if self.refusal is not None:
            _answer(self._leads or caller, self.refusal)

    # The log's owner.

    def committed(self, segment: Segment) -> None:
        self._on_committed()

    def failed(self, segment: Segment, job: FlushJob) -> None:
        log.error("the copy of %s cannot be written: %s", segment.identity.key, job.error)
        self._note_fault(job.error)
        self.refuse(Refusal.STORAGE, 0)

    def _note_fault(self, error: BaseException | None) -> None:
        if fault := disk_fault(error):
            self._disk_faults[self.segment_uid] = fault

    def stopped(self, segment: Segment) -> None: ...

    # The end.

    def refuse(self, refusal: Refusal, recovery: int) -> None:
        """Take nothing more: a recovery has fenced it, it is sealed, its disk failed, or it is not kept
        here."""
        end = self.log.durable_end if self.log is not None else 0
        self.refusal = Replicated(self.segment_uid, end, refusal, recovery)
        if self.log is not None and self.log.failure is None:
            self.log.fail(SegmentFenced(f"{self.log.identity.key}: {refusal}"))

    @property
    def may_begin_again(self) -> bool:
        """Whether it was a failed write that ended this: the disk may have room again, or work."""
        refusal = self.refusal.refusal if self.refusal is not None else Refusal.NONE
        return self.log is not None and refusal is Refusal.STORAGE

    async def known(self) -> Known:
        """Of one that was refused: what it knows, once nothing is being written."""
        await self.close()
        if self.log is None:
            return Known()
        return Known(self.log.known_commit, Synced(self.log.durable_end, self.log.durable_position))

    async def close(self) -> None:
        """Wait for what is being written, and let go of the files."""
        if self.opening is not None:
            await asyncio.wait([self.opening])
        if self.log is not None:
            await self.log.settled()
            self.log.close()


def disk_fault(error: BaseException | None) -> str:
    """What a failed write says of the disk, for people; empty if it was something else that failed."""
    if isinstance(error, StorageFailed):
        error = error.__cause__
    if not isinstance(error, OSError) or error.errno is None or isinstance(error, ConnectionError):
        return ""
    state = "is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "fails"
    return f"its disk {state} ({error.strerror or error})"


def _answer(caller: Caller, answer: Replicated) -> None:
    header = encode_header(answer)
    caller.send_at_once(encode_message(0, 0, header, 0), ())
