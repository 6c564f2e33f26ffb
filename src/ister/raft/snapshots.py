"""Snapshots: sending one in chunks to a peer that is behind the log, taking one in, shortening the log.

Fault model. Chunks and answers get lost, doubled and overtaken; either side may restart in the middle. The
receiver always says which position it wants next; the sender sends that. A receiver that restarted wants
position 0 again. Another leader, or a newer snapshot, begins anew: bytes of two snapshots never mix.

A snapshot counts for nothing until all of it is there and durable; only then is it answered, as an append of
everything up to its index.
"""

from __future__ import annotations

from ister.errors import invariant
from ister.raft.membership import MembershipHistory
from ister.raft.messages import (
    AppendAnswer,
    SnapshotAnswer,
    SnapshotChunk,
    SnapshotMetadata,
)
from ister.raft.progress import Progress
from ister.raft.ready import ReceivedChunk
from ister.raft.state import RaftState
from ister.raft.storage import SnapshotHandle

SILENT_ROUNDS_MAX = 2
"""Answered heartbeats without an answer to a chunk, after which it is sent again."""


class Snapshots(RaftState):
    """Adds snapshots to the state."""

    # The sender.

    def _begin_snapshot(self, node: int, progress: Progress) -> None:
        if self.snapshot is None or self.snapshot.metadata.index < self.log.base_index:
            # One was installed here a moment ago and the driver has not handed its bytes back yet.
            progress.become_probe(progress.next)
            progress.probing = True
            return
        progress.become_snapshot(self.snapshot)
        self._send_chunk(node, progress)

    def _send_chunk(self, node: int, progress: Progress) -> None:
        transfer = progress.transfer
        if transfer is None or transfer.waiting:
            return
        handle, position = transfer.handle, transfer.position
        data = handle.read(position, min(self.config.snapshot_chunk_bytes, handle.size - position))
        done = position + len(data) == handle.size
        invariant(done or data, f"no bytes at {position} of a snapshot of {handle.size}")
        transfer.waiting = True
        self._send(SnapshotChunk(self.id, node, self.term, handle.metadata, position, data, done))

    def _on_snapshot_answer(self, message: SnapshotAnswer) -> None:
        progress = self.progress.get(message.sender)
        transfer = progress.transfer if progress else None
        if progress is None or transfer is None or transfer.handle.metadata.index != message.index:
            return
        progress.recently_active = True
        # Only news moves the transfer: an answer that was doubled on its way would double all that follows.
        # After a silence any answer is news: the peer may have restarted, and want the beginning again.
        if message.position > transfer.position or transfer.silent_rounds:
            transfer.position = max(0, min(message.position, transfer.handle.size))
            transfer.waiting = False
            transfer.silent_rounds = 0

    def _note_silence(self, progress: Progress) -> None:
        """The peer is alive, since it answers heartbeats; is the transfer?"""
        transfer = progress.transfer
        if transfer is not None and transfer.waiting:
            transfer.silent_rounds += 1
            transfer.waiting = transfer.silent_rounds % SILENT_ROUNDS_MAX != 0

    # The receiver.

    def _on_snapshot_chunk(self, message: SnapshotChunk) -> None:
        self._follow(message.sender)
        metadata = message.metadata
        if metadata.index <= self.log.commit or self.log.term_at(metadata.index) == metadata.term:
            # Everything that the snapshot holds is in this log already.
            if metadata.index > self.log.commit:
                self.log.commit_to(metadata.index)
            self._send(AppendAnswer(self.id, message.sender, self.term, metadata.index))
            return
        transfer = (metadata, message.sender, message.term)
        wanted = self.incoming_position if self.incoming == transfer else 0
        if message.position == wanted:
            self._chunks.append(ReceivedChunk(metadata, wanted, message.data))
            wanted += len(message.data)
            if message.done:
                self._restore(metadata)
                self._send(AppendAnswer(self.id, message.sender, self.term, metadata.index))
                return
            self.incoming, self.incoming_position = transfer, wanted
        self._send(SnapshotAnswer(self.id, message.sender, self.term, metadata.index, wanted))

    def _restore(self, metadata: SnapshotMetadata) -> None:
        self.incoming = None
        self.log.restore(metadata.index, metadata.term)
        self.history = MembershipHistory(metadata.index, metadata.membership)
        self._restored = metadata

    # The driver's side.

    def describe_snapshot(self, index: int) -> SnapshotMetadata:
        """What a snapshot of the state machine as it is after applying `index` has to carry."""
        invariant(
            self.log.base_index <= index <= self.applied_index,
            f"no snapshot at {index}: first is {self.log.first_index}, applied is {self.applied_index}",
        )
        term = self.log.term_at(index)
        invariant(term is not None, f"the log has no entry {index}")
        return SnapshotMetadata(index, term or 0, self.history.at(index))

    def snapshot_saved(self, handle: SnapshotHandle) -> None:
        """A snapshot is durable: one that this node took, or one that it was told to install. Peers that are
        behind the log get the newest."""
        if self.snapshot is None or handle.metadata.index > self.snapshot.metadata.index:
            self.snapshot = handle

    def compact(self, index: int) -> None:
        """Forget entries up to `index`, at most those that the newest durable snapshot holds. Keeping some
        more spares peers that are a little behind a whole snapshot."""
        covered = self.snapshot.metadata.index if self.snapshot else 0
        invariant(index <= covered, f"compacting up to {index}, but the newest snapshot is at {covered}")
        invariant(index <= self.applied_index, f"compacting {index}, but applied is {self.applied_index}")
        self.log.compact(index)
        self.history.compact(index)
