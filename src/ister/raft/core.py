"""`RaftCore`: the whole state machine, as its driver sees it. The package's docstring is its manual."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from ister.errors import invariant
from ister.raft.config import RaftConfig
from ister.raft.election import Elections
from ister.raft.messages import (
    NOBODY,
    AnyMessage,
    AppendAnswer,
    AppendRequest,
    Heartbeat,
    HeartbeatAnswer,
    Membership,
    PreVoteAnswer,
    PreVoteRequest,
    SnapshotAnswer,
    SnapshotChunk,
    TimeoutNow,
    VoteAnswer,
    VoteRequest,
)
from ister.raft.progress import ProgressState
from ister.raft.ready import Ready, Role, SoftState
from ister.raft.storage import HardState, StoredState

_FROM_LEADER = (AppendRequest, Heartbeat, SnapshotChunk)
_TO_LEADER = (AppendAnswer, HeartbeatAnswer, SnapshotAnswer)


@dataclass(frozen=True, slots=True)
class PeerStatus:
    node: int
    state: ProgressState
    match: int
    next: int
    recently_active: bool


@dataclass(frozen=True, slots=True)
class RaftStatus:
    """A view for people and metrics."""

    node_id: int
    role: Role
    term: int
    leader: int
    commit: int
    applied: int
    last_index: int
    first_index: int
    snapshot_index: int
    membership: Membership
    transferee: int
    peers: tuple[PeerStatus, ...]
    """On a leader."""
    snapshot_term: int = 0


class RaftCore(Elections):
    """One node. Not thread-safe; every call returns at once."""

    def __init__(self, config: RaftConfig, stored: StoredState, random: Random) -> None:
        super().__init__(config, stored, random)
        self._number = 0
        self._persisted_number = 0
        self._outstanding: deque[tuple[int, HardState]] = deque()
        self._hard_state_out = stored.hard_state
        self._soft_state_out = SoftState(Role.FOLLOWER, NOBODY, self.term)
        self._handlers: dict[type, Callable[[Any], None]] = {
            PreVoteRequest: self._on_pre_vote_request,
            PreVoteAnswer: self._on_pre_vote_answer,
            VoteRequest: self._on_vote_request,
            VoteAnswer: self._on_vote_answer,
            AppendRequest: self._on_append,
            AppendAnswer: self._on_append_answer,
            Heartbeat: self._on_heartbeat,
            HeartbeatAnswer: self._on_heartbeat_answer,
            SnapshotChunk: self._on_snapshot_chunk,
            SnapshotAnswer: self._on_snapshot_answer,
            TimeoutNow: self._on_timeout_now,
        }

    # What happens to a node.

    def tick(self) -> None:
        """One tick of time has passed."""
        if self.role is Role.LEADER:
            self._tick_leader()
        else:
            self._tick_follower()

    def step(self, message: AnyMessage) -> None:
        """A message arrived. Any message, in any order, any number of times."""
        if message.to != self.id or message.sender == self.id:
            return
        if message.term != self.term and not self._settle_term(message):
            return
        if isinstance(message, _TO_LEADER):
            if self.role is not Role.LEADER:
                return
            self._handlers[type(message)](message)
            if self.role is Role.LEADER:
                self._confirm_reads()
                if isinstance(message, AppendAnswer) and message.sender == self.transferee:
                    self._continue_transfer()
            return
        self._handlers[type(message)](message)

    def _settle_term(self, message: AnyMessage) -> bool:
        """Bring the terms together (5.1). False: the message has nothing more to say."""
        if message.term < self.term:
            self._answer_stale(message)
            return False
        match message:
            case PreVoteRequest() | PreVoteAnswer(granted=True):
                return True  # about a term that nobody has entered yet
            case VoteRequest(by_transfer=False) if self._hears_a_leader():
                return False  # a working leader is not deposed by a candidate that can't hear it (4.2.3)
        leader = message.sender if isinstance(message, _FROM_LEADER) else NOBODY
        self._become_follower(message.term, leader)
        return True

    def _answer_stale(self, message: AnyMessage) -> None:
        """Tell somebody of an older term which one it is, where that helps; old answers are just old."""
        match message:
            case PreVoteRequest():
                self._send(PreVoteAnswer(self.id, message.sender, self.term, False))
            case VoteRequest():
                self._send(VoteAnswer(self.id, message.sender, self.term, False))
            case AppendRequest() | Heartbeat() | SnapshotChunk():
                self._send(HeartbeatAnswer(self.id, message.sender, self.term, 0))
            case _:
                pass

    # What the driver does about it.

    def ready(self) -> Ready | None:
        """The work that has come up since the last call; None if there is none.

        May be called again before the last one is durable: writes are pipelined, and acknowledged in order.
        """
        if self.role is Role.LEADER:
            self._flush_appends()
        soft_state = SoftState(self.role, self.leader, self.term)
        if not self._has_work(soft_state):
            return None
        self._number += 1
        number = self._number
        hard_state = self.hard_state
        must_sync = (
            self.log.has_unwritten
            or self._restored is not None
            or (hard_state.term, hard_state.vote) != (self._hard_state_out.term, self._hard_state_out.vote)
        )
        ready = Ready(
            number=number,
            soft_state=soft_state if soft_state != self._soft_state_out else None,
            aborted_reads=tuple(self._reads_aborted),
            reads=tuple(self._reads_done),
            messages=tuple(self._now),
            chunks=tuple(self._chunks),
            snapshot=self._restored,
            entries=self.log.hand_to_write(number),
            hard_state=hard_state if hard_state != self._hard_state_out else None,
            must_sync=must_sync,
            messages_after=tuple(self._after),
            committed=self.log.hand_to_apply(self.config.max_append_bytes),
        )
        self._outstanding.append((number, hard_state))
        self._hard_state_out = hard_state
        self._soft_state_out = soft_state
        self._restored = None
        for queue in (self._now, self._after, self._chunks, self._reads_done, self._reads_aborted):
            queue.clear()
        return ready

    def _has_work(self, soft_state: SoftState) -> bool:
        """A commit index alone is no reason to write: it comes along with whatever is next."""
        out = self._hard_state_out
        return bool(
            self._now
            or self._after
            or self.log.has_unwritten
            or self.log.appliable > self.log.handed_to_apply
            or (self.term, self.vote) != (out.term, out.vote)
            or soft_state != self._soft_state_out
            or self._reads_done
            or self._reads_aborted
            or self._chunks
            or self._restored
        )

    def persisted(self, number: int) -> None:
        """Everything of Ready `number`, and of all before it, is durable."""
        invariant(
            self._persisted_number < number <= self._number,
            f"Ready {number} reported durable after {self._persisted_number}, of {self._number} handed out",
        )
        self._persisted_number = number
        while self._outstanding and self._outstanding[0][0] <= number:
            self.durable = self._outstanding.popleft()[1]
        self.log.acknowledge_write(number)
        self._count_own_vote()
        self._note_own_progress()

    def applied(self, index: int) -> None:
        """The state machine has everything up to `index`: entries handed out, or a restored snapshot."""
        invariant(
            self.applied_index <= index <= self.log.handed_to_apply,
            f"applied {index} after {self.applied_index}; handed out is {self.log.handed_to_apply}",
        )
        self.applied_index = index

    def status(self) -> RaftStatus:
        return RaftStatus(
            node_id=self.id,
            role=self.role,
            term=self.term,
            leader=self.leader,
            commit=self.log.commit,
            applied=self.applied_index,
            last_index=self.log.last_index,
            first_index=self.log.first_index,
            snapshot_index=self.snapshot.metadata.index if self.snapshot else 0,
            membership=self.membership,
            transferee=self.transferee,
            peers=tuple(
                PeerStatus(node, peer.state, peer.match, peer.next, peer.recently_active)
                for node, peer in sorted(self.progress.items())
                if node != self.id
            ),
            snapshot_term=self.snapshot.metadata.term if self.snapshot else 0,
        )
