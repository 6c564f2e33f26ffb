"""What the leader of an open segment knows of its replicas: who was sent how much, and who has synced it.

No I/O and no clock. The driver tells of connections, of what it sends and of what comes back, all of one
connection in order; answers of a connection that broke are not told any more.

What holds:
- `quorum_end` never goes back, is never past what this leader has synced itself, and is always an end that
  some replica reported: of a cycle, and so of a frame.
- A follower counts for what it said, on the connection that there is, in an answer that refuses nothing. One
  that was fenced helps to acknowledge nothing more (F2), whatever it had before. One that comes back may have
  lost what it had: whatever was committed with its help was so before it was asked where it ends now (P3).
- A follower cannot have what it was not sent by this process, which is the only one that ever wrote to this
  segment (A3). One that says so has another log: that stops the leader rather than being counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ister.errors import InvariantBroken, invariant
from ister.protocol.peer import node_of
from ister.protocol.replication import Refusal, Replicated
from ister.quorum import acknowledging

_FOR_GOOD = (Refusal.FENCED, Refusal.SEALED)


class _Follower:
    """One follower, as the leader sees it."""

    __slots__ = (
        "in_flight",
        "in_flight_bytes",
        "is_connected",
        "known_commit",
        "refusal",
        "sent_end",
        "sent_max",
        "synced_end",
    )

    def __init__(self, base_offset: int) -> None:
        self.is_connected = False
        self.refusal = Refusal.NONE
        self.sent_end: int | None = None
        """None until it has said, on this connection, where it ends."""
        self.sent_max = base_offset
        """The most that it was ever sent, on any connection."""
        self.synced_end = base_offset
        self.known_commit = base_offset
        self.in_flight: deque[tuple[int, int]] = deque()
        """What is under way: where each message ends, and its size in bytes."""
        self.in_flight_bytes = 0

    def nothing_under_way(self) -> None:
        self.in_flight.clear()
        self.in_flight_bytes = 0


class Progress:
    """The replicas of one open segment, for as long as one process leads it."""

    def __init__(self, own: int, replicas: Sequence[int], base_offset: int) -> None:
        invariant(own in replicas, f"{own} leads, but is none of the replicas {replicas}")
        self.quorum = acknowledging(len(replicas))
        self.quorum_end = base_offset
        """So far enough replicas have it, and the segment may commit. What is committed is for the segment to
        say (`Segment.committed_end`): there it is whole cycles, and those who wait are told."""
        self._base_offset = base_offset
        self._own_synced = base_offset
        self._followers = {member: _Follower(base_offset) for member in replicas if member != own}

    # What happens.

    def own_synced(self, end_offset: int) -> None:
        if end_offset < self._own_synced:
            raise InvariantBroken(f"the leader says it has synced to {end_offset}, after {self._own_synced}")
        self._own_synced = end_offset
        self._advance()

    def connected(self, member: int) -> None:
        """It is to be asked where it ends, and whether what it refused it refuses still; not if for good."""
        follower = self._followers[member]
        follower.is_connected = True
        follower.sent_end = None
        # It may have been restarted, and have forgotten what it was told.
        follower.known_commit = self._base_offset
        follower.nothing_under_way()
        if follower.refusal not in _FOR_GOOD:
            follower.refusal = Refusal.NONE

    def disconnected(self, member: int) -> None:
        follower = self._followers[member]
        follower.is_connected = False
        follower.sent_end = None
        follower.nothing_under_way()

    def sent(self, member: int, end_offset: int, size: int, commit_end: int) -> None:
        """Frames up to `end_offset` are under way to it, from where it was sent to before."""
        follower = self._followers[member]
        if follower.sent_end is None or end_offset <= follower.sent_end:
            raise InvariantBroken(
                f"frames up to {end_offset} are sent to node {node_of(member)} after {follower.sent_end}"
            )
        follower.sent_end = end_offset
        follower.sent_max = max(follower.sent_max, end_offset)
        follower.in_flight.append((end_offset, size))
        follower.in_flight_bytes += size
        follower.known_commit = commit_end

    def told(self, member: int, commit_end: int) -> None:
        """A message without frames is under way to it: it asks where it ends, or tells the commit."""
        self._followers[member].known_commit = commit_end

    def answered(self, member: int, answer: Replicated) -> None:
        follower = self._followers[member]
        if not follower.is_connected or follower.refusal is not Refusal.NONE:
            return
        if answer.refusal not in (Refusal.NONE, Refusal.GAP):
            self._refused(follower, answer.refusal)
            return
        end = answer.end_offset
        if not self._base_offset <= end <= follower.sent_max:
            raise InvariantBroken(
                f"node {node_of(member)} says that it has synced up to {end}, but was sent "
                f"{self._base_offset} to {follower.sent_max}: its log is not this one"
            )
        if follower.sent_end is None or answer.refusal is Refusal.GAP:
            # Its own word on where it ends, even if it had more once: a rotten tail may have been cut (P3).
            follower.sent_end = follower.synced_end = end
            follower.nothing_under_way()
        else:
            follower.synced_end = max(follower.synced_end, end)
            follower.sent_end = max(follower.sent_end, end)
            while follower.in_flight and follower.in_flight[0][0] <= end:
                follower.in_flight_bytes -= follower.in_flight.popleft()[1]
        self._advance()

    def _refused(self, follower: _Follower, refusal: Refusal) -> None:
        """It is sent nothing more, and counts for nothing that is not committed yet."""
        follower.refusal = refusal
        follower.sent_end = None
        follower.synced_end = self._base_offset
        follower.nothing_under_way()

    def _advance(self) -> None:
        ends = [
            follower.synced_end if follower.sent_end is not None else self._base_offset
            for follower in self._followers.values()
        ]
        ends.append(self._own_synced)
        ends.sort(reverse=True)
        end = min(self._own_synced, ends[self.quorum - 1])
        if end > self.quorum_end:
            self.quorum_end = end

    # What follows from it.

    def wants(self, member: int, log_end: int, window: int) -> int | None:
        """The offset to send from, if there is anything to send, and fewer bytes than `window` under way."""
        follower = self._followers[member]
        sent_end = follower.sent_end
        if sent_end is None or sent_end >= log_end or follower.in_flight_bytes >= window:
            return None
        return sent_end

    def is_connected(self, member: int) -> bool:
        return self._followers[member].is_connected

    def is_following(self, member: int) -> bool:
        """Connected, refuses nothing, and has said where it ends: it can be sent frames."""
        return self._followers[member].sent_end is not None

    def sent_end(self, member: int) -> int:
        """How far it was sent to; as far as it has synced, until it has said where it ends."""
        follower = self._followers[member]
        return follower.synced_end if follower.sent_end is None else follower.sent_end

    def synced_end(self, member: int) -> int:
        return self._followers[member].synced_end

    def in_flight(self, member: int) -> int:
        """How many bytes are under way to it."""
        return self._followers[member].in_flight_bytes

    def known_commit(self, member: int) -> int:
        """The commit end that it was last told, on this connection."""
        return self._followers[member].known_commit

    def refusal(self, member: int) -> Refusal:
        return self._followers[member].refusal

    @property
    def is_fenced(self) -> bool:
        """A recovery has begun, and a follower takes part in it: this leader may not go on (H4)."""
        return any(follower.refusal is Refusal.FENCED for follower in self._followers.values())
