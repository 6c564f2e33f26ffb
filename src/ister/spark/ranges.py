"""Offsets of a topic, as they are handed from the driver to tasks, and what happens where some are not there.

The range carries the topic's uid, because a topic that was deleted and made again has the same name and
other records (I3).
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from ister.errors import IsterError, OffsetOutOfRange
from ister.history.format import Exported

log = logging.getLogger("ister.spark")


HOT: Final = "hot"
"""The tier of what brokers have."""
HISTORY: Final = "history"
"""The tier of what is in the store."""
UNION: Final = "union"
"""Both, as one line: from the store what is there, the rest from brokers."""
TIERS: Final = (UNION, HISTORY, HOT)


class Descriptor(NamedTuple):
    """An object of the history, as the metadata tells of it: all that reading it past the brokers takes, and
    no secret. Whoever reads has the credentials of the place where it runs."""

    store: str
    """The URL of the store."""
    name: str
    size: int
    crc: int
    segment: Exported
    position: int = 0
    """Where the segment's bytes begin in the object; `size` and `crc` are of these bytes."""
    stored_size: int = 0
    """Of a merged object, which has other segments' too: how large all of it is."""


class Piece(NamedTuple):
    """A run of offsets within one segment, and where it is."""

    segment: int
    start: int
    end: int
    tier: str
    """`HISTORY` if it has a descriptor, else `HOT`."""
    nodes: tuple[int, ...]
    """Those that have copies too."""
    sealed: bool
    size: int = 0
    """About how many bytes it has; 0 if nobody knows."""
    descriptor: Descriptor | None = None

    def between(self, start: int, end: int) -> Piece:
        """The part of it that lies there."""
        first, last = max(start, self.start), min(end, self.end)
        size = self.size * (last - first) // max(1, self.end - self.start)
        return self._replace(start=first, end=last, size=size)


def pieces_between(lives: Sequence[Piece], start: int, end: int) -> tuple[Piece, ...]:
    """Of pieces in their order, the parts that lie there."""
    found = []
    for place in range(bisect_right(lives, start, key=_end_of), len(lives)):
        if lives[place].start >= end:
            break
        found.append(lives[place].between(start, end))
    return tuple(found)


def _end_of(piece: Piece) -> int:
    return piece.end


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """Offsets `start` to before `end` of one topic: the share of one task."""

    topic: str
    uid: int
    start: int
    end: int
    lives: tuple[Piece, ...] = ()
    """Where its offsets are, in their order, as the metadata had it when this was planned; empty if nobody
    looked. What is in the history by this is read there; of the rest the task looks anew."""

    @property
    def count(self) -> int:
        return self.end - self.start

    @property
    def size(self) -> int:
        """About how many bytes it has; 0 if nobody knows."""
        return sum(piece.size for piece in self.lives)


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
