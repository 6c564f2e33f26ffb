"""Frames that were handed to sequencers and wait for their answers, with a bound on their bytes.

Memory is bounded by `SENT_BYTES`, or one frame where that is larger.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from ister.client.batch import Batch

SENT_BYTES: Final = 16 * 1024 * 1024

T = TypeVar("T")


class Sending(Generic[T]):
    """Tells of each frame that was appended, in the order in which they were put, with what it was put as."""

    def __init__(self, appended: Callable[[T, Batch, int], None]) -> None:
        """`appended` gets the offset of the frame's first record as well."""
        self._appended = appended
        self._sent: deque[tuple[T, Batch]] = deque()
        self._bytes = 0

    async def put(self, what: T, batch: Batch) -> None:
        """Raises what any of those before failed with."""
        self._sent.append((what, batch))
        self._bytes += batch.held_bytes
        while self._bytes > SENT_BYTES or (self._sent and self._sent[0][1].is_settled):
            await self._settle_oldest()

    async def finish(self) -> None:
        while self._sent:
            await self._settle_oldest()

    async def _settle_oldest(self) -> None:
        what, batch = self._sent.popleft()
        offset = await batch.wait(0)
        self._bytes -= batch.held_bytes
        self._appended(what, batch, offset)
