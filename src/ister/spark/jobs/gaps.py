"""Offsets that are not there, noted instead of raised."""

from __future__ import annotations

from ister.errors import IsterError, OffsetOutOfRange
from ister.spark.ranges import Loss


class Gaps(Loss):
    """A `Loss` that keeps what it is told."""

    found: list[tuple[int, int]]
    reasons: list[str]
    kinds: list[type[IsterError]]

    def __new__(cls) -> Gaps:
        made = super().__new__(cls, False)
        made.found, made.reasons, made.kinds = [], [], []
        return made

    def report(
        self, topic: str, start: int, end: int, why: str, kind: type[IsterError] = OffsetOutOfRange
    ) -> None:
        self.found.append((start, end))
        self.reasons.append(why)
        self.kinds.append(kind)
