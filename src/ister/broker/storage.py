"""What the topics of a node have in common: its disk and clock, and what they share the use of."""

from __future__ import annotations

from dataclasses import dataclass

from ister.broker.sealed import SealedSegments
from ister.io.clock import Clock
from ister.io.disk import Disk
from ister.metadata.store import MetadataStore
from ister.wal.group_commit import GroupCommit
from ister.wal.leases import Leases
from ister.wal.tail import HotTail


@dataclass(frozen=True)
class Storage:
    """Made once by the broker, and handed to every topic."""

    node_id: int
    disk: Disk
    clock: Clock
    metadata: MetadataStore
    commits: GroupCommit
    leases: Leases
    hot: HotTail
    sealed: SealedSegments
    max_held_appends: int
    max_held_bytes: int
    max_held_seconds: float
