"""A segment of which another node is the leader: its frames come as that node has stamped them.

They are queued and made durable as own appends are, with the node's group commit; whoever sent them is told
when they are. What is committed is the leader's to say: readers here see no more than that (F5).

Fault model: as of `segment`. A write or sync that fails ends this replica's part in the segment: it answers
nothing more (P1), and its log is looked at anew by whoever recovers or repairs it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ister.frame import FrameHeader
from ister.wal.group_commit import GroupCommit
from ister.wal.leases import Leases
from ister.wal.opening import OpenedLog, SegmentIdentity
from ister.wal.segment import FsyncPolicy, Owner, Segment
from ister.wal.side_file import INDEX_INTERVAL_BYTES
from ister.wal.sink import Sink
from ister.wal.tail import Bytes, TailOfSegment


class FollowedSegment(Segment):
    _told_commit = 0

    def __init__(
        self,
        identity: SegmentIdentity,
        recovered: OpenedLog,
        *,
        owner: Owner,
        leases: Leases,
        commits: GroupCommit,
        tail: TailOfSegment,
        policy: FsyncPolicy,
    ) -> None:
        super().__init__(
            identity, recovered, owner=owner, leases=leases, commits=commits, tail=tail, policy=policy
        )
        # What an earlier process has synced here need not be committed: nothing is, until the leader says so.
        self.committed_end, self.committed_position = identity.base_offset, 0
        if recovered.end_offset > identity.base_offset:
            self._ends.append((recovered.end_offset, recovered.position))

    def follow(
        self, frames: Sequence[tuple[FrameHeader, Bytes]], sink: Sink, token: int, started: float
    ) -> None:
        """Queue frames that follow the end, or raise. The sink hears of them when they are durable here."""
        if self.failure is not None:
            raise self.failure.again()
        position, base = self.position, self.end_offset
        for header, frame in frames:
            time_us = header.append_time_us
            if header.producer_id:
                self.producers.record(
                    header.producer_id, header.sequence, header.count, header.base_offset, time_us
                )
            if position >= self._index_at:
                self.index.add(header.base_offset, position, time_us)
                self._index_at = position + INDEX_INTERVAL_BYTES
            self._buffers.append(frame)
            self._bases.append(header.base_offset)
            position += len(frame)
        last = frames[-1][0]
        self.end_offset, self.position = last.end_offset, position
        self.last_append_time_us = max(self.last_append_time_us, last.append_time_us)
        self._ends.append((self.end_offset, position))
        self._waiting.append((self.end_offset, sink, token, base, self.last_append_time_us, started, b""))
        if not self.queued:
            self.queued = True
            self._commits.submit(self)

    def commit_told(self, end_offset: int) -> None:
        """The leader says that so much is committed; what of it is durable here may be read."""
        self._told_commit = max(self._told_commit, end_offset)
        self.commit_to(self._told_commit)

    @property
    def known_commit(self) -> int:
        """What is known to be committed, whether it is here or not."""
        return max(self._told_commit, self.committed_end)

    def _may_write(self) -> bool:
        return True  # who leads decides what comes; a fence ends this object

    def _is_durable(self, end_offset: int, end_position: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= end_offset:
            _, sink, token, base, time_us, _, _ = waiting.popleft()
            sink.appended(token, base, time_us)
        self.commit_to(self._told_commit)

    def _commit(self, end_offset: int, end_position: int) -> None:
        self.committed_end, self.committed_position = end_offset, end_position
        self.committed_append_time_us = self.last_append_time_us
        self._owner.committed(self)
