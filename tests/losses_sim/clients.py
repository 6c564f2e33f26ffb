"""Clients of topics that lose records: told of a loss, a reader goes on behind it, and remembers what it was
told; a producer whose records are among it may find that nobody knows it any more (A5)."""

from __future__ import annotations

from typing import Any

from ister.errors import DuplicateSequence, InvariantBroken, RecordsLost
from tests.cluster.load import ClusterClients


class LossClients(ClusterClients):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.never = (DuplicateSequence, InvariantBroken)
        self.told_lost: list[tuple[str, str, int, int]] = []
        """Who was told, of which line, that which offsets are lost."""

    def behind_loss(self, name: str, line: str, place: int, error: RecordsLost) -> int:
        assert error.offsets is not None
        start, end = error.offsets
        if not start <= place < end:
            self.history.violated(
                f"{name} read {line} at {place}, and was told that {start} to {end} is lost"
            )
        self.told_lost.append((name, line, start, end))
        return end
