"""Raft with one bug each: what the random runs and the directed schedules must find."""

from __future__ import annotations

from random import Random

import msgspec

from ister.raft import (
    AnyMessage,
    AppendAnswer,
    AppendRequest,
    MembershipChange,
    RaftConfig,
    RaftCore,
    ReadState,
    Refusal,
    Refused,
    Role,
    StoredState,
)
from ister.raft.log import RaftLog


class CommitsAnOldTerm(RaftCore):
    """Counts copies of entries of earlier terms (5.4.2, figure 8)."""

    def _may_commit(self, index: int) -> bool:
        return True


class CountsStaleAcks(RaftCore):
    """Takes an acknowledgement of an earlier term for one of this."""

    def step(self, message: AnyMessage) -> None:
        if isinstance(message, AppendAnswer) and message.term < self.term and not message.refused:
            if message.index > self.log.last_index:
                return
            message = msgspec.structs.replace(message, term=self.term)
        super().step(message)


class AlwaysTruncates(RaftCore):
    """Cuts the log after prev_index, whether or not the entries differ (5.3)."""

    def _merge(self, message: AppendRequest) -> None:
        if message.prev_index < self.log.last_index:
            self._truncate_from(message.prev_index + 1)
        self._append_entries(message.entries)


class CommitsWithHalf(RaftCore):
    """Half of the voters instead of more than half."""

    def _acknowledged_index(self) -> int:
        matches = sorted(self.progress[node].match for node in self.membership.voters)
        return matches[-max(1, len(matches) // 2)]


class ElectsWithHalf(RaftCore):
    def _count_votes(self) -> None:
        granted = sum(self.votes.get(node, False) for node in self.membership.voters)
        if granted >= max(1, len(self.membership.voters) // 2):
            if self.role is Role.PRE_CANDIDATE:
                self._ask_in_earnest(by_transfer=False)
            elif self.role is Role.CANDIDATE:
                self._become_leader()


class KeepsOldVotes(RaftCore):
    """Does not forget the answers to an earlier campaign, or to the pre-vote, when it asks in earnest."""

    def _ask_in_earnest(self, by_transfer: bool) -> None:
        votes = self.votes
        super()._ask_in_earnest(by_transfer)
        self.votes = votes


class CountsLearners(RaftCore):
    """Learners acknowledge too, and are counted."""

    def _acknowledged_index(self) -> int:
        members = self.membership.voters + self.membership.learners
        return sorted(self.progress[node].match for node in members)[-self.membership.quorum]


class CountsItsOwnUnsyncedWrite(RaftCore):
    """The leader takes its own copy for durable when it is handed out (10.2.1)."""

    def _acknowledged_index(self) -> int:
        self.progress[self.id].match = self.log.last_index
        return super()._acknowledged_index()


class _AnybodyIsUpToDate(RaftLog):
    __slots__ = ()

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        return True


class VotesForAnybody(RaftCore):
    """No election restriction (5.4.1)."""

    def __init__(self, config: RaftConfig, stored: StoredState, random: Random) -> None:
        super().__init__(config, stored, random)
        self.log.__class__ = _AnybodyIsUpToDate


class ReadsWithoutAsking(RaftCore):
    """Answers a read from its own commit index, without a round of heartbeats (6.4)."""

    def read_index(self, context: object) -> Refused | None:
        if self.role is not Role.LEADER:
            return self._refuse(Refusal.NOT_LEADER)
        self._reads_done.append(ReadState(context, self.log.commit))
        return None


class ReadsTooEarly(RaftCore):
    """Takes reads before an entry of its term has committed (R1)."""

    @property
    def _committed_in_term(self) -> bool:
        return True


class ChangesTwoAtOnce(RaftCore):
    """Does not wait for the change before (R1)."""

    def _why_no_change(self, change: MembershipChange) -> Refusal | None:
        return None


class KeepsACutMembership(RaftCore):
    """A membership stays in force although its entry was cut off (thesis 4.1)."""

    def _truncate_from(self, index: int) -> None:
        latest = self.history.latest
        super()._truncate_from(index)
        self.history.latest = latest
