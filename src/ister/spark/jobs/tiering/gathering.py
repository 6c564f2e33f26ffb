"""Finished shares on their way into a commit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ister.spark.jobs.lake.table import Coverage, DataFile, joined_gaps
from ister.spark.jobs.snapshot import Share

if TYPE_CHECKING:
    from ister.spark.jobs.tiering.writing import Written


class Gathered:
    """Finished shares that follow each other, and are not committed yet."""

    def __init__(self, before: Coverage | None, begun: Coverage) -> None:
        self.before = before
        self.after = begun
        self.taken = 0
        """How many shares were taken, from the first one on."""
        self._empty()

    def _empty(self) -> None:
        self.files: list[DataFile] = []
        self.dead_files: list[DataFile] = []
        self.gaps: list[tuple[int, int]] = []
        self.records = 0
        self.log_bytes = 0
        self._fresh = 0

    def start_anew(self) -> None:
        self.before = self.after
        self._empty()

    @property
    def has_news(self) -> bool:
        return self._fresh > 0

    def take(self, share: Share, written: Written) -> None:
        self.taken += 1
        self._fresh += 1
        self.files += written.files
        self.dead_files += written.dead_files
        self.gaps = list(joined_gaps((*self.gaps, *written.gaps)))
        self.records += written.records
        self.log_bytes += share.size
        self.after = replace(
            self.after, next=share.range.end, gaps=joined_gaps((*self.after.gaps, *written.gaps))
        )
