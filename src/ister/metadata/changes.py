"""Following the metadata: every applied change with its index, from any index on (D19).

A follower that was away names the last index that it has seen and gets all that came since, in order, nothing
twice. Where that is no longer at hand (too long ago, or a snapshot came instead of the commands) it is told
so, once, with the index at which it has to take the state as it is: never a gap in silence.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from ister.metadata.commands import Command, Outcome

KEPT = 10_000
KEPT_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Change:
    index: int
    command: Command | None
    """None for one that this build does not know."""
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class StateAt:
    """Changes up to this index cannot be told one by one: look at the state, then follow on."""

    index: int


class Changes:
    def __init__(self, kept: int = KEPT, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept: deque[Change] = deque()
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self._most = kept
        self._most_bytes = kept_bytes
        self._index = 0
        """Up to here everything has been told or is kept."""
        self._known_after = 0
        """All changes after this index are kept."""
        self._news = asyncio.Event()

    def note(self, change: Change, size: int = 0) -> None:
        """One more; `size` is about how many bytes it holds. The newest is kept, however large."""
        self._kept.append(change)
        self._sizes.append(size)
        self._bytes += size
        while len(self._kept) > 1 and (len(self._kept) > self._most or self._bytes > self._most_bytes):
            self._known_after = self._kept.popleft().index
            self._bytes -= self._sizes.popleft()
        self._wake(change.index)

    def passed(self, index: int) -> None:
        """An index that changed nothing."""
        self._index = index

    def restored(self, index: int) -> None:
        """A snapshot took the place of all commands up to here."""
        self._kept.clear()
        self._sizes.clear()
        self._bytes = 0
        self._known_after = index
        self._wake(index)

    def _wake(self, index: int) -> None:
        self._index = index
        self._news.set()
        self._news = asyncio.Event()

    async def follow(self, after: int) -> AsyncGenerator[Change | StateAt, None]:
        """All changes with an index above `after`, as they come; 0 begins with the first there ever was."""
        while True:
            if after < self._known_after:
                after = self._known_after
                yield StateAt(after)
                continue
            news = self._news
            for change in [change for change in self._kept if change.index > after]:
                if change.index <= after or change.index <= self._known_after:
                    break  # while the follower looked at the one before, this one went: see what is left
                after = change.index
                yield change
            else:
                await news.wait()
