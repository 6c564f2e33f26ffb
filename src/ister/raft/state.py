"""The state of one Raft node, and the few moves that every part of the core shares.

The layers above add one concern each and call only downwards: `snapshots`, `replication`, `leadership`,
`election`, and `core`, which is what a driver sees.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from random import Random

from ister.errors import invariant
from ister.raft.config import RaftConfig
from ister.raft.log import RaftLog
from ister.raft.membership import MembershipHistory
from ister.raft.messages import (
    NOBODY,
    AnyMessage,
    AppendAnswer,
    AppendRequest,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatAnswer,
    Membership,
    PreVoteAnswer,
    PreVoteRequest,
    SnapshotChunk,
    SnapshotMetadata,
    TimeoutNow,
    VoteAnswer,
    decode_membership,
)
from ister.raft.progress import Progress
from ister.raft.ready import ReadState, ReceivedChunk, Refusal, Refused, Role
from ister.raft.storage import HardState, SnapshotHandle, StoredState, entries_after

# A leader's term was durable before it won its election, and a pre-vote promises nothing: these depend on no
# write that could still be under way.
_NEVER_WAIT = (AppendRequest, Heartbeat, SnapshotChunk, TimeoutNow, PreVoteRequest)


class RaftState:
    """Fields, the outbox, and stepping down."""

    def __init__(self, config: RaftConfig, stored: StoredState, random: Random) -> None:
        self.config = config
        self.id = config.node_id
        self.random = random
        self.snapshot: SnapshotHandle | None = stored.snapshot
        self.log, self.history = _recover(stored)
        self.term = max(stored.hard_state.term, self.log.last_term)
        self.vote = stored.hard_state.vote if self.term == stored.hard_state.term else NOBODY
        self.role = Role.FOLLOWER
        self.leader = NOBODY
        self.applied_index = self.log.base_index
        self.durable = stored.hard_state
        """The newest hard state known to be on disk."""
        self.election_elapsed = 0
        self.election_timeout = 0
        self.votes: dict[int, bool] = {}
        self.incoming: tuple[SnapshotMetadata, int, int] | None = None
        """A snapshot on its way in: metadata, sender, the sender's term. One leader's bytes never mix with
        another's."""
        self.incoming_position = 0
        self._now: list[AnyMessage] = []
        self._after: list[AnyMessage] = []
        self._chunks: list[ReceivedChunk] = []
        self._restored: SnapshotMetadata | None = None
        self._reads_done: list[ReadState] = []
        self._reads_aborted: list[object] = []
        self._clear_leadership()
        self._restart_election_timer()

    def _clear_leadership(self) -> None:
        self.progress: dict[int, Progress] = {}
        self.heartbeat_elapsed = 0
        self.round = 0
        self.uncommitted_bytes = 0
        self.transferee = NOBODY
        self.transfer_elapsed = 0
        self.waiting_reads: deque[tuple[int, int, object]] = deque()
        """(round that must be confirmed, index to read at, context)."""

    @property
    def membership(self) -> Membership:
        return self.history.latest

    @property
    def is_voter(self) -> bool:
        return self.id in self.history.latest.voters

    @property
    def others(self) -> Iterable[int]:
        """The voters besides this node."""
        return (node for node in self.history.latest.voters if node != self.id)

    @property
    def hard_state(self) -> HardState:
        return HardState(self.term, self.vote, self.log.appliable)

    def _refuse(self, reason: Refusal) -> Refused:
        return Refused(reason, self.leader)

    def _send(self, message: AnyMessage) -> None:
        """Queue a message, where it must wait for a write behind that write (R1)."""
        if isinstance(message, _NEVER_WAIT) or (
            self.durable.term == self.term and _promises_nothing(message)
        ):
            self._now.append(message)
        else:
            self._after.append(message)

    def _restart_election_timer(self) -> None:
        self.election_elapsed = 0
        self.election_timeout = self.random.randint(
            self.config.election_ticks_min, self.config.election_ticks_max
        )

    def _enter_term(self, term: int) -> None:
        invariant(term >= self.term, f"the term can't go back from {self.term} to {term}")
        if term > self.term:
            self.term = term
            self.vote = NOBODY

    def _become_follower(self, term: int, leader: int) -> None:
        self._enter_term(term)
        self.role = Role.FOLLOWER
        self.leader = leader
        self.votes = {}
        self._reads_aborted.extend(context for _, _, context in self.waiting_reads)
        self._clear_leadership()
        self._restart_election_timer()

    def _follow(self, leader: int) -> None:
        """A message that only the leader of this term can have sent."""
        if self.role is Role.FOLLOWER and self.leader == leader:
            self.election_elapsed = 0
            return
        invariant(self.role is not Role.LEADER, f"nodes {self.id} and {leader} both lead term {self.term}")
        invariant(
            self.leader in (NOBODY, leader), f"nodes {self.leader} and {leader} both lead term {self.term}"
        )
        self._become_follower(self.term, leader)

    def _append_entries(self, entries: Iterable[Entry]) -> None:
        """Add to the log; a membership holds from here on, committed or not (thesis 4.1)."""
        added = tuple(entries)
        memberships = [
            (entry.index, decode_membership(entry.data))
            for entry in added
            if entry.kind is EntryKind.MEMBERSHIP
        ]
        self.log.append(added)
        for index, membership in memberships:
            self.history.add(index, membership)

    def _truncate_from(self, index: int) -> None:
        invariant(self.role is not Role.LEADER, f"the leader of term {self.term} cuts its own log at {index}")
        self.log.truncate_from(index)
        self.history.truncate_from(index)


def _promises_nothing(message: AnyMessage) -> bool:
    """An answer that would be as true after a crash that lost every write under way."""
    match message:
        case HeartbeatAnswer() | PreVoteAnswer() | AppendAnswer(refused=True) | VoteAnswer(granted=False):
            return True
        case _:
            return False


def _recover(stored: StoredState) -> tuple[RaftLog, MembershipHistory]:
    base = stored.snapshot.metadata if stored.snapshot else SnapshotMetadata(0, 0, Membership())
    entries = entries_after(base, stored.entries)
    log = RaftLog(base.index, base.term, entries, stored.hard_state.commit)
    history = MembershipHistory(base.index, base.membership)
    for entry in entries:
        if entry.kind is EntryKind.MEMBERSHIP:
            history.add(entry.index, decode_membership(entry.data))
    return log, history
