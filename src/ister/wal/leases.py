"""Leases: the segments that this node may append to right now.

A set of WAL keys, derived from metadata and replaced as a whole. Checked at the moment of enqueue and again
before the write (A4). A lease is admission control, not safety (A2): what makes a stale writer harmless is
the storage fence and the quorum. It only makes the common case clean.
"""

from __future__ import annotations

import logging

from ister.errors import NotLeader
from ister.io.clock import monotonic
from ister.logs import Repeats
from ister.metrics import Counter, Histogram

log = logging.getLogger("ister.wal.leases")

_SHOWN = 20
REPEAT_SECONDS = 10.0
"""How often at most the same rejection is logged."""


class Leases:
    def __init__(self) -> None:
        self.held: frozenset[str] = frozenset()
        """The keys. Swapped, never changed."""
        self._repeats = Repeats(monotonic, REPEAT_SECONDS)
        self.rejections = Counter("lease_rejection_count", "Appends refused for want of a lease.")
        self.update_seconds = Histogram("lease_update_duration_seconds", "Time to replace the set of leases.")

    def __len__(self) -> int:
        return len(self.held)

    def holds(self, key: str) -> bool:
        return key in self.held

    def replace(self, expected: frozenset[str]) -> None:
        """Hold exactly these. Nothing is added to or taken from a set in use: it is swapped."""
        for key, count in self._repeats.left():
            log.warning("write rejected for %s, %d times more since it was last said", key, count)
        if expected == self.held:
            return
        started = monotonic()
        added, removed = expected - self.held, self.held - expected
        self.held = expected
        self.update_seconds.observe(monotonic() - started)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("update_leases: added %s, removed %s", _shown(added), _shown(removed))

    def rejection(self, key: str) -> NotLeader:
        """Count and log an append without a lease; returns the error to answer it with. A client that tries
        on and on is logged once, and then how often."""
        self.rejections.add()
        count = self._repeats.count(key)
        if count:
            times = f", {count} times" if count > 1 else ""
            log.warning("write rejected for %s (leases: %s)%s", key, _shown(self.held), times)
        return NotLeader(f"this node holds no lease for {key}")


def _shown(keys: frozenset[str]) -> str:
    names = sorted(keys)
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return "{" + ", ".join(names[:_SHOWN]) + more + "}"
