"""What a job tells while it runs, to whoever shows it: the command line, a notebook, a test."""

from __future__ import annotations

import logging
from typing import Protocol

log = logging.getLogger("ister.spark.jobs")


class Watch(Protocol):
    def begins(self, what: str, records: int, size: int) -> None:
        """A stretch of work: about so many records and bytes are to come."""

    def advances(self, records: int, size: int) -> None:
        """So many more are done."""

    def ends(self) -> None:
        """That stretch is over, done or not."""

    def tells(self, message: str) -> None:
        """Something that a person should know, and that is no error."""


class Unwatched:
    """Nobody looks; what should be known goes to the log."""

    def begins(self, what: str, records: int, size: int) -> None: ...

    def advances(self, records: int, size: int) -> None: ...

    def ends(self) -> None: ...

    def tells(self, message: str) -> None:
        log.warning("%s", message)
