"""What every one of them is asked to do with its subscriptions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

RATE: Final = 20_000
SIZE: Final = 100
SHARERS: Final = 8


@dataclass(frozen=True)
class Job:
    records: int
    """To consume, in each repetition."""
    seconds: int
    """Of publishing at a steady rate."""
    repeats: int
    rate: int = RATE
    """Records a second."""
    size: int = SIZE
    """Bytes of each."""
    sharers: int = SHARERS
    """Consumers of the shared subscription."""
    modes: tuple[str, ...] = ("exclusive", "shared", "delivery")

    @property
    def consuming(self) -> dict[str, int]:
        """Which kinds are to consume what is there already, and with how many consumers."""
        consumers = {"exclusive": 1, "shared": self.sharers}
        return {kind: count for kind, count in consumers.items() if kind in self.modes}
