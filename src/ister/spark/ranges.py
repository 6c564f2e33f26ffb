"""Offsets of a topic, as they are handed from the driver to tasks, and what happens where some are not there.

The range carries the topic's uid, because a topic that was deleted and made again has the same name and
other records (I3).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from ister.errors import IsterError, OffsetOutOfRange

log = logging.getLogger("ister.spark")


HOT: Final = "hot"
"""The tier of what brokers have."""


class Piece(NamedTuple):
    """A run of offsets within one segment, and who has it."""

    segment: int
    start: int
    end: int
    tier: str
    """`HOT`."""
    nodes: tuple[int, ...]
    sealed: bool


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """Offsets `start` to before `end` of one topic: the share of one task."""

    topic: str
    uid: int
    start: int
    end: int
    lives: tuple[Piece, ...] = ()
    """Where its offsets are, in their order, as the metadata had it when this was planned; empty if nobody
    looked. Reading goes by what is true then, whatever this says."""

    @property
    def count(self) -> int:
        return self.end - self.start


class Loss(NamedTuple):
    """What happens where offsets that were asked for are not there (promise 5)."""

    fails: bool

    def report(
        self,
        topic: str,
        start: int,
        end: int | None,
        why: str,
        kind: type[IsterError] = OffsetOutOfRange,
    ) -> None:
        """Raise, or say loudly, that offsets `start` to before `end` are missing; all from `start` on if
        nobody knows the end."""
        which = f"offsets from {start} on" if end is None else f"offsets {start} to {end - 1}"
        what = f"{which} of {topic} are not there: {why}"
        if self.fails:
            raise kind(what, hint=f"{kind.default_hint} failOnDataLoss=false reads on without them.")
        log.warning("DATA LOSS, reading on because failOnDataLoss is false: %s", what)
