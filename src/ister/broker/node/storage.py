"""What the topics of a node have in common: its disk and clock, and what they share the use of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ister.broker.forward.forwarding import Forwarder
from ister.broker.node.sealed import SealedSegments
from ister.failpoints import Step
from ister.history.history import History
from ister.io.clock import Clock
from ister.io.disk import Disk
from ister.metadata.store import MetadataStore
from ister.wal.group_commit import GroupCommit
from ister.wal.leases import Leases
from ister.wal.tail import HotTail

if TYPE_CHECKING:
    from ister.broker.node.replicas import NodeReplication


@dataclass(frozen=True)
class Storage:
    """Made once by the broker, and handed to every topic."""

    node_id: int
    member: int
    """This node with its disk (I2)."""
    disk: Disk
    clock: Clock
    metadata: MetadataStore
    commits: GroupCommit
    leases: Leases
    may_lead: asyncio.Event
    """Set once this start was announced: what is known here is then no older than this node's last life."""
    sync_leases: Callable[[], None]
    hot: HotTail
    sealed: SealedSegments
    forwarder: Forwarder
    max_held_appends: int
    max_held_bytes: int
    max_held_seconds: float
    max_clock_skew_us: int
    quorum_timeout_seconds: float
    replica_lost_seconds: float
    replication: NodeReplication
    leaving: asyncio.Event
    """Set when this node is about to stop: what it hands off now goes to another."""
    history: History | None
    """None in local mode."""
    export_after_us: int
    """An open segment that is older goes on into the history, where there is one."""
    reach: Callable[[Step], None]
    """Called at each step; does nothing, unless a test lets this node die there."""
