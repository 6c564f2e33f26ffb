"""The clock seam: time, and chance, which is as much a thing of the world as time is.

Timers are not here: `asyncio.sleep`, `asyncio.timeout` and `loop.call_later` run on the loop's own
time, and the simulator brings its own loop.
"""

from __future__ import annotations

import os
import time
from typing import Protocol


class Clock(Protocol):
    def now_us(self) -> int:
        """Wall-clock time in microseconds since 1970. May jump; never used for safety (A6)."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back. For durations."""
        ...

    def token(self) -> int:
        """A random number of 63 bits, never 0. For ids of clusters, disks and producers."""
        ...


class SystemClock:
    """The machine's own clock and random source."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    monotonic = staticmethod(time.monotonic)

    def token(self) -> int:
        return (int.from_bytes(os.urandom(8), "little") >> 1) or 1
