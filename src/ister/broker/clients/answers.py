"""What answers may hold in memory, over all connections: those being made, and those not taken yet.

A fetch, or any other question with a large answer, takes a share before its answer is made. It gives the
share back when the answer is with the transport; from then on the connection counts what its client has
not taken (`Connection.count_unsent`), and that falls as the client takes it.

Shares are given in the order of asking, and shrink as the budget fills, so that readers who stopped leave
room for small answers to the others.

Why it is live. Who waits here holds no share, so nobody waits in a circle. A share is held by a read, which
ends, or by bytes that a client has yet to take. A client that takes them frees it. One that does not, while
others wait, is cut off by the sweep (`is_too_slow`), and its bytes go with it. An answer larger than all
that is allowed is made when it is alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple, Self

LEAST_SHARE_BYTES = 1024 * 1024
LEAST_BYTES_PER_SECOND = 64 * 1024
"""The pace below which a transfer that holds what others wait for has stopped, for all we care."""


def is_too_slow(moved: int, elapsed: float, grace: float) -> bool:
    """Whether so many bytes in so many seconds are below the least pace, the first `grace` seconds free."""
    return moved < (elapsed - grace) * LEAST_BYTES_PER_SECOND


class _Waiter(NamedTuple):
    wanted: int
    least: int
    size: asyncio.Future[int]


class Share:
    """What one answer may take while it is made; given back once, by hand or at the end of a `with`."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: AnswerBudget, size: int) -> None:
        self._budget = budget
        self.size = size

    def grow(self, size: int) -> bool:
        """Make it as large as this, if there is room or it is the only one; else nothing changes."""
        used = self._budget.used
        if used - self.size + size > self._budget.limit and used > self.size:
            return False
        self._budget.change(size - self.size)
        self.size = size
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        self._budget.change(-self.size)


class AnswerBudget:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._waiting: deque[_Waiter] = deque()
        self.used = 0

    @property
    def is_short(self) -> bool:
        """Somebody waits for what others hold, or more is held than should be."""
        return bool(self._waiting) or self.used > self.limit

    async def take(self, wanted: int, least: int = 0) -> Share:
        """Wait for a share of up to `wanted` bytes, not below `least`; whoever takes it gives it back."""
        least = max(least, min(wanted, LEAST_SHARE_BYTES))
        size = 0 if self._waiting else self._offer(wanted, least)
        if size:
            self.used += size
            return Share(self, size)
        waiter = _Waiter(wanted, least, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            return Share(self, await waiter.size)
        except asyncio.CancelledError:
            # Either it never got its share, and those behind may fit where it did not, or it got it just now.
            self.change(0 if waiter.size.cancelled() else -waiter.size.result())
            raise

    def change(self, size: int) -> None:
        """So many bytes more are held, or fewer; those who wait get what is free."""
        self.used += size
        waiting = self._waiting
        while waiting and size <= 0:
            first = waiting[0]
            if not first.size.done():  # else its task was cancelled
                offer = self._offer(first.wanted, first.least)
                if not offer:
                    return
                self.used += offer
                first.size.set_result(offer)
            waiting.popleft()

    def _offer(self, wanted: int, least: int) -> int:
        """What somebody who asks now gets; 0 if that is less than is of use."""
        free = self.limit - self.used
        if free < least and self.used > 0:
            return 0
        return max(least, min(wanted, free // 4))
