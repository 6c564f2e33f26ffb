"""What replication counts as it goes: once for a message, a commit or an attempt, never for a record.

`ister.broker.node.replication_metrics` shows these, and what can be read off the node when somebody asks.
"""

from __future__ import annotations

from ister.metrics import Counter, Histogram
from ister.protocol.replication import Refusal

_REASONS = {
    Refusal.GAP: "it ends earlier, and is sent what it lacks",
    Refusal.FENCED: "a recovery has fenced it",
    Refusal.SEALED: "the segment is sealed",
    Refusal.UNKNOWN: "it is no replica of the segment, or the segment is gone",
    Refusal.STORAGE: "its disk failed, or its copy is damaged",
}


class ReplicationCounters:
    """One for each broker."""

    def __init__(self) -> None:
        self.bytes_out = Counter("replicated_bytes_out_total", "Bytes of frames sent to followers.")
        self.records_out = Counter("replicated_records_out_total", "Records sent to followers.")
        self.bytes_in = Counter("replicated_bytes_in_total", "Bytes of frames taken from leaders.")
        self.records_in = Counter("replicated_records_in_total", "Records taken from leaders.")
        self.quorum_wait_seconds = Histogram(
            "quorum_wait_duration_seconds",
            "From a leader's own sync until most of the segment's replicas had it too.",
        )
        self.quorum_timeouts = Counter(
            "quorum_timeouts_total", "Segments given up because too few of their replicas answered."
        )
        self.recoveries_begun = Counter(
            "recoveries_begun_total", "Recoveries of segments begun by this node."
        )
        self.recoveries_ended = Counter("recoveries_ended_total", "Those of them after which it was sealed.")
        self.recoveries_failed = Counter("recoveries_failed_total", "Those of them that were given up.")
        self.fences = Counter("fences_total", "Fences promised to a recovery by this node's copies.")
        self._refusals = {
            reason: Counter(f"replica_refusals_{reason}_total", f"Refusals of followers: {why}.")
            for reason, why in _REASONS.items()
        }

    def refused(self, reason: Refusal) -> None:
        self._refusals[reason].add()

    def all(self) -> list[Counter | Histogram]:
        return [
            self.bytes_out,
            self.records_out,
            self.bytes_in,
            self.records_in,
            self.quorum_wait_seconds,
            self.quorum_timeouts,
            self.recoveries_begun,
            self.recoveries_ended,
            self.recoveries_failed,
            self.fences,
            *self._refusals.values(),
        ]
