"""What Raft needs from a disk: the state it starts from, and the contract of whoever keeps it.

Fault model. The process may stop between any two calls; the disk then keeps what was synced, and of what was
not, any prefix in the order of the calls. A sync may fail: then the node stops (P1), for nobody knows what is
there. A disk that is replaced or wiped is a new node to Raft (I2): `RaftCore` believes all it is given.

The promises a durable log makes, and the core leans on:
- What `append` and `install_snapshot` were given before a `sync` that returned is in every later `load`.
- Writes take effect in the order of the calls. `entries` replace everything from the first one's index on.
- One call is never seen in part: either its hard state and entries are there, or a shorter prefix of the
  entries with the hard state before it. A hard state never survives entries that were written before it.
- `load` has synced what it returns (P2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ister.errors import invariant
from ister.raft.messages import (
    NOBODY,
    Entry,
    EntryKind,
    Membership,
    SnapshotMetadata,
    encode_membership,
)


class HardState(msgspec.Struct, frozen=True, array_like=True):
    """What a node must not forget. Term and vote are safety; the commit index spares a wait at a start."""

    term: int = 0
    vote: int = NOBODY
    commit: int = 0
    """Never past what is durable in this node's own log."""


class SnapshotHandle(Protocol):
    """A durable snapshot that can be read. Stays readable for as long as somebody holds the handle."""

    @property
    def metadata(self) -> SnapshotMetadata: ...

    @property
    def size(self) -> int:
        """Of all its bytes; never changes."""
        ...

    def read(self, position: int, count: int) -> bytes:
        """Exactly `count` bytes, fewer only at the end. Must not fail on what was once durable; an exception
        from here leaves the core through the call that needed the bytes, and the driver stops the node."""
        ...


@dataclass(frozen=True, slots=True)
class StoredState:
    """What a node finds when it starts."""

    hard_state: HardState
    entries: Sequence[Entry] = ()
    """Contiguous, and going on from the snapshot: see `entries_after`."""
    snapshot: SnapshotHandle | None = None


class Storage(Protocol):
    """The durable log, as the driver uses it. The core itself never calls this: it does no I/O.

    Only `sync` may take long; the driver calls it in a worker thread, while further `append`s are queued for
    the sync after it. Every error is final for the node (P1).
    """

    def load(self) -> StoredState:
        """Called once, before anything else. If the process stopped between putting a snapshot in place and
        cutting the log, the log still holds what the snapshot replaced. `load` keeps `entries_after` the
        snapshot and cuts the others off, durably, before it returns: were they left on the disk, entries
        added later would stand behind ones that contradict the snapshot, and the next `load` would drop them.
        """
        ...

    def append(self, hard_state: HardState | None, entries: Sequence[Entry]) -> None:
        """Queue a write: cut the log at the first entry's index, add the entries, set the hard state."""
        ...

    def write_chunk(self, metadata: SnapshotMetadata, position: int, data: bytes) -> None:
        """Part of a snapshot on its way in, kept aside. Position 0 begins anew and drops any earlier one."""
        ...

    def install_snapshot(self, metadata: SnapshotMetadata) -> SnapshotHandle:
        """The chunks written are all there: queue that they replace the log, every entry of it."""
        ...

    def save_snapshot(self, metadata: SnapshotMetadata, data: bytes) -> SnapshotHandle:
        """A snapshot of this node's own state machine, written aside and renamed after its fsync. The log
        stays; `compact` shortens it later."""
        ...

    def compact(self, index: int) -> None:
        """Entries up to `index` may go. Never past the newest durable snapshot."""
        ...

    def sync(self) -> None:
        """Returns when everything queued before is durable."""
        ...


def entries_after(snapshot: SnapshotMetadata, entries: Sequence[Entry]) -> Sequence[Entry]:
    """The part of a stored log that goes on from the snapshot. What the snapshot replaces is dropped; all of
    it, if the log has another entry where the snapshot ends, or ends before."""
    if not entries:
        return ()
    first = entries[0].index
    invariant(
        first <= snapshot.index + 1,
        f"the stored log starts at {first}, the snapshot ends at {snapshot.index}",
    )
    place = snapshot.index - first
    if place >= 0 and (place >= len(entries) or entries[place].term != snapshot.term):
        return ()
    return entries[place + 1 :]


def bootstrap_state(voters: Sequence[int]) -> StoredState:
    """What a founding member's disk holds before its first start; the same on each (I1: only when asked for).

    The membership is the first entry, not a part of the configuration, so that a node that joins later gets
    it through the log like everything else.
    """
    members = tuple(sorted(set(voters)))
    invariant(members and members[0] > NOBODY, f"a cluster needs voters with ids from 1, not {voters}")
    first = Entry(1, 1, EntryKind.MEMBERSHIP, encode_membership(Membership(members)))
    return StoredState(HardState(term=1, vote=NOBODY, commit=1), (first,))


def empty_state() -> StoredState:
    """A node that waits to be added: no vote, no log, no membership. It never campaigns (I1)."""
    return StoredState(HardState())
