"""Brokers with a bug put in on purpose: `python -m tests.chaos.planted BUG serve ...`.

They show that the judgement of a chaos run can find what it looks for. Nothing else uses them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Final

from ister.cli.main import main
from ister.frame import FrameHeader
from ister.wal import group_commit
from ister.wal.group_commit import FlushJob
from ister.wal.segment import Segment
from ister.wal.sink import Sink

LATE_SECONDS: Final = 0.05


class _AlreadyTold:
    """Hears of what was acknowledged before."""

    def appended(self, token: int, base_offset: int, append_time_us: int, leader: int = 0) -> None: ...

    def refused(self, token: int, error: Exception) -> None: ...


def acknowledge_before_write() -> None:
    """The answer leaves when the record has its offset; the write comes a moment later."""
    append, run = Segment.append, FlushJob.run

    def hasty(
        self: Segment,
        frame: bytearray | memoryview,
        header: FrameHeader,
        now_us: int,
        sink: Sink,
        token: int,
        started: float,
    ) -> None:
        base = self.end_offset
        told: Any = _AlreadyTold()
        append(self, frame, header, now_us, told, token, started)
        if self.end_offset > base:
            sink.appended(token, base, self.last_append_time_us)
        else:
            append(self, frame, header, now_us, sink, token, started)  # a repeat, answered as ever

    def late(self: FlushJob) -> None:
        time.sleep(LATE_SECONDS)
        run(self)

    Segment.append = hasty  # type: ignore[method-assign]
    FlushJob.run = late  # type: ignore[method-assign]
    group_commit.INLINE_BYTES = 0


BUGS: Final[dict[str, Callable[[], None]]] = {
    "acknowledge-before-write": acknowledge_before_write,
}


def command(bug: str) -> tuple[str, ...]:
    """What starts a broker with this bug, in place of `ister serve`."""
    return (sys.executable, "-m", "tests.chaos.planted", bug, "serve")


if __name__ == "__main__":
    BUGS[sys.argv.pop(1)]()
    main()
