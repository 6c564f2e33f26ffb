"""What the log engine counts and times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ister.io.clock import monotonic
from ister.metrics import COUNTS, Counter, Histogram, Registry
from ister.wal.sink import Waiting


@dataclass
class WalMetrics:
    append_seconds: Histogram = field(
        default_factory=lambda: Histogram(
            "append_duration_seconds", "From an append's arrival to its commit."
        )
    )
    sync_seconds: Histogram = field(
        default_factory=lambda: Histogram("fsync_duration_seconds", "Time of one sync of one segment file.")
    )
    group_size: Histogram = field(
        default_factory=lambda: Histogram("group_commit_frames", "Frames made durable by one cycle.", COUNTS)
    )
    inline: Counter = field(
        default_factory=lambda: Counter("group_commit_inline_total", "Cycles that ran on the event loop.")
    )
    failures: Counter = field(
        default_factory=lambda: Counter("flush_failures_total", "Writes or syncs that the disk refused.")
    )

    def register(self, registry: Registry) -> None:
        registry.add(self.append_seconds, self.sync_seconds, self.group_size, self.inline, self.failures)

    def observe_appends(self, waiting: Iterable[Waiting], end_offset: int) -> None:
        """Durations of the appends about to be acknowledged, one look at the clock for all."""
        now = monotonic()
        started, times = 0.0, 0
        for end, _, _, _, _, arrived, _ in waiting:
            if end > end_offset:
                break
            if arrived != started:
                if times:
                    self.append_seconds.observe(now - started, times)
                started, times = arrived, 0
            times += 1
        if times:
            self.append_seconds.observe(now - started, times)
