"""Ranges of merged objects, larger than what is asked for: the segments behind one come with it.

A merged object has many small segments, and whoever scans reads one after the other: its end first, which
tells where frames are, then the frames. Without this each would cost two requests, as small objects do.
"""

from __future__ import annotations

from typing import Final

from ister.history.objects import Stored
from ister.io.object_store import ObjectInfo

WINDOW_BYTES: Final = 4 << 20
SMALL_BYTES: Final = WINDOW_BYTES // 4
"""A segment that is larger is read by itself: of a window, up to so much is read again with the next one."""


class Window:
    """A store that remembers the last range that it was asked for, and has asked for more than that."""

    def __init__(self, store: Stored) -> None:
        self._store = store
        self._held: tuple[str, int, bytes] = ("", 0, b"")
        self.start = 0
        """Where the segment begins that is read now: its end is asked for first, and its frames then."""

    @property
    def location(self) -> str:
        return self._store.location

    async def head(self, name: str) -> ObjectInfo:
        return await self._store.head(name)

    async def get(self, name: str, start: int, length: int) -> bytes:
        held, first, data = self._held
        if held != name or not first <= start <= start + length <= first + len(data):
            first = self.start if self.start <= start <= self.start + SMALL_BYTES else start
            data = await self._store.get(name, first, max(start - first + length, WINDOW_BYTES))
            self._held = name, first, data
        return data[start - first : start - first + length]
