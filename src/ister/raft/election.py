"""Elections: asking first (pre-vote), asking in earnest, and who gets a vote.

A node that heard from a leader within the shortest election timeout grants nobody anything (4.2.3): a node
that was cut off and comes back, or was removed and does not know it, can't depose a leader that works. The
one exception is an election that the leader itself asked for.

A candidate's own vote is a write like any other: it counts when it is durable (R1).
"""

from __future__ import annotations

from ister.raft.leadership import Leadership
from ister.raft.messages import (
    NOBODY,
    PreVoteAnswer,
    PreVoteRequest,
    TimeoutNow,
    VoteAnswer,
    VoteRequest,
)
from ister.raft.ready import Role


class Elections(Leadership):
    """Adds becoming a leader."""

    def campaign(self) -> None:
        """Try to become the leader, as if the election timeout had passed."""
        if self.role is not Role.LEADER and self.is_voter:
            self._ask_first()

    def _tick_follower(self) -> None:
        self.election_elapsed += 1
        if self.election_elapsed >= self.election_timeout and self.is_voter:
            self._ask_first()

    def _ask_first(self) -> None:
        """Pre-vote (9.6): find out whether an election could be won before disturbing anybody's term."""
        self.role = Role.PRE_CANDIDATE
        self.leader = NOBODY
        self._restart_election_timer()
        self.votes = {self.id: True}
        for node in self.others:
            self._send(PreVoteRequest(self.id, node, self.term + 1, self.log.last_index, self.log.last_term))
        self._count_votes()

    def _ask_in_earnest(self, by_transfer: bool) -> None:
        self._enter_term(self.term + 1)
        self.vote = self.id
        self.role = Role.CANDIDATE
        self.leader = NOBODY
        self._restart_election_timer()
        self.votes = {}
        for node in self.others:
            self._send(
                VoteRequest(self.id, node, self.term, self.log.last_index, self.log.last_term, by_transfer)
            )

    def _count_own_vote(self) -> None:
        """Called when a write became durable."""
        if (
            self.role is Role.CANDIDATE
            and self.id not in self.votes
            and (self.durable.term, self.durable.vote) == (self.term, self.id)
        ):
            self.votes[self.id] = True
            self._count_votes()

    def _count_votes(self) -> None:
        answers = [self.votes[node] for node in self.membership.voters if node in self.votes]
        quorum = self.membership.quorum
        if sum(answers) >= quorum:
            if self.role is Role.PRE_CANDIDATE:
                self._ask_in_earnest(by_transfer=False)
            else:
                self._become_leader()
        elif len(answers) - sum(answers) > len(self.membership.voters) - quorum:
            self._become_follower(self.term, NOBODY)

    def _hears_a_leader(self) -> bool:
        return self.leader != NOBODY and self.election_elapsed < self.config.election_ticks_min

    def _on_pre_vote_request(self, message: PreVoteRequest) -> None:
        if message.term > self.term and self._hears_a_leader():
            return  # no answer at all: to somebody who is behind, our term would be news that stirs it up
        granted = message.term > self.term and self.log.is_up_to_date(message.last_index, message.last_term)
        term = message.term if granted else self.term
        self._send(PreVoteAnswer(self.id, message.sender, term, granted))

    def _on_vote_request(self, message: VoteRequest) -> None:
        """Of this term: a higher one has been entered by now, a lower one been refused."""
        free = self.vote == message.sender or (self.vote == NOBODY and self.leader == NOBODY)
        granted = free and self.log.is_up_to_date(message.last_index, message.last_term)  # 5.4.1
        if granted:
            self.vote = message.sender
            self.election_elapsed = 0
        self._send(VoteAnswer(self.id, message.sender, self.term, granted))

    def _on_pre_vote_answer(self, message: PreVoteAnswer) -> None:
        if self.role is not Role.PRE_CANDIDATE or (message.granted and message.term != self.term + 1):
            return
        self.votes.setdefault(message.sender, message.granted)
        self._count_votes()

    def _on_vote_answer(self, message: VoteAnswer) -> None:
        if self.role is not Role.CANDIDATE:
            return
        self.votes.setdefault(message.sender, message.granted)
        self._count_votes()

    def _on_timeout_now(self, message: TimeoutNow) -> None:
        """The leader hands over: no pre-vote, and others need not wait for it to fall silent (3.10)."""
        if self.is_voter and self.role is not Role.LEADER and self.leader == message.sender:
            self._ask_in_earnest(by_transfer=True)
