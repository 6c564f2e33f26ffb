"""How fast an export goes: as fast as it may, but behind those who write.

What waits for an export is on disks and is read as it is, while who writes waits for each byte; and both take
the same disk. So while bytes come in, an export takes only a part of what they take, which grows with the
square of what waits. Once `PATIENCE_BYTES` wait an export gives way no more: it falls behind by about so much
while a node is written to at its limit, and never for good, as far as the disk and the store have room for
both. Where hardly anything comes in nobody is in its way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ister.io.clock import monotonic
from ister.replication.sharing import Throttle

PATIENCE_BYTES: Final = 8 << 30
LEAST: Final = 16 << 20
"""Bytes a second that an export always has, of those that it may have."""
QUIET: Final = 8 << 20
"""Bytes a second that may come in, and the export goes on at full speed."""
WINDOW_SECONDS: Final = 0.1


def share(incoming: float, waiting: int) -> float:
    """Bytes a second for the export beside so many that come in; 0 is as many as there are."""
    if incoming < QUIET or waiting >= PATIENCE_BYTES:
        return 0.0
    return max(LEAST, incoming * (waiting / PATIENCE_BYTES) ** 2)


class GivingWay:
    """The pace of a node's exports, all of them together."""

    def __init__(self, limit: int, received: Callable[[], int], waiting: Callable[[], int]) -> None:
        """`limit` in bytes a second, or 0; `received` is how many bytes came in so far, of clients and of
        leaders, `waiting` how many are to be exported."""
        self.limit = Throttle(limit)
        self._received = received
        self._waiting = waiting
        self._looked_at = monotonic()
        self._had_received = 0
        self._beside = Throttle(0)
        """Of who writes."""

    async def passed(self, size: int) -> None:
        """So many bytes were exported, or read back: wait as long as they are to take."""
        await self.limit.passed(size)
        now = monotonic()
        if now - self._looked_at >= WINDOW_SECONDS:
            received = self._received()
            incoming = (received - self._had_received) / (now - self._looked_at)
            self._looked_at, self._had_received = now, received
            self._beside.rate = share(incoming, self._waiting())
        await self._beside.passed(size)
