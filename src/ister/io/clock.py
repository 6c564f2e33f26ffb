"""The clock seam: time, and chance, which is as much a thing of the world as time is.

What people call the time is a node's `Clock`. How long something takes, and until when somebody waits, is
`monotonic`, for everybody: by the machine's clock, and on a simulated loop by that loop's, as its timers.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Protocol


def monotonic() -> float:
    """Seconds since some moment; never goes back. For durations and deadlines, in threads too.

    Not the loop's own `time()`: that of uvloop stands still within a turn, and has no microseconds."""
    loop = asyncio._get_running_loop()
    return loop.time() if isinstance(loop, asyncio.BaseEventLoop) else time.monotonic()


class Clock(Protocol):
    def now_us(self) -> int:
        """Wall-clock time in microseconds since 1970. May jump; never used for safety (A6)."""
        ...

    def token(self) -> int:
        """A random number of 63 bits, never 0. For ids of clusters, disks and producers."""
        ...


class SystemClock:
    """The machine's own clock and random source."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def token(self) -> int:
        return (int.from_bytes(os.urandom(8), "little") >> 1) or 1
