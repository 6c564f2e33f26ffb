"""What Prometheus is told of the metadata's Raft."""

from __future__ import annotations

from collections.abc import Callable

from ister.metadata.replicated import ReplicatedMetadata
from ister.metrics import Gauge, Registry
from ister.raft import RaftStatus


def register_raft_metrics(registry: Registry, metadata: ReplicatedMetadata) -> None:
    def of(read: Callable[[RaftStatus], float]) -> Callable[[], float]:
        return lambda: read(metadata.status())

    registry.add(
        Gauge("raft_term", "The metadata's term: grows with every election.", of(lambda s: s.term)),
        Gauge("raft_commit_index", "The last metadata command that is committed.", of(lambda s: s.commit)),
        Gauge("raft_applied_index", "The last metadata command applied here.", of(lambda s: s.applied)),
        Gauge(
            "raft_snapshot_index",
            "The last metadata command in the snapshot.",
            of(lambda s: s.snapshot_index),
        ),
        Gauge(
            "raft_is_leader", "1 on the node that leads the metadata.", lambda: int(metadata.raft.is_leader)
        ),
        Gauge(
            "raft_leader_changes",
            "Metadata leaders seen since the start.",
            lambda: metadata.raft.leader_changes,
        ),
        metadata.raft.proposals,
    )
