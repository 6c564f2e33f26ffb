"""What a leader knows about one peer's log, and how fast it may send to it.

Three states. A peer starts as PROBE: one append at a time until the place where the logs agree is found. Then
it is REPLICATE: appends follow each other without waiting, within a bound on messages and bytes. A peer that
needs entries which are compacted away is SNAPSHOT until it has installed one, chunk by chunk.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

from ister.raft.storage import SnapshotHandle


class ProgressState(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


@dataclass(slots=True)
class SnapshotTransfer:
    """A snapshot on its way to a peer; one chunk at a time."""

    handle: SnapshotHandle
    position: int = 0
    waiting: bool = False
    """A chunk is out and not answered."""
    silent_rounds: int = 0
    """Heartbeats that the peer has answered since then; some mean that the chunk or its answer was lost."""


class Progress:
    """One peer, or the leader itself."""

    __slots__ = (
        "_inflight",
        "_inflight_bytes",
        "_max_bytes",
        "_max_messages",
        "acked_round",
        "commit_sent",
        "match",
        "next",
        "probing",
        "recently_active",
        "state",
        "transfer",
    )

    def __init__(self, next_index: int, max_messages: int, max_bytes: int) -> None:
        self.state = ProgressState.PROBE
        self.match = 0
        """The peer durably holds the leader's log up to here."""
        self.next = next_index
        """The first entry to send next. Past `match`, it is an assumption."""
        self.probing = False
        """PROBE: an append is out; wait for its answer, or for the next heartbeat's."""
        self.commit_sent = 0
        self.acked_round = 0
        self.recently_active = True
        """Heard from since the last check of the quorum. New peers get the benefit of the doubt."""
        self.transfer: SnapshotTransfer | None = None
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._inflight: deque[tuple[int, int]] = deque()
        self._inflight_bytes = 0

    @property
    def inflight_count(self) -> int:
        return len(self._inflight)

    @property
    def may_send(self) -> bool:
        if self.state is ProgressState.PROBE:
            return not self.probing
        return (
            self.state is ProgressState.REPLICATE
            and len(self._inflight) < self._max_messages
            and self._inflight_bytes < self._max_bytes
        )

    def note_sent(self, last_index: int, size: int) -> None:
        """Entries up to `last_index` are on their way."""
        if self.state is ProgressState.PROBE:
            self.probing = True
            return
        self._inflight.append((last_index, size))
        self._inflight_bytes += size
        self.next = last_index + 1

    def accept(self, index: int) -> bool:
        """The peer holds everything up to `index`. False if that is no news."""
        while self._inflight and self._inflight[0][0] <= index:
            self._inflight_bytes -= self._inflight.popleft()[1]
        advanced = index > self.match
        self.match = max(self.match, index)
        self.next = max(self.next, self.match + 1)
        found = self.state is ProgressState.PROBE and index == self.match
        installed = self.transfer is not None and self.match >= self.transfer.handle.metadata.index
        if found or installed:
            self.become_replicate()
        return advanced

    def refuse(self, index: int, next_index: int) -> bool:
        """The peer does not have the entry at `index`. False if the answer is old, overtaken by others."""
        if self.state is ProgressState.REPLICATE:
            if index <= self.match:
                return False
            # The peer missed a message. What it has acknowledged, it has: no search is needed.
            self.become_probe(self.match + 1)
            return True
        if self.state is ProgressState.SNAPSHOT or index != self.next - 1:
            return False
        self.become_probe(max(self.match + 1, min(next_index, index)))
        return True

    def become_probe(self, next_index: int) -> None:
        self._leave(ProgressState.PROBE)
        self.next = next_index

    def become_replicate(self) -> None:
        self._leave(ProgressState.REPLICATE)
        self.next = self.match + 1

    def become_snapshot(self, handle: SnapshotHandle) -> None:
        self._leave(ProgressState.SNAPSHOT)
        self.transfer = SnapshotTransfer(handle)

    def _leave(self, state: ProgressState) -> None:
        self.state = state
        self.probing = False
        self.transfer = None
        self._inflight.clear()
        self._inflight_bytes = 0
