"""The copies that this node keeps of others' segments, and what a recovery asks of any copy, its own too.

By segment uid: the follower that takes the leader's frames, the fence that ended that. A fence is answered
when nothing is being written to the log any more, what is in it is durable (P2), and the promise is (F2); a
lower number than the last one promised, or than the metadata knows, is refused (F1), and so is one for a
segment that is sealed. What becomes of sealed ones is in `sealed_copies`.

Fault model: requests come twice, late, and for segments that this node has not heard of yet; the node may
stop at any line, and then only what is on disk was promised.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from ister.errors import (
    BadRequest,
    CorruptSegment,
    NotLeader,
    SegmentFenced,
    StorageFailed,
    UnknownTopic,
)
from ister.io.clock import Clock
from ister.io.disk import Disk
from ister.metadata.state import SegmentState, TopicState
from ister.metadata.store import MetadataStore
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.peer import PeerKind
from ister.protocol.replication import Copy, CopyAnswer, Fence, FenceAnswer, ReadLog, Refusal
from ister.replication.copies.copying import Copied, Source, Wanted, copy_log, read_frames
from ister.replication.copies.sources import Ask, CheckedReads, Sources
from ister.replication.counters import ReplicationCounters
from ister.replication.locks import Locks
from ister.replication.places import Place, Places
from ister.replication.recovery.fences import write_fence
from ister.replication.sharing import run_to_end
from ister.replication.stream.follower import Known
from ister.replication.stream.following import Followers
from ister.replication.stream.witness import Witness
from ister.wal.doubts import doubt_what_is_missing, doubtful_until, forget_doubt
from ister.wal.followed import FollowedSegment
from ister.wal.group_commit import GroupCommit
from ister.wal.leases import Leases
from ister.wal.opening import OpenedLog, SegmentIdentity, Synced, create, recover
from ister.wal.read_faults import read_failed, unreadable
from ister.wal.tail import HotTail

log = logging.getLogger("ister.replication.copies.copies")

Read = Callable[[], Awaitable[object]]
"""A read that failed, to be done again."""


class Leader(Protocol):
    """The part of the node that appends to segments."""

    async def stop_leading(self, topic_uid: int, segment_uid: int) -> Known:
        """Take no more appends to this segment, wait for what is being written, let go of the files."""
        ...

    def follower_committed(self, topic_uid: int) -> None:
        """More of a segment that is followed here may be read."""
        ...


class Copies:
    def __init__(
        self,
        member: int,
        disk: Disk,
        clock: Clock,
        metadata: MetadataStore,
        sealed: CheckedReads,
        ask: Ask,
        commits: GroupCommit,
        leases: Leases,
        hot: HotTail,
        leader: Leader,
        identity_of: Callable[[TopicState, SegmentState], SegmentIdentity],
        counters: ReplicationCounters,
    ) -> None:
        self._counters = counters
        self._member = member
        self._disk = disk
        self._clock = clock
        self._sealed = sealed
        self.sources = Sources(member, ask, sealed)
        self._metadata = metadata
        self._leader = leader
        self._places = Places(metadata, identity_of)
        self._busy = Locks()
        """Of segments that somebody fences, copies or cuts: one at a time."""
        self._witness = Witness(metadata)
        self.followers = Followers(
            member,
            disk,
            self._places,
            self.lock,
            commits,
            leases,
            hot,
            leader.follower_committed,
            counters,
            self._witness,
        )
        self.commit_known: dict[int, int] = {}
        """Of segments whose stream has ended here, and that were not cut at their seal yet."""
        self._fenced: dict[int, OpenedLog] = {}
        """Logs that are fenced, open to be copied from."""
        self.on_damage: Callable[[Place, str], object] = lambda place, damage: None
        """Told of damage that was found in a sealed segment's copy while it was read for another node."""
        self.on_failed_read: Callable[[Place, OSError, Read], bool] = lambda place, error, read: True
        """Told of such a read that failed; whether what is there is not known to be damaged."""

    # Where things are.

    async def find(self, topic_uid: int, segment_uid: int, index: int) -> Place:
        """The segment, once this node has applied the metadata up to `index`."""
        return await self._places.find(topic_uid, segment_uid, index)

    def place(self, topic_uid: int, segment_uid: int) -> Place | None:
        return self._places.place(topic_uid, segment_uid)

    def follower(self, segment_uid: int) -> FollowedSegment | None:
        """The log of a segment that is followed here, for readers."""
        return self.followers.log_of(segment_uid)

    def lock(self, segment_uid: int) -> AbstractAsyncContextManager[None]:
        """Of a segment's log here: one writes, cuts, replaces or removes it at a time."""
        return self._busy.held(segment_uid)

    # What a recovery asks.

    async def serve(self, kind: int, header: bytes) -> bytes:
        try:
            match kind:
                case PeerKind.FENCE:
                    return encode_header(await self.fence(decode_header(Fence, header)))
                case PeerKind.COPY:
                    return encode_header(await self.copy(decode_header(Copy, header)))
                case PeerKind.READ_LOG:
                    return await self.read(decode_header(ReadLog, header))
        except OSError as error:
            raise StorageFailed(f"the disk of this node failed: {error}") from error
        raise BadRequest(f"there is no request of kind {kind} about a segment's copy")

    async def fence(self, request: Fence) -> FenceAnswer:
        place = await self._in_recovery(request)
        state, key = place.segment, place.identity.key
        if self._member not in state.replicas:
            raise UnknownTopic(f"this node, on this disk, has no copy of {key}")
        known = await self._stop(place, request.recovery)
        async with self.lock(request.segment_uid):
            await self._in_recovery(request)  # still: it may have been sealed while this waited
            is_leader = state.leader == self._member
            self.close_fenced(state.uid)
            found = await self._fence(place, request.recovery, is_leader, known.synced)
        self._counters.fences.add()
        log.info(
            "fenced",
            extra={
                "fields": {
                    "segment": key,
                    "recovery": request.recovery,
                    "end": found.end_offset,
                    "in_doubt": found.in_doubt,
                }
            },
        )
        return FenceAnswer(found.end_offset, found.position, found.in_doubt, known.commit_end)

    async def _fence(
        self, place: Place, recovery: int, is_leader: bool, synced: Synced | None = None
    ) -> OpenedLog:
        """The log, fenced and open to be copied from; its lock is held."""
        uid, may_be_missing = place.segment.uid, self._may_be_missing(place)
        found = self._fenced[uid] = await run_to_end(
            self._disk,
            lambda: _fence(self._disk, place, recovery, is_leader, may_be_missing, synced),
            OpenedLog.close,
        )
        self._witness.made(uid)
        return found

    def _may_be_missing(self, place: Place) -> bool:
        """Whether nothing can have been acknowledged from here if the log is not here: nobody appends before
        the leader's log was made, and a substitute has none."""
        segment = place.segment
        is_replica = self._member in segment.replicas
        return not (is_replica and segment.log_exists) or self._witness.has_made_none(segment.uid)

    async def copy(self, request: Copy) -> CopyAnswer:
        """Bring the log here up to where the recovery says. A substitute begins with nothing."""
        place = await self._in_recovery(request)
        await self._stop(place, request.recovery)
        async with self.lock(request.segment_uid):
            await self._in_recovery(request)
            self.close_fenced(request.segment_uid)
            may_be_missing = self._may_be_missing(place)
            await run_to_end(
                self._disk, lambda: _promise(self._disk, place, request.recovery, may_be_missing)
            )
            self._witness.made(request.segment_uid)
            copied = await copy_log(
                self._disk,
                self._clock,
                wanted_of(place, request.end_offset),
                self.sources.one(place.topic.uid, place.segment.uid, request.source, request.recovery),
            )
            # No record was acknowledged past the end that a recovery has chosen, and none will be.
            await run_to_end(self._disk, lambda: forget_doubt(self._disk, place.identity.path))
        return CopyAnswer(copied.end_offset, copied.end_position)

    async def fold(self, topic_uid: int, segment_uid: int, end_offset: int) -> Copied:
        """What the log here, which is whole up to this end, says of its producers."""
        place = await self.find(topic_uid, segment_uid, 0)
        async with self.lock(segment_uid):
            self.close_fenced(segment_uid)
            if not self._may_be_missing(place):  # since it was fenced
                await run_to_end(self._disk, lambda: doubt_what_is_missing(self._disk, place.identity.path))
            return await copy_log(
                self._disk, self._clock, wanted_of(place, end_offset), Source("nobody", _nothing_more)
            )

    async def read(self, request: ReadLog) -> bytes:
        """Frames of a log that cannot grow: a fenced one, for its recovery, or a sealed one."""
        place = await self.find(request.topic_uid, request.segment_uid, request.recovery)
        state, identity = place.segment, place.identity
        if state.is_sealed:
            return await self._read_sealed(place, request.offset, request.max_bytes)
        if not request.recovery:
            raise NotLeader(f"this node does not know yet that {identity.key} is sealed")
        async with self.lock(request.segment_uid):
            await self._in_recovery(request)
            opened = self._fenced.get(state.uid)
            if opened is None:
                opened = await self._fence(place, request.recovery, state.leader == self._member)
            try:
                return await run_to_end(
                    self._disk,
                    lambda: read_frames(
                        opened.file,
                        opened.index,
                        identity.key,
                        opened.position,
                        opened.end_offset,
                        request.offset,
                        request.max_bytes,
                    ),
                )
            except OSError as error:  # it is no source for this recovery: nothing of it is changed
                raise unreadable(identity.key, f"offset {request.offset}", error) from error

    async def _read_sealed(self, place: Place, offset: int, max_bytes: int) -> bytes:
        def read() -> Awaitable[bytes]:
            return self._sealed.read_checked(place.identity, place.segment, offset, max_bytes)

        try:
            return await read()
        except CorruptSegment as error:
            self.on_damage(place, error.message)
            raise
        except OSError as error:
            key, where = place.identity.key, f"offset {offset}"
            may_pass = self.on_failed_read(place, error, read)
            raise (read_failed if may_pass else unreadable)(key, where, error) from error

    def close_fenced(self, segment_uid: int) -> None:
        """Let go of the log if it was open for its recovery."""
        opened = self._fenced.pop(segment_uid, None)
        if opened is not None:
            opened.close()

    async def _in_recovery(self, request: Fence | Copy | ReadLog) -> Place:
        """The segment, if this is of its last recovery (F1)."""
        recovery = request.recovery
        place = await self.find(request.topic_uid, request.segment_uid, recovery)
        state, key = place.segment, place.identity.key
        if state.is_sealed:
            raise SegmentFenced(f"{key} is sealed at {state.end_offset}")
        if state.recovery != recovery:
            raise SegmentFenced(f"recovery {recovery} of {key} is not its last one: {state.recovery} is")
        return place

    async def _stop(self, place: Place, recovery: int) -> Known:
        """Nothing is taken any more, and nothing is being written."""
        uid = place.segment.uid
        if place.segment.leader == self._member:
            known = await self._leader.stop_leading(place.topic.uid, uid)
        else:
            known = await self.followers.refuse(uid, Refusal.FENCED, recovery)
        commit = max(self.commit_known.get(uid, 0), known.commit_end)
        self.commit_known[uid] = commit
        return Known(commit, known.synced)

    # The end of a segment.

    async def sealed(self, place: Place) -> None:
        """The metadata has sealed a segment that was followed here: the stream has nothing more to bring."""
        segment = place.segment
        self._witness.forget([segment.uid])
        commit = (await self.followers.end(segment.uid, Refusal.SEALED)).commit_end
        if segment.leader == self._member and (segment.recovery or segment.lost_from is not None):
            known = await self._leader.stop_leading(place.topic.uid, segment.uid)
            commit = max(commit, known.commit_end)
        if segment.data_end is not None and commit > segment.data_end:
            self.commit_known[segment.uid] = commit  # a seal below it is wrong, and nothing is cut here (F3)

    async def forget(self, segment_uids: set[int]) -> None:
        """These are gone from the metadata, or not this node's any more."""
        for uid in segment_uids:
            self.commit_known.pop(uid, None)
            if uid in self._fenced:
                async with self.lock(uid):
                    self.close_fenced(uid)
            self._witness.forget([uid])
            await self.followers.end(uid, Refusal.UNKNOWN)

    async def forget_all_but(self, segment_uids: set[int]) -> None:
        """Only these are open and followed here."""
        gone = set(self.followers.segments - segment_uids)
        topics = self._metadata.state.topics.values()
        there = [(topic.uid, one.uid) for topic in topics for one in topic.segments if one.uid in gone]
        for topic_uid, uid in there:
            place = self.place(topic_uid, uid)
            if place is not None and place.segment.is_sealed:
                gone.discard(uid)
                await self.sealed(place)  # which remembers what F3 asks for
        if kept := self.commit_known.keys() | self._fenced.keys():
            topics = self._metadata.state.topics.values()
            gone |= kept - {segment.uid for topic in topics for segment in topic.segments}
        await self.forget(gone)

    async def close(self) -> None:
        await self.followers.close()
        for uid in list(self._fenced):
            async with self.lock(uid):
                self.close_fenced(uid)


def _fence(
    disk: Disk, place: Place, recovery: int, is_leader: bool, may_be_missing: bool, synced: Synced | None
) -> OpenedLog:
    """Make what is there durable, and the promise. The promise comes first: a crash in between is no harm."""
    identity, state = place.identity, place.segment
    _promise(disk, place, recovery, may_be_missing)
    carried, time_us = state.carried_producers, state.carried_append_time_us
    if not disk.exists(identity.path + ".log"):
        if (is_leader and state.log_exists) or (synced is not None and synced.position):
            raise CorruptSegment(f"the log of {identity.key} was here, and is not")
        made = create(disk, identity, carried, time_us)
        made.in_doubt = doubtful_until(disk, identity.path) > 0
        return made
    return recover(
        disk,
        identity,
        carried,
        time_us,
        is_follower=not is_leader,
        is_replicated=True,
        synced=synced,
    )


def _promise(disk: Disk, place: Place, recovery: int, may_be_missing: bool) -> None:
    """Take no more appends, durably; and remember a log that is lost before anything is in its place (P3)."""
    disk.make_directory(place.identity.path.rpartition("/")[0])
    write_fence(disk, place.identity.path, recovery)
    if not may_be_missing:
        doubt_what_is_missing(disk, place.identity.path)


def wanted_of(place: Place, end_offset: int) -> Wanted:
    """The log of a segment up to an offset."""
    state = place.segment
    return Wanted(place.identity, end_offset, state.carried_producers, state.carried_append_time_us)


async def _nothing_more(offset: int, max_bytes: int) -> bytes:
    raise CorruptSegment(f"the log ends at {offset}, and was said to go on")
