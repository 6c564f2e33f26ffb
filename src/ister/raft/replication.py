"""Copying the log: the leader's appends and what it makes of the answers, the follower's side, and commit.

Nothing here sends at once. Handlers change what the leader knows; `_flush_appends`, called when the driver
asks for work, sends what each peer may now have. So proposals that come together travel together.
"""

from __future__ import annotations

from ister.errors import MetadataContradicts
from ister.raft.messages import (
    NOBODY,
    AppendAnswer,
    AppendRequest,
    Heartbeat,
    HeartbeatAnswer,
)
from ister.raft.progress import Progress, ProgressState
from ister.raft.ready import Role
from ister.raft.snapshots import Snapshots


class Replication(Snapshots):
    """Adds the log's way from leader to followers."""

    # The leader.

    def _flush_appends(self) -> None:
        """Send each peer what it lacks, within what may be in flight to it."""
        for node, progress in self.progress.items():
            if node == self.id:
                continue
            if progress.state is ProgressState.SNAPSHOT:
                self._send_chunk(node, progress)
                continue
            while progress.may_send and (
                progress.next <= self.log.last_index or progress.state is ProgressState.PROBE
            ):
                self._send_append(node, progress)
            if (
                progress.state is ProgressState.REPLICATE
                and progress.commit_sent < self.log.commit
                and progress.may_send
            ):
                self._send_empty_append(node, progress)

    def _send_append(self, node: int, progress: Progress) -> None:
        prev_term = self.log.term_at(progress.next - 1)
        if prev_term is None:
            self._begin_snapshot(node, progress)
            return
        prev_index = progress.next - 1
        entries = self.log.entries_from(progress.next, self.log.last_index + 1, self.config.max_append_bytes)
        self._send(AppendRequest(self.id, node, self.term, prev_index, prev_term, entries, self.log.commit))
        progress.commit_sent = self.log.commit
        progress.note_sent(prev_index + len(entries), sum(entry.size for entry in entries))

    def _send_empty_append(self, node: int, progress: Progress) -> None:
        """The commit index, and a question: a peer that missed an append before this one refuses it."""
        prev_index = progress.next - 1
        prev_term = self.log.term_at(prev_index)
        if prev_term is None:
            progress.become_probe(progress.match + 1)
            return
        self._send(AppendRequest(self.id, node, self.term, prev_index, prev_term, (), self.log.commit))
        progress.commit_sent = self.log.commit

    def _on_append_answer(self, message: AppendAnswer) -> None:
        progress = self.progress.get(message.sender)
        if progress is None:
            return  # removed since, or never a member
        progress.recently_active = True
        if message.refused:
            progress.refuse(message.index, self._next_after_conflict(message))
            return
        if message.index > self.log.last_index:
            raise MetadataContradicts(
                f"a follower has {message.index} committed entries, and this node, which was elected without "
                f"it, has {self.log.last_index} in all"
            )
        if progress.accept(message.index):
            self._advance_commit()

    def _next_after_conflict(self, message: AppendAnswer) -> int:
        """Skip a whole term at a time (5.3): to where this log leaves the peer's term, or over all of it."""
        if message.hint_term:
            last = self.log.last_index_of_term(message.hint_term)
            if last is not None:
                return last + 1
        return max(1, message.hint_index)

    def _acknowledged_index(self) -> int:
        """The highest index that a quorum of voters durably holds."""
        matches = sorted(self.progress[node].match for node in self.membership.voters)
        return matches[-self.membership.quorum]

    def _may_commit(self, index: int) -> bool:
        """Only entries of this term are committed by counting; older ones come along with them (5.4.2)."""
        return self.log.term_at(index) == self.term

    def _advance_commit(self) -> None:
        index = self._acknowledged_index()
        if index <= self.log.commit or not self._may_commit(index):
            return
        start = self.log.commit + 1
        while start <= index:
            entries = self.log.entries_from(start, index + 1, self.config.max_append_bytes)
            self.uncommitted_bytes -= sum(entry.size for entry in entries)
            start += len(entries)
        self.log.commit_to(index)
        if not self.is_voter and self.history.latest_index <= index:
            # Removed, and that is now certain (thesis 4.2.2). The others learn the commit before they elect.
            self._flush_appends()
            self._become_follower(self.term, NOBODY)

    def _note_own_progress(self) -> None:
        """This leader's own disk counts like any other: when the write is durable (thesis 10.2.1)."""
        own = self.progress.get(self.id)
        if self.role is Role.LEADER and own is not None and own.match < self.log.persisted:
            own.match = self.log.persisted
            self._advance_commit()

    def _broadcast_heartbeat(self) -> None:
        self.round += 1
        self.heartbeat_elapsed = 0
        for node, progress in self.progress.items():
            if node != self.id:
                commit = min(progress.match, self.log.commit)
                self._send(Heartbeat(self.id, node, self.term, commit, self.round))

    def _on_heartbeat_answer(self, message: HeartbeatAnswer) -> None:
        progress = self.progress.get(message.sender)
        if progress is None:
            return
        progress.recently_active = True
        progress.acked_round = max(progress.acked_round, min(message.round, self.round))
        progress.probing = False
        if progress.state is ProgressState.SNAPSHOT:
            self._note_silence(progress)
        elif progress.inflight_count:
            self._send_empty_append(message.sender, progress)

    # The follower.

    def _on_append(self, message: AppendRequest) -> None:
        self._follow(message.sender)
        log = self.log
        if message.prev_index < log.commit:
            # What is committed here is the leader's too, whatever this message says of it.
            self._send(AppendAnswer(self.id, message.sender, self.term, log.commit))
            return
        if log.term_at(message.prev_index) != message.prev_term:
            hint_term, hint_index = log.conflict_hint(message.prev_index)
            self._send(
                AppendAnswer(
                    self.id, message.sender, self.term, message.prev_index, True, hint_term, hint_index
                )
            )
            return
        self._merge(message)
        last = message.prev_index + len(message.entries)
        if message.commit > log.commit:
            log.commit_to(max(log.commit, min(message.commit, last)))
        self._send(AppendAnswer(self.id, message.sender, self.term, last))

    def _merge(self, message: AppendRequest) -> None:
        """Cut only where the logs differ: an old message must not undo what a newer one brought (5.3)."""
        for place, entry in enumerate(message.entries):
            if self.log.term_at(entry.index) == entry.term:
                continue
            if entry.index <= self.log.last_index:
                self._truncate_from(entry.index)
            self._append_entries(message.entries[place:])
            return

    def _on_heartbeat(self, message: Heartbeat) -> None:
        self._follow(message.sender)
        if message.commit > self.log.last_index:
            raise MetadataContradicts(
                f"{message.commit} entries were durable here once, as the leader knows, and there are "
                f"{self.log.last_index}"
            )
        if message.commit > self.log.commit:
            self.log.commit_to(message.commit)
        self._send(HeartbeatAnswer(self.id, message.sender, self.term, message.round))
