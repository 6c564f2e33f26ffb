"""Ranges of merged objects, larger than what is asked for: the segments behind one come with it.

A merged object has many small segments, and whoever scans reads one after the other: its end first, which
tells where frames are, then the frames. Without this each would cost two requests, as small objects do.
"""

from __future__ import annotations

from typing import Final

from ister.history.objects import Stored
from ister.io.object_store import ObjectInfo

WINDOW_BYTES: Final = 4 << 20


class Window:
    """A store that remembers the last range that it was asked for, and has asked for more than that."""

    def __init__(self, store: Stored) -> None:
        self._store = store
        self._held: tuple[str, int, bytes] = ("", 0, b"")

    @property
    def location(self) -> str:
        return self._store.location

    async def head(self, name: str) -> ObjectInfo:
        return await self._store.head(name)

    async def get(self, name: str, start: int, length: int) -> bytes:
        held, first, data = self._held
        if held != name or not first <= start <= start + length <= first + len(data):
            data, first = await self._store.get(name, start, max(length, WINDOW_BYTES)), start
            self._held = name, first, data
        return data[start - first : start - first + length]
