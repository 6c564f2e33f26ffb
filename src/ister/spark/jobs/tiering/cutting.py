"""What is new of a topic, cut into shares while the job runs: one task each, and about one file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ister.spark.jobs.lake.table import DataFile
from ister.spark.jobs.snapshot import Share, Snapshot, reach

WORTH_A_TASK: Final = 4 * 1024 * 1024
"""Below this many bytes of the log, another file costs every reader more than another task brings."""
SHARE_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Of the log, for one task: however well it compresses."""


class Cutting:
    """Cuts what is new into shares, each about as large as makes one file: how well records compress is known
    once the first tasks have ended. Where there is little, all executors get the same of it."""

    def __init__(self, snapshot: Snapshot, start: int, file_bytes: int, log_bytes: int, at_once: int) -> None:
        self.cut: list[Share] = []
        """What was given out, in order."""
        self._snapshot = snapshot
        self._at = start
        self._left = log_bytes
        self._file_bytes = file_bytes
        self._fair = max(-(-log_bytes // at_once), min(file_bytes, WORTH_A_TASK))
        self._log_bytes = self._written_bytes = 0

    def learn(self, share: Share, files: list[DataFile]) -> None:
        """One share has become these files."""
        self._log_bytes += share.size
        self._written_bytes += sum(file.size for file in files)

    def shares(self) -> Iterator[Share]:
        while self._at < self._snapshot.end:
            wanted = max(1, min(self._fair, self._target()))
            even = self._left // max(1, round(self._left / wanted))
            share = reach(self._snapshot, self._at, self._snapshot.end, max(1, even))
            self._at, self._left = share.range.end, max(0, self._left - share.size)
            self.cut.append(share)
            yield share

    def _target(self) -> int:
        if not self._written_bytes:
            return self._file_bytes
        return min(SHARE_BYTES_MAX, self._file_bytes * self._log_bytes // self._written_bytes)
