"""The open segments that this node follows: a `Follower` for each that frames come for, made when they do.

Fault model: as of `follower`. Messages may also come late: on a connection that their sender has given up,
for a segment that was sealed since, or before this node has heard of it. A log that could not be written is
opened again when the leader asks next, and what this process had answered for is known until then: a tail
that the failed write left is no loss (P3). A log that is missing or emptied is begun anew, in doubt: it may
have had what was acknowledged. The doubt ends when the log has all that its leader, after hearing where it
ends, calls committed; the leader says so of an empty segment too. It may never say it: so a log is made, with
its head, as soon as this node hears that its segment was opened (`opened`), and waits for no leader. Else a
node that was restarted before the leader's first word, and whose leader then lost its disk, stays in doubt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Set
from contextlib import AbstractAsyncContextManager

from ister.callers import Caller
from ister.errors import CorruptSegment, SegmentFenced, UnknownTopic
from ister.io.disk import Disk
from ister.protocol.codec import decode_header
from ister.protocol.replication import Refusal, Replicate
from ister.replication.counters import ReplicationCounters
from ister.replication.places import Place, Places
from ister.replication.recovery.fences import read_fence
from ister.replication.sharing import run_to_end
from ister.replication.stream.follower import Follower, Known
from ister.replication.stream.witness import Witness
from ister.wal.doubts import doubt_what_is_missing, doubtful_until, forget_doubt
from ister.wal.followed import FollowedSegment
from ister.wal.group_commit import GroupCommit
from ister.wal.leases import Leases
from ister.wal.opening import OpenedLog, Synced, create, recover
from ister.wal.segment import FsyncPolicy
from ister.wal.tail import HotTail

log = logging.getLogger("ister.replication.stream.following")

MADE_AT_ONCE = 4
"""So many logs are made side by side when many segments are opened at once."""


class Followers:
    def __init__(
        self,
        member: int,
        disk: Disk,
        places: Places,
        lock: Callable[[int], AbstractAsyncContextManager[None]],
        commits: GroupCommit,
        leases: Leases,
        hot: HotTail,
        on_committed: Callable[[int], None],
        counters: ReplicationCounters,
        witness: Witness,
    ) -> None:
        """`lock` is of a segment's log; `on_committed` is told of which topic more may be read."""
        self._member = member
        self._disk = disk
        self._places = places
        self._lock = lock
        self._commits = commits
        self._leases = leases
        self._hot = hot
        self._on_committed = on_committed
        self._counters = counters
        self._witness = witness
        self._by_segment: dict[int, Follower] = {}
        self._last_calls: dict[int, Caller] = {}
        """The connections on which other members send frames now."""
        self._known: dict[int, Known] = {}
        """Of logs that could not be written, and were not opened again yet."""
        self._disk_faults: dict[int, str] = {}
        """Of logs that could not be written or opened for their disk's sake, and were not written since."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._to_make: dict[int, int] = {}
        """Segments that were opened, and whose logs are to be made: the topics that they are of."""
        self._makers = 0

    def __len__(self) -> int:
        return len(self._by_segment)

    @property
    def segments(self) -> Set[int]:
        return self._by_segment.keys() | self._known.keys() | self._disk_faults.keys()

    @property
    def disk_fault(self) -> str:
        """Why copies of open segments cannot be written here, for people; empty if they can."""
        return next(iter(self._disk_faults.values()), "")

    def get(self, segment_uid: int) -> Follower | None:
        return self._by_segment.get(segment_uid)

    def log_of(self, segment_uid: int) -> FollowedSegment | None:
        """The log of a segment that is followed here, for readers."""
        found = self._by_segment.get(segment_uid)
        return found.log if found is not None and found.refusal is None else None

    # What comes from leaders.

    def received(self, caller: Caller, header: bytes, payload: bytes) -> None:
        if caller.hello is not None and not self._is_last_call(caller, caller.hello.node.member):
            return  # its sender has given that connection up, and sends all of it again on the next one
        message = decode_header(Replicate, header)
        follower = self._by_segment.get(message.segment_uid)
        if follower is None or follower.may_begin_again:
            follower = self._follow(message.topic_uid, message.segment_uid)
        follower.received(caller, message, payload)

    def _follow(self, topic_uid: int, segment_uid: int) -> Follower:
        before = self._by_segment.get(segment_uid)
        found = self._by_segment[segment_uid] = Follower(
            segment_uid,
            lambda made: asyncio.get_running_loop().create_task(
                self._open(made, topic_uid, segment_uid, before)
            ),
            lambda: self._on_committed(topic_uid),
            self._not_opened,
            self._doubt_ended,
            self._counters,
            self._disk_faults,
        )
        return found

    # What the metadata tells.

    def opened(self, topic_uid: int, segment_uid: int) -> None:
        """This segment was opened: if this process is the first here to know of it, its log is made."""
        if self._witness.has_made_none(segment_uid) and segment_uid not in self._by_segment:
            self._to_make[segment_uid] = topic_uid
            if self._makers < MADE_AT_ONCE:
                self._makers += 1
                self._start(self._make_logs())

    async def _make_logs(self) -> None:
        """Whoever cannot be made now is made when its leader speaks."""
        try:
            while self._to_make:
                segment_uid = next(iter(self._to_make))
                topic_uid = self._to_make.pop(segment_uid)
                place = self._places.place(topic_uid, segment_uid)
                is_open = place is not None and not place.segment.is_sealed
                if is_open and segment_uid not in self._by_segment:
                    opening = self._follow(topic_uid, segment_uid).opening
                    assert opening is not None
                    await asyncio.wait([opening])
        finally:
            self._makers -= 1

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _is_last_call(self, caller: Caller, member: int) -> bool:
        last = self._last_calls.get(member)
        if last is None or caller.number > last.number:
            self._last_calls[member] = caller
            return True
        return caller is last

    def _not_opened(self, follower: Follower) -> None:
        """Who sent was told why. What comes next is looked at anew: the reason may be gone."""
        if self._by_segment.get(follower.segment_uid) is follower:
            del self._by_segment[follower.segment_uid]

    async def _open(
        self, follower: Follower, topic_uid: int, segment_uid: int, before: Follower | None
    ) -> FollowedSegment:
        """`before` could not write its log, and has said so. What it had answered for it still has."""
        if before is not None:
            self._known[segment_uid] = await before.known()
        async with self._lock(segment_uid):
            place = await self._places.find(topic_uid, segment_uid, segment_uid)
            state = place.segment
            if self._member not in state.replicas or state.leader == self._member:
                raise UnknownTopic(f"this node does not follow {place.identity.key}")
            if state.is_sealed or state.recovery:
                raise SegmentFenced(f"{place.identity.key} is sealed, or being recovered")
            follower.leader = state.leader
            known = self._known.get(state.uid, Known())
            may_be_missing = self._witness.has_made_none(state.uid)
            recovered = await run_to_end(
                self._disk,
                lambda: _open_copy(self._disk, place, known.synced, may_be_missing),
                OpenedLog.close,
            )
            self._witness.made(state.uid)
            # What the leader says is committed is newer than what this process answered for on an earlier
            # connection; but not than what it answered for on this one, before its disk failed.
            follower.ends_doubt = recovered.in_doubt and known.synced is None
            opened = FollowedSegment(
                place.identity,
                recovered,
                owner=follower,
                leases=self._leases,
                commits=self._commits,
                tail=self._hot.of_segment(),
                policy=FsyncPolicy.FSYNC,  # until the leader says otherwise
            )
            opened.commit_told(known.commit_end)
            return opened

    def _doubt_ended(self, follower: Follower) -> None:
        """The log has all that may have been acknowledged from here."""
        self._start(self._forget_doubt(follower))

    async def _forget_doubt(self, follower: Follower) -> None:
        uid = follower.segment_uid
        async with self._lock(uid):
            if self._by_segment.get(uid) is not follower or follower.log is None or follower.refusal:
                return  # it is somebody else's by now
            path, key = follower.log.identity.path, follower.log.identity.key
            try:
                await run_to_end(self._disk, lambda: forget_doubt(self._disk, path))
            except OSError as error:
                log.warning("%s stays in doubt here, though it has all that is committed: %s", key, error)
                return
            log.info("the copy of %s is not in doubt any more: it has all that is committed", key)

    # The end.

    async def refuse(self, segment_uid: int, refusal: Refusal, recovery: int) -> Known:
        """Take nothing more of a segment; returns when nothing is being written, with what is known of it."""
        follower = self._by_segment.get(segment_uid)
        known = Known()
        if follower is not None:
            follower.refuse(refusal, recovery)
            known = await follower.known()
        return self._known.get(segment_uid, known) if known.synced is None else known

    async def end(self, segment_uid: int, refusal: Refusal) -> Known:
        """The same of one that is not followed any more. Whoever else asks meanwhile waits for the same."""
        follower = self._by_segment.get(segment_uid)
        known = self._known.get(segment_uid, Known())
        if follower is not None:
            follower.refuse(refusal, 0)
            told = await follower.known()
            known = known if told.synced is None else told
        if self._by_segment.get(segment_uid) is follower:
            self._by_segment.pop(segment_uid, None)
            self._known.pop(segment_uid, None)
        self._disk_faults.pop(segment_uid, None)  # not before: what was being written may have failed
        return known

    async def close(self) -> None:
        self._to_make.clear()
        for uid in list(self._by_segment):
            await self.end(uid, Refusal.STORAGE)
        await asyncio.gather(*self._tasks)


def _open_copy(disk: Disk, place: Place, synced: Synced | None, may_be_missing: bool) -> OpenedLog:
    """The log of a segment that another node leads, to go on with it; a new one if there is none."""
    identity, state = place.identity, place.segment
    fence = read_fence(disk, identity.path)
    if fence:
        raise SegmentFenced(f"{identity.key} was fenced by recovery {fence}")
    carried, time_us = state.carried_producers, state.carried_append_time_us
    disk.make_directory(identity.path.rpartition("/")[0])
    is_there = disk.exists(identity.path + ".log")
    if not is_there and synced is not None and synced.position:
        raise CorruptSegment(f"the log of {identity.key} was here, and is not")
    if not may_be_missing:
        doubt_what_is_missing(disk, identity.path)
    if is_there:
        return recover(disk, identity, carried, time_us, is_follower=True, synced=synced)
    made = create(disk, identity, carried, time_us)
    made.in_doubt = doubtful_until(disk, identity.path) > 0
    return made
