"""The simulated clock of one node: the loop's time, as a bad wall clock would show it.

Jumps and drift change what the node reads, never when its timers fire: those run on the loop's time.
That is enough to show that safety hangs on no clock (A6).
"""

from __future__ import annotations

import asyncio
from random import Random

# 2024-01-01T00:00:00Z: a plausible "now", the same in every run.
EPOCH_US = 1_704_067_200_000_000


class SimClock:
    """Implements `ister.io.clock.Clock` on a loop's virtual time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, random: Random, *, skew: float = 0.0) -> None:
        self._loop = loop
        self._random = random
        self._skew = skew
        self._factor = 1.0
        self._local = 0.0  # this node's seconds up to `_since`
        self._since = loop.time()

    def now_us(self) -> int:
        return EPOCH_US + round((self._seconds() + self._skew) * 1_000_000)

    def _seconds(self) -> float:
        return self._local + (self._loop.time() - self._since) * self._factor

    def token(self) -> int:
        return self._random.getrandbits(63) or 1

    def jump(self, seconds: float) -> None:
        """The wall clock was set, ahead or back."""
        self._skew += seconds

    def drift(self, factor: float) -> None:
        """From now, run at `factor` times the true speed (1.0 heals). Never backwards."""
        if factor < 0:
            raise ValueError(f"a drift of {factor} would turn the clock back")
        self._local, self._since = self._seconds(), self._loop.time()
        self._factor = factor
