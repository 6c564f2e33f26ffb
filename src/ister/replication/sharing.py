"""How long work on a log shares the node with everything else: at a rate, and with no thread left behind.

A coroutine may be cancelled while a worker thread writes for it. If it closed its files then, the thread
could write into whatever is opened next under the same number; so who is cancelled waits for the disk first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from ister.io.clock import monotonic
from ister.io.disk import Disk

T = TypeVar("T")


async def run_to_end(disk: Disk, work: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
    """Blocking work off the loop. When this returns or raises, also as cancelled, the work is over.

    `undo` is given the result of work that was done for one who was cancelled: files that were opened, say.
    """
    running = asyncio.ensure_future(disk.run(work))
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        # An error is looked at too: nobody is there any more to be told of it.
        if not running.cancelled() and running.exception() is None and undo is not None:
            undo(running.result())
        raise cancelled
    return running.result()


class Throttle:
    """Lets so many bytes go by in a second, on average, of all who share it; 0 is as many as there are."""

    def __init__(self, bytes_per_second: float) -> None:
        self.rate = bytes_per_second
        self._free_at = monotonic()

    async def passed(self, size: int) -> None:
        """So many bytes went by: wait as long as they are to take. Time that went anyway counts."""
        if not self.rate:
            return
        share, now = size / self.rate, monotonic()
        self._free_at = max(self._free_at, now - share) + share
        await asyncio.sleep(self._free_at - now)
