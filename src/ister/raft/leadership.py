"""What only a leader does: take proposals and changes of the membership, confirm reads, hand its office over,
and give it up when it can't reach a quorum.
"""

from __future__ import annotations

from ister.raft.membership import (
    PROMOTION_LAG_ENTRIES,
    ChangeKind,
    MembershipChange,
    Unchangeable,
    change_membership,
)
from ister.raft.messages import (
    ENTRY_OVERHEAD_BYTES,
    NOBODY,
    Entry,
    EntryKind,
    Membership,
    TimeoutNow,
    encode_membership,
)
from ister.raft.progress import Progress
from ister.raft.ready import Accepted, ReadState, Refusal, Refused, Role
from ister.raft.replication import Replication


class Leadership(Replication):
    """Adds the leader's own acts."""

    def _become_leader(self) -> None:
        self._clear_leadership()
        self.role = Role.LEADER
        self.leader = self.id
        self.votes = {}
        self._restart_election_timer()
        uncommitted = self.log.entries_from(self.log.commit + 1, self.log.last_index + 1, 1 << 62)
        self.uncommitted_bytes = sum(entry.size for entry in uncommitted)
        # Until an entry of its own term has committed, a leader does not know what else has (5.4.2).
        self._append_own(EntryKind.NOOP, b"")
        self._adopt_membership()
        self.progress[self.id].match = self.log.persisted

    def _append_own(self, kind: EntryKind, data: bytes) -> Accepted:
        entry = Entry(self.term, self.log.last_index + 1, kind, data)
        self._append_entries((entry,))
        self.uncommitted_bytes += entry.size
        return Accepted(entry.index, self.term)

    @property
    def _committed_in_term(self) -> bool:
        return self.log.term_at(self.log.commit) == self.term

    # Proposals.

    def propose(self, data: bytes) -> Accepted | Refused:
        """Put a command into the log. Sent when the driver next asks for work, with all that came by then."""
        refusal = self._why_not(len(data))
        return self._refuse(refusal) if refusal else self._append_own(EntryKind.COMMAND, data)

    def _why_not(self, size: int) -> Refusal | None:
        if self.role is not Role.LEADER:
            return Refusal.NOT_LEADER
        if self.transferee != NOBODY:
            return Refusal.TRANSFERRING
        size += ENTRY_OVERHEAD_BYTES
        if self.uncommitted_bytes and self.uncommitted_bytes + size > self.config.max_uncommitted_bytes:
            return Refusal.TOO_MUCH_UNCOMMITTED
        return None

    def propose_membership(self, change: MembershipChange) -> Accepted | Refused:
        """Change the membership by one node. It holds from now on, here; it is certain once applied."""
        refusal = self._why_not(0) or self._why_no_change(change)
        if refusal:
            return self._refuse(refusal)
        changed = change_membership(self.membership, change)
        if isinstance(changed, Unchangeable):
            return self._refuse(Refusal[changed.name])
        accepted = self._append_own(EntryKind.MEMBERSHIP, encode_membership(changed))
        self._adopt_membership()
        return accepted

    def _why_no_change(self, change: MembershipChange) -> Refusal | None:
        if not self._committed_in_term:
            return Refusal.NOTHING_COMMITTED_YET  # R1
        if self.history.latest_index > self.log.commit:
            return Refusal.CHANGE_PENDING  # R1: one at a time
        if change.kind is ChangeKind.PROMOTE and change.node in self.membership.learners:
            lag = self.log.last_index - self.progress[change.node].match
            if lag > PROMOTION_LAG_ENTRIES:
                return Refusal.LEARNER_BEHIND  # R2
        return None

    def _adopt_membership(self) -> None:
        """Begin to replicate to whoever is new, from the newest entry on; stop for whoever is gone."""
        membership: Membership = self.membership
        members = {*membership.voters, *membership.learners, self.id}
        for node in sorted(members - self.progress.keys()):
            self.progress[node] = Progress(
                self.log.last_index, self.config.max_inflight_messages, self.config.max_inflight_bytes
            )
        for node in sorted(self.progress.keys() - members):
            del self.progress[node]
        if self.transferee not in membership.voters:
            self.transferee = NOBODY

    # Reads (thesis 6.4).

    def read_index(self, context: object) -> Refused | None:
        """Ask for the index at which a read is linearizable. None: `Ready.reads` or `Ready.aborted_reads`
        will have the context. Reads that come while a round is under way share the next one."""
        if self.role is not Role.LEADER:
            return self._refuse(Refusal.NOT_LEADER)
        if not self._committed_in_term:
            return self._refuse(Refusal.NOTHING_COMMITTED_YET)  # R1
        if len(self.waiting_reads) >= self.config.max_pending_reads:
            return self._refuse(Refusal.TOO_MANY_READS)
        self.waiting_reads.append((self.round + 1, self.log.commit, context))
        if len(self.waiting_reads) == 1:
            self._broadcast_heartbeat()
            self._confirm_reads()
        return None

    def _confirmed_round(self) -> int:
        """The newest round that a quorum has answered: this node led when it began."""
        own = self.progress.get(self.id)
        if own is not None:
            own.acked_round = self.round
        rounds = sorted(self.progress[node].acked_round for node in self.membership.voters)
        return rounds[-self.membership.quorum]

    def _confirm_reads(self) -> None:
        if not self.waiting_reads:
            return
        confirmed = self._confirmed_round()
        while self.waiting_reads and self.waiting_reads[0][0] <= confirmed:
            _, index, context = self.waiting_reads.popleft()
            self._reads_done.append(ReadState(context, index))
        if self.waiting_reads and self.waiting_reads[0][0] > self.round:
            self._broadcast_heartbeat()

    # Handing over (thesis 3.10).

    def transfer_leadership(self, to: int) -> Refused | None:
        """Make `to` the leader: bring it up to date, then let it campaign at once. Proposals are refused in
        the meantime. None: begun, and given up after an election timeout. Success shows as a new leader."""
        if self.role is not Role.LEADER:
            return self._refuse(Refusal.NOT_LEADER)
        if to == self.id:
            return self._refuse(Refusal.ALREADY_LEADER)
        if to not in self.membership.voters:
            return self._refuse(Refusal.NOT_A_VOTER)
        if self.transferee not in (NOBODY, to):
            return self._refuse(Refusal.TRANSFERRING)
        self.transferee = to
        self.transfer_elapsed = 0
        self._continue_transfer()
        return None

    def _continue_transfer(self) -> None:
        if self.transferee != NOBODY and self.progress[self.transferee].match == self.log.last_index:
            self._send(TimeoutNow(self.id, self.transferee, self.term))

    # Time.

    def _tick_leader(self) -> None:
        self.election_elapsed += 1
        self.heartbeat_elapsed += 1
        if self.transferee != NOBODY:
            self.transfer_elapsed += 1
            if self.transfer_elapsed >= self.config.election_ticks_min:
                self.transferee = NOBODY
        if self.election_elapsed >= self.config.election_ticks_min:
            self.election_elapsed = 0
            if not self._heard_from_quorum():
                self._become_follower(self.term, NOBODY)
                return
        if self.heartbeat_elapsed >= self.config.heartbeat_ticks:
            self._broadcast_heartbeat()
            self._continue_transfer()  # the word to campaign may have been lost

    def _heard_from_quorum(self) -> bool:
        """Check-quorum (6.2): a leader that can't reach one must not go on saying that it leads."""
        active = 0
        for node in self.membership.voters:
            active += node == self.id or self.progress[node].recently_active
        for progress in self.progress.values():
            progress.recently_active = False  # of learners too: one that fell silent is not to be promoted
        return active >= self.membership.quorum
