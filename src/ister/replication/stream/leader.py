"""The leader's side of a replicated segment: frames out to the followers, the commit point in.

What a commit cycle takes is sent on before it is written here. A follower that is not up to date gets what it
lacks from the hot tail or the file, at most a window at a time; nothing is kept in memory for it.

Fault model: connections break and come back, followers are slow, restarted, or gone; answers are late. One
that says that it is fenced or sealed is believed at once: this segment is then somebody else's to end (H4).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ister.errors import CorruptSegment, InvariantBroken, IsterError
from ister.frame import base_and_count
from ister.io.clock import monotonic
from ister.io.disk import Disk
from ister.peers import Peers
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.peer import node_of
from ister.protocol.replication import Refusal, Replicate, Replicated
from ister.replication.counters import ReplicationCounters
from ister.replication.stream.confirming import Confirming
from ister.replication.stream.progress import Progress
from ister.wal.read_faults import is_medium_error, read_failed
from ister.wal.segment import Segment
from ister.wal.tail import Bytes

log = logging.getLogger("ister.replication.stream.leader")

WINDOW_BYTES = 8 * 1024 * 1024
"""What may be under way to one follower of one segment."""
MESSAGE_BYTES = 1024 * 1024
"""What a follower that is behind is sent at a time."""
TELL_SECONDS = 0.05
"""After so long followers are told of a commit point, if nothing that is sent tells them (F5)."""
ASK_AGAIN_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
"""A follower that refuses, and not for good, is asked again after pauses between these; and so is this disk
for what a follower lacks."""
NO_LIMIT = 1 << 62


class Behind(NamedTuple):
    """A follower that does not have all that is committed, or gets nothing."""

    member: int
    lacks: int
    """How many committed records it is not known to have."""
    why: str
    """Why it gets none; empty if it follows."""
    since: float
    """Since when it gets none, or has not caught up with what was committed then; by the loop's time."""


class Leading:
    """One open segment that this node leads, and that has other replicas. A segment's `Replication`."""

    def __init__(
        self,
        topic_uid: int,
        segment: Segment,
        own: int,
        replicas: Sequence[int],
        streams: Streams,
        disk: Disk,
        on_lost: Callable[[str], None],
    ) -> None:
        """`on_lost` is told why this segment is not this process's to go on with."""
        self.segment = segment
        self.uid = segment.identity.uid
        self.followers = [member for member in replicas if member != own]
        self.progress = Progress(own, replicas, segment.durable_end)
        self._topic_uid = topic_uid
        self._fsync = segment.policy.value
        self._streams = streams
        self._disk = disk
        self._on_lost = on_lost
        self._told_due: asyncio.TimerHandle | None = None
        self._catching_up: dict[int, asyncio.Task[None]] = {}
        self._unread: dict[int, int] = {}
        """How often in a row what a follower lacks could not be read here."""
        self._unreadable: dict[int, int] = {}
        """Where the disk could not read for a follower, the last time that it could not."""
        self._reading_again: dict[int, asyncio.TimerHandle] = {}
        self._confirming = Confirming(self.progress.quorum - 1, self._ask_all)
        self._closed = False
        self._refusals: dict[int, tuple[int, int]] = {}
        """How often a follower has refused since it last took something, and how much it had then."""
        self._wait: tuple[float, int] | None = None
        """Since when this node waits for the others to have what it has up to here; one wait at a time."""
        self._lost_since: dict[int, float] = dict.fromkeys(self.followers, self._now())
        """Followers that do not follow, and since when."""
        self._marks: dict[int, tuple[float, int]] = {}
        """What was committed at some moment that the follower had not all of, as far as it is known."""
        for member in self.followers:
            streams.add(member, self)

    # What the segment tells.

    def taken(self, base_offset: int, buffers: Sequence[Bytes], size: int) -> None:
        for member in self.followers:
            if size <= MESSAGE_BYTES and self._may_send(member, base_offset, size):
                self._send(member, base_offset, self.segment.end_offset, buffers, size)
            elif member not in self._catching_up:
                self._pump(member)

    def own_synced(self) -> None:
        end = self.segment.durable_end
        self.progress.own_synced(end)
        if self._wait is None:
            self._wait = self._now(), end
        self._advance()
        for member in self.followers:
            self._pump(member)

    def lease_lost(self, error: IsterError) -> None:
        self._on_lost(error.message)

    # What the followers tell.

    def connected(self, member: int) -> None:
        """Ask where it ends. What it was sent on the last connection may have come or not."""
        self.progress.connected(member)
        for question in self._confirming.open:
            self._ask(member, question)
        if self.segment.durable_end == self.segment.identity.base_offset:
            # Nothing is durable here yet. What it may have of that it is sent again, and skips.
            self.progress.answered(member, Replicated(self.uid, self.segment.durable_end))
        # Of an empty segment too: it makes its log by that, and a doubt of it ends (P3).
        self._send(member, self.progress.synced_end(member), 0, (), 0)

    def disconnected(self, member: int) -> None:
        self.progress.disconnected(member)

    def answered(self, member: int, answer: Replicated) -> None:
        if self._closed:
            return
        has_refused, synced_end = bool(self.progress.refusal(member)), self.progress.synced_end(member)
        try:
            self.progress.answered(member, answer)
        except InvariantBroken as error:
            # Which of the two logs is the right one is not for either to say: a recovery compares them all.
            log.critical("%s: %s", self.segment.identity.key, error.message)
            self._on_lost(error.message)
            return
        if answer.refusal:
            self._streams.counters.refused(answer.refusal)
        if answer.refusal in (Refusal.FENCED, Refusal.SEALED):
            self._on_lost(f"node {node_of(member)} says that it is {answer.refusal}")
            return
        if self.progress.refusal(member):
            if not has_refused:
                self._refused(member, answer.refusal, synced_end)
            return
        if member in self._refusals and self._is_mended(member):
            del self._refusals[member]
            self._streams.refusing.pop(member, None)
        if answer.question:
            self._confirming.answered(member, answer.question)
        self._advance()
        self._pump(member)

    def _refused(self, member: int, refusal: Refusal, synced_end: int) -> None:
        """Its disk may be full for a while, or it may not have heard of the segment yet."""
        count, furthest = self._refusals.get(member, (0, 0))
        self._refusals[member] = count + 1, max(furthest, synced_end)
        key = self.segment.identity.key
        if refusal is Refusal.STORAGE:
            self._streams.refusing[member] = self.uid
        log.warning("node %d does not follow %s: %s", node_of(member), key, refusal)
        asyncio.get_running_loop().call_later(_pause_after(count), self._ask_again, member)

    def _is_mended(self, member: int) -> bool:
        """Whether it has taken more than it had when it refused; that it answers is not enough."""
        end, (_, furthest) = self.progress.synced_end(member), self._refusals[member]
        return end > furthest or end == self.segment.end_offset

    def _ask_again(self, member: int) -> None:
        if not self._closed and self.progress.is_connected(member) and self.progress.refusal(member):
            self.progress.connected(member)
            self._send(member, self.progress.synced_end(member), 0, (), 0)

    def has_room(self, member: int) -> None:
        self._pump(member)

    # Committing.

    def _now(self) -> float:
        return monotonic()

    def lost(self, now: float, seconds: float) -> list[int]:
        """Followers that do not follow for so long. Asked now and then: only at these moments is it seen who
        is behind, and since when."""
        for member in self.followers:
            if self.progress.is_following(member):
                self._lost_since.pop(member, None)
            else:
                self._lost_since.setdefault(member, now)
            mark = self._marks.get(member)
            if mark is None or self.progress.synced_end(member) >= mark[1]:
                self._marks[member] = now, self.segment.committed_end
        return [member for member, since in self._lost_since.items() if now - since > seconds]

    def synced_to(self, end_offset: int) -> list[int]:
        """The followers that are known to have synced so much, or more."""
        return [m for m in self.followers if self.progress.synced_end(m) >= end_offset]

    @property
    def lag(self) -> int:
        """How many committed records the slowest follower is not known to have."""
        ends = map(self.progress.synced_end, self.followers)
        return max(0, self.segment.committed_end - min(ends, default=self.segment.committed_end))

    def standing(self) -> list[Behind]:
        """Each follower that lacks committed records, or gets none."""
        found: list[Behind] = []
        for member in self.followers:
            lacks = max(0, self.segment.committed_end - self.progress.synced_end(member))
            why = ""
            if not self.progress.is_following(member):
                refusal = self.progress.refusal(member)
                is_connected = self.progress.is_connected(member)
                why = f"refuses: {refusal}" if refusal else "connects" if is_connected else "not connected"
            elif member in self._unread:
                why = "its leader cannot read what it lacks"
            if lacks or why:
                since, _ = self._marks.get(member, (self._now(), 0))
                found.append(
                    Behind(member, lacks, why, self._lost_since.get(member, since) if why else since)
                )
        return found

    def _advance(self) -> None:
        end = self.progress.quorum_end
        if end > self.segment.committed_end:
            self.segment.commit_to(end)
            if self._wait is not None and end >= self._wait[1]:
                self._streams.counters.quorum_wait_seconds.observe(self._now() - self._wait[0])
                self._wait = None
            if self._told_due is None and not self._closed:
                self._told_due = asyncio.get_running_loop().call_later(TELL_SECONDS, self._tell)

    def _tell(self) -> None:
        self._told_due = None
        end = self.segment.committed_end
        for member in self.followers:
            if self.progress.is_following(member) and self.progress.known_commit(member) < end:
                self._send(member, self.progress.sent_end(member), 0, (), 0)

    # Still leading.

    async def confirm(self, seconds: float) -> bool:
        """Whether this node led the segment when it was asked: False if too few followers say so in time."""
        return not self._closed and await self._confirming.confirm(seconds)

    def _ask_all(self, question: int) -> None:
        for member in self.followers:
            if not self._closed and self.progress.is_connected(member):
                self._ask(member, question)

    def _ask(self, member: int, question: int) -> None:
        base, commit = self.progress.synced_end(member), self.segment.committed_end
        header = encode_header(Replicate(self._topic_uid, self.uid, base, commit, self._fsync, question))
        self._streams.send(member, header, (), 0)

    # Sending.

    def _may_send(self, member: int, base_offset: int, size: int) -> bool:
        progress = self.progress
        return (
            progress.is_following(member)
            and progress.sent_end(member) == base_offset
            and progress.in_flight(member) + size <= WINDOW_BYTES
            and self._streams.has_room(member)
        )

    def _send(
        self, member: int, base_offset: int, end_offset: int, frames: Sequence[Bytes], size: int
    ) -> None:
        commit = self.segment.committed_end
        header = encode_header(Replicate(self._topic_uid, self.uid, base_offset, commit, self._fsync))
        self._streams.send(member, header, frames, size)
        if size:
            self.progress.sent(member, end_offset, size, commit)
            self._streams.counters.bytes_out.add(size)
            self._streams.counters.records_out.add(end_offset - base_offset)
        else:
            self.progress.told(member, commit)

    def _pump(self, member: int) -> None:
        """Send what a follower lacks, as far as there is room."""
        segment = self.segment
        while self._may_read_for(member) and self._streams.has_room(member):
            offset = self.progress.wants(member, segment.end_offset, WINDOW_BYTES)
            if offset is None:
                return
            frames = segment.tail.read(offset, NO_LIMIT, MESSAGE_BYTES)
            if frames is None:
                if offset < segment.durable_end:
                    task = asyncio.get_running_loop().create_task(self._catch_up(member, offset))
                    self._catching_up[member] = task
                return
            if not frames or end_of(frames[-1]) <= offset:
                return  # what there is to send is taken, and sent, by the next cycle
            self._send_read(member, offset, frames)

    def _may_read_for(self, member: int) -> bool:
        return not self._closed and member not in self._catching_up and member not in self._reading_again

    def _send_read(self, member: int, offset: int, frames: Sequence[Bytes]) -> None:
        end = end_of(frames[-1])
        self._send(member, offset, end, frames, sum(map(len, frames)))

    async def _catch_up(self, member: int, offset: int) -> None:
        """Read from the file what the hot tail no longer has."""
        segment = self.segment
        segment.hold()
        try:
            found = await self._disk.run(segment.plan_durable(offset, MESSAGE_BYTES).run_checked)
            if found.damage is not None:
                raise found.damage
        except (OSError, CorruptSegment) as error:
            self._not_read(member, offset, error)
            return
        finally:
            segment.release()
            del self._catching_up[member]
        self._unread.pop(member, None)
        self._unreadable.pop(member, None)
        if not self._closed and self.progress.wants(member, segment.end_offset, WINDOW_BYTES) == offset:
            size = sum(map(len, found.buffers))
            self._send(member, offset, offset + found.records, found.buffers, size)
        self._pump(member)

    def _not_read(self, member: int, offset: int, error: OSError | CorruptSegment) -> None:
        """Damage is for a recovery to mend, and so is a place that the disk could not read twice: others may
        have it still. Any other read that failed may succeed the next time."""
        log.error("%s cannot be read for node %d: %s", self.segment.identity.key, node_of(member), error)
        if self._closed:
            return
        count = self._unread[member] = self._unread.get(member, 0) + 1
        if isinstance(error, CorruptSegment):
            self._on_lost(error.message)
            return
        if is_medium_error(error):
            if self._unreadable.get(member) == offset:
                where = f"offset {offset}, twice"
                self._on_lost(read_failed(self.segment.identity.key, where, error).message)
                return
            self._unreadable[member] = offset
        again = asyncio.get_running_loop().call_later(_pause_after(count - 1), self._read_again, member)
        self._reading_again[member] = again

    def _read_again(self, member: int) -> None:
        del self._reading_again[member]
        self._pump(member)

    def close(self) -> None:
        """The segment is sealed, fenced or gone: nothing more is sent, and answers are not looked at."""
        self._closed = True
        self._confirming.close()
        for timer in (self._told_due, *self._reading_again.values()):
            if timer is not None:
                timer.cancel()
        for member in self.followers:
            self._streams.remove(member, self)
            if self._streams.refusing.get(member) == self.uid:
                del self._streams.refusing[member]


def _pause_after(failures: int) -> float:
    return min(ASK_AGAIN_SECONDS * 2.0 ** min(failures, 10), LONGEST_PAUSE_SECONDS)


def end_of(frame: Bytes) -> int:
    base, count = base_and_count(frame)
    return base + count


class Streams:
    """All that this node sends to followers, by node: which segments share a connection. `BulkListener`."""

    def __init__(self, peers: Peers, counters: ReplicationCounters) -> None:
        self.counters = counters
        self._peers = peers
        self._by_member: dict[int, dict[int, Leading]] = {}
        self._up: set[int] = set()
        self.refusing: dict[int, int] = {}
        """Members whose disks do not take what they are sent, and the segment of which they said so last."""

    def add(self, member: int, leading: Leading) -> None:
        self._by_member.setdefault(member, {})[leading.uid] = leading
        link = self._peers.bulk(member)
        if link is not None and member in self._up:
            leading.connected(member)

    def remove(self, member: int, leading: Leading) -> None:
        self._by_member.get(member, {}).pop(leading.uid, None)

    def has_room(self, member: int) -> bool:
        link = self._peers.bulk(member)
        return link is not None and link.has_room

    def send(self, member: int, header: bytes, frames: Sequence[Bytes], size: int) -> None:
        link = self._peers.bulk(member)
        if link is not None:
            link.send_frames(header, frames, size)

    def connected(self, member: int) -> None:
        self._up.add(member)
        for leading in self._of(member):
            leading.connected(member)
            leading.has_room(member)

    def disconnected(self, member: int) -> None:
        self._up.discard(member)
        for leading in self._of(member):
            leading.disconnected(member)

    def answered(self, member: int, header: bytes) -> None:
        answer = decode_header(Replicated, header)
        leading = self._by_member.get(member, {}).get(answer.segment_uid)
        if leading is not None:
            leading.answered(member, answer)

    def room_made(self, member: int) -> None:
        for leading in self._of(member):
            leading.has_room(member)

    def _of(self, member: int) -> list[Leading]:
        return list(self._by_member.get(member, {}).values())
