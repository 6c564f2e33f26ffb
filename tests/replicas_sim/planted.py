"""Bugs put into replication on purpose, one at a time, to see that its simulation finds them.

Each is a context manager that changes the product's classes while it is entered. They are the ways in which
replicated logs really lose what they acknowledged; the number of the rule that forbids it is given.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar
from unittest import mock

import msgspec

from ister.broker.node import sealed
from ister.broker.node.replicas import NodeReplication
from ister.broker.topic.unrecovered import Unrecovered
from ister.frame import Bytes, Corrupt, Frame, FrameHeader, Incomplete, decode_header
from ister.io.disk import Disk
from ister.metadata.commands import SealSegment
from ister.metadata.state import TopicState
from ister.protocol.peer import PeerKind, node_of
from ister.protocol.replication import Copy, Fence, ReadLog, Refusal, Replicated
from ister.replication.copies import copies, copying, sealed_copies
from ister.replication.copies.copies import Copies
from ister.replication.places import Place
from ister.replication.recovery.failover_events import Begun, Members, ProposeSeal
from ister.replication.recovery.failover_heard import Heard
from ister.replication.recovery.recovering import Attempt
from ister.replication.stream import follower
from ister.replication.stream.witness import Witness
from ister.wal import checking, opening, reader
from ister.wal.followed import FollowedSegment
from ister.wal.group_commit import FlushJob
from ister.wal.producers import Appended
from ister.wal.seal_cut import SealCut, cut_at_seal
from ister.wal.segment import Segment
from ister.wal.sink import Sink
from tests.cluster.planted import Plant

T = TypeVar("T")
Planted = contextlib.AbstractContextManager[Any]


@contextlib.contextmanager
def _all_of(*patches: Planted) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


# Leading.


def a_restarted_leader_goes_on_appending() -> Planted:
    """A3: it finds its segment open, its own log whole, and gives out the next offset."""
    never = property(lambda topic: False)
    return mock.patch.multiple(Unrecovered, may_have_records=never, is_begun=never)


def a_duplicate_is_acknowledged_before_its_original_is_committed() -> Planted:
    """A5: the frame is in the log, and so its repeat is told the offsets."""

    def at_once(
        self: Segment, original: Appended, frame: Bytes, sink: Sink, token: int, started: float
    ) -> None:
        sink.appended(token, original.base_offset, original.append_time_us)

    return mock.patch.object(Segment, "_repeat", at_once)


def a_second_fsync_is_believed() -> Planted:
    """P1: the first one failed, the second one returns well, and has written nothing."""
    run = FlushJob.run

    def again(self: FlushJob) -> None:
        run(self)
        if self.error is not None and self.during_sync:
            with contextlib.suppress(OSError):
                self.segment.file.sync()
                self.error = None

    return mock.patch.object(FlushJob, "run", again)


def the_commit_is_counted_before_the_follower_has_synced() -> Planted:
    """A follower answers for what it has queued."""
    follow = FollowedSegment.follow

    def answered_at_once(
        self: FollowedSegment,
        frames: Sequence[tuple[FrameHeader, Bytes]],
        sink: Sink,
        token: int,
        started: float,
    ) -> None:
        assert isinstance(sink, follower.Follower)
        caller, _ = sink._waiting[token]
        follow(self, frames, sink, token, started)
        follower._answer(caller, Replicated(self.identity.uid, self.end_offset, Refusal.NONE))

    return mock.patch.object(FollowedSegment, "follow", answered_at_once)


# Recovering.


def a_fence_needs_no_begun_recovery() -> Planted:
    """F1: fences go out under a number that the metadata has not given."""
    counter = iter(range(1_000_000, 2_000_000))

    async def begun_at_once(self: Attempt) -> Begun:
        return Begun(next(counter))

    async def whatever(self: Copies, request: Fence | Copy | ReadLog) -> Place:
        return await self.find(request.topic_uid, request.segment_uid, request.segment_uid)

    return _all_of(
        mock.patch.object(Attempt, "_begin", begun_at_once),
        mock.patch.object(Copies, "_in_recovery", whatever),
    )


def a_fence_is_not_durable() -> Planted:
    """F2: the promise is kept by the process that made it, and by no other."""

    def forgotten(disk: Disk, path: str, number: int) -> None:
        pass

    return mock.patch.object(copies, "write_fence", forgotten)


def the_longest_is_chosen_among_too_few() -> Planted:
    """F2: one answer fewer than R - Q + 1."""

    def one_fewer(heard: Heard) -> int:
        return max(1, len(heard.replicas) - heard.quorum)

    return mock.patch.object(Heard, "answers_needed", property(one_fewer))


def a_wiped_replica_counts_as_an_empty_one() -> Planted:
    """I2: a node is what its number says, and its new disk has an empty log of everything."""
    in_recovery, ask, members = Copies._in_recovery, NodeReplication.ask, Attempt._members
    make_seal = NodeReplication.make_recovery_seal

    def as_it_is_now(home: NodeReplication, member: int) -> int:
        node = home.metadata.state.nodes.get(node_of(member))
        return node.member if node is not None else member

    async def of_any_disk(self: Copies, request: Fence | Copy | ReadLog) -> Place:
        place = await in_recovery(self, request)
        replicas = [*place.segment.replicas, self._member]
        return place._replace(segment=msgspec.structs.replace(place.segment, replicas=replicas))

    async def ask_the_node(
        self: NodeReplication, member: int, kind: PeerKind, header: bytes, timeout: float
    ) -> bytes:
        return await ask(self, as_it_is_now(self, member), kind, header, timeout)

    def all_are_there(self: Attempt) -> Members:
        found = members(self)
        return Members(found.active | {*self._segment.replicas}, found.substitutes)

    def seal(self: NodeReplication, topic: TopicState, found: ProposeSeal, *rest: Any) -> SealSegment:
        made = make_seal(self, topic, found, *rest)
        return msgspec.structs.replace(made, replicas=[as_it_is_now(self, m) for m in made.replicas])

    return _all_of(
        mock.patch.object(Copies, "_in_recovery", of_any_disk),
        mock.patch.object(NodeReplication, "ask", ask_the_node),
        mock.patch.object(Attempt, "_members", all_are_there),
        mock.patch.object(
            Witness, "has_made_none", lambda self, uid: True
        ),  # nor is a missing log a doubt (P3)
        mock.patch.object(NodeReplication, "make_recovery_seal", seal),
    )


# What is sealed.


def an_old_leaders_tail_is_served() -> Planted:
    """F3: its log ends where it ends, whatever the seal says."""

    def to_its_own_end(disk: Disk, identity: opening.SegmentIdentity, *args: Any, **options: Any) -> Any:
        found = opening.recover(disk, identity, [], 0, is_follower=True)
        if found.end_offset < (options.get("sealed_end") or 0):
            found.close()
            return opening.recover(disk, identity, *args, **options)
        return found

    def not_cut(disk: Disk, identity: opening.SegmentIdentity, end: int, **options: Any) -> SealCut:
        found = opening.recover(disk, identity, [], 0, is_follower=True)
        found.close()
        if found.end_offset < end:
            return cut_at_seal(disk, identity, end, **options)
        return SealCut(found.end_offset, found.position, is_complete=True)

    return _all_of(
        mock.patch.object(sealed, "recover", to_its_own_end),
        mock.patch.object(sealed_copies, "cut_at_seal", not_cut),
    )


def a_copy_is_repaired_from_a_corrupt_one() -> Planted:
    """Whatever the source has is sent, and whatever comes is kept: only headers are looked at on that way."""

    def trusting(buffer: Bytes, position: int = 0, *, limit: int = 1 << 31) -> Frame | Incomplete | Corrupt:
        header = decode_header(buffer, position, limit=limit)
        if not isinstance(header, FrameHeader):
            return header
        missing = position + header.size - len(buffer)
        return Incomplete(missing) if missing > 0 else Frame(header, buffer, position)

    def all_good(data: Bytes, base_offset: int) -> tuple[int, int, str]:
        return len(data), base_offset, ""

    def without_a_look(work: Callable[..., T]) -> Callable[..., T]:
        def trustingly(*args: Any) -> T:
            with (
                mock.patch.object(checking, "decode", trusting),
                mock.patch.object(reader, "check_frames", all_good),
            ):
                return work(*args)

        return trustingly

    read_frames = without_a_look(copying.read_frames)
    return _all_of(
        mock.patch.object(copies, "read_frames", read_frames),
        mock.patch.object(sealed, "read_frames", read_frames),
        mock.patch.object(copying._GrowingLog, "_checked", without_a_look(copying._GrowingLog._checked)),
    )


FOUND_BY_SEEDS: dict[Plant, int] = {
    the_commit_is_counted_before_the_follower_has_synced: 1,
    a_fence_needs_no_begun_recovery: 1,
}
"""Each with the number of seeds, from 0 on, within which random faults find it. `test_planted_bugs` has the
directed schedules of the others: random faults find those too, in ten seeds or too seldom."""
