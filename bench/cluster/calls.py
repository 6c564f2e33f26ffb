"""Requests with their times, and what becomes of them in a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

BIN_SECONDS: Final = 0.02


class Call(NamedTuple):
    """A request: when it was begun, and when it was answered."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


def binned(calls: Sequence[Call], start: float, seconds: float) -> str:
    """For each 20 ms from `start` on the longest that anything begun then took, in milliseconds.

    0 is for nothing. Numbers with spaces between, so that a file of results stays readable.
    """
    bins = [0.0] * round(seconds / BIN_SECONDS)
    for call in calls:
        place = int((call.began - start) // BIN_SECONDS)
        if 0 <= place < len(bins):
            bins[place] = max(bins[place], call.seconds * 1000)
    return " ".join(f"{value:.3g}" for value in bins)
