"""Raft's five properties (figure 3 of the paper), and two more, watched from outside after every step.

The checker sees every entry that any node writes, every change of a commit index, every leader and every
entry applied. It keeps what was ever true of the cluster as a whole and compares.
"""

from __future__ import annotations

from collections.abc import Iterable

from ister.raft import Entry, RaftCore, Role
from tests.raft.memory_storage import MemoryStorage


class PropertyBroken(AssertionError):
    """The name of the property, and the values that break it."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise PropertyBroken(what)


class Properties:
    """The memory of one cluster's whole life."""

    def __init__(self) -> None:
        self.leaders: dict[int, int] = {}
        self.entries: dict[tuple[int, int], tuple[int, bytes]] = {}
        self.committed: dict[int, int] = {}
        self.committed_to = 0
        self.digests: dict[int, int] = {0: 0}
        self._seen: dict[int, tuple[int, int]] = {}
        """node -> (term in which it led when last seen, its last index then)."""
        self._commits: dict[int, int] = {}

    def forget(self, node: int) -> None:
        """It crashed: what it had not written is gone, and its commit index may start lower."""
        self._seen.pop(node, None)
        self._commits.pop(node, None)

    def check_written(self, core: RaftCore, entries: Iterable[Entry]) -> None:
        """Log matching: the same (index, term) means the same entry, and the same one before it."""
        for entry in entries:
            before = core.log.term_at(entry.index - 1)
            if before is None:
                continue  # compacted since
            known = self.entries.setdefault((entry.index, entry.term), (before, entry.data))
            require(
                known == (before, entry.data),
                f"log matching: {entry.index}@{entry.term} at {core.id}: {(before, entry.data)}, not {known}",
            )

    def check_node(self, core: RaftCore, disks: dict[int, MemoryStorage]) -> None:
        """After anything that happened to this node."""
        if core.role is Role.LEADER:
            self._check_leader(core)
        else:
            self._seen.pop(core.id, None)
        if core.log.commit != self._commits.get(core.id, -1):
            self._check_commit(core, disks)

    def _check_leader(self, core: RaftCore) -> None:
        known = self.leaders.setdefault(core.term, core.id)
        require(known == core.id, f"election safety: {known} and {core.id} lead term {core.term}")
        term, last_index = self._seen.get(core.id, (0, 0))
        if term == core.term:
            require(
                core.log.last_index >= last_index,
                f"leader append-only: {core.id} had {last_index} entries, has {core.log.last_index}",
            )
        else:
            self._check_completeness(core)
        self._seen[core.id] = (core.term, core.log.last_index)

    def _check_completeness(self, core: RaftCore) -> None:
        for index in range(core.log.base_index + 1, self.committed_to + 1):
            require(
                core.log.term_at(index) == self.committed[index],
                f"leader completeness: {core.id} leads term {core.term} with {core.log.term_at(index)} at "
                f"{index}, committed is {self.committed[index]}",
            )

    def _check_commit(self, core: RaftCore, disks: dict[int, MemoryStorage]) -> None:
        before = max(self._commits.get(core.id, 0), core.log.base_index)
        require(core.log.commit >= before, f"{core.id}: the commit index went back from {before}")
        for index in range(before + 1, core.log.commit + 1):
            term = core.log.term_at(index)
            assert term is not None
            known = self.committed.setdefault(index, term)
            require(known == term, f"commit: {core.id} has {term} at {index}, committed was {known}")
        self._commits[core.id] = core.log.commit
        if core.log.commit > self.committed_to:
            self.committed_to = core.log.commit
            self._check_durable(core, disks)

    def _check_durable(self, core: RaftCore, disks: dict[int, MemoryStorage]) -> None:
        """PROTOCOL, invariant 1, for Raft: what is committed is on a quorum's disks, seen from outside."""
        index, term = core.log.commit, self.committed[core.log.commit]
        voters = core.history.at(core.log.last_index).voters
        holders = [node for node in voters if disks[node].holds(index, term)]
        require(
            len(holders) > len(voters) // 2,
            f"durability: {core.id} committed {index}@{term}, durable on {holders} of {voters}",
        )

    def check_applied(self, node: int, entry: Entry, digest: int) -> None:
        """State machine safety: every node has the same state after the same index."""
        known = self.digests.setdefault(entry.index, digest)
        require(known == digest, f"state machine safety: {node} differs after applying {entry.index}")

    def check_restored(self, node: int, index: int, digest: int) -> None:
        require(
            self.digests.get(index) == digest,
            f"state machine safety: {node} restored another state at {index}",
        )

    def check_read(self, node: int, index: int, committed_at_start: int) -> None:
        """Linearizable reads (6.4): a read sees what had committed anywhere before it began."""
        require(
            index >= committed_at_start,
            f"read: {node} reads at {index}, but {committed_at_start} had committed before it asked",
        )
