"""Brokers that acknowledge alone: `python -m tests.chaos.replicas_planted serve ...`.

A leader counts its own disk only, and its followers get what it sends a moment later. They show that the
judgement of a run with lost disks can find what it looks for. Nothing else uses them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Final

from ister.cli.main import main
from ister.replication.stream.leader import Streams
from ister.replication.stream.progress import Progress
from ister.wal.tail import Bytes

LATE_SECONDS: Final = 0.5
"""Long beside what a busy machine takes from one append to the next: a kill finds some of them unsent."""
COMMAND: Final = (sys.executable, "-m", "tests.chaos.replicas_planted", "serve")
"""What starts such a broker, in place of `ister serve`."""


def acknowledge_alone() -> None:
    send = Streams.send

    def advance(self: Progress) -> None:
        self.quorum_end = max(self.quorum_end, self._own_synced)

    def late(self: Streams, member: int, header: bytes, frames: Sequence[Bytes], size: int) -> None:
        kept = [bytes(frame) for frame in frames]
        asyncio.get_running_loop().call_later(LATE_SECONDS, send, self, member, header, kept, size)

    Progress._advance = advance  # type: ignore[method-assign]
    Streams.send = late  # type: ignore[method-assign]


if __name__ == "__main__":
    acknowledge_alone()
    main()
