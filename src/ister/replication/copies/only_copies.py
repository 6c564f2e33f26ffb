"""Copies of sealed segments that are alone in their list: read to the end for who is to remove another.

Nobody can complete such a copy, so it is not looked at after a start, and what an earlier process knew of its
damage is forgotten by then. "Nothing is known against it" is enough to serve it; to a node that was taken out
of the list, and has the only other copy, it is not.

Fault model: bytes may rot or disappear before the question or after the answer; the first is what is found
here. A reading answers one question. Where it takes longer than that can wait, it answers the next one, if
that comes within a day and is about the same list.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

from ister.replication.places import Place

WAIT_SECONDS = 10.0
"""How long a question waits for the reading: whoever asks comes again."""
FRESH_SECONDS = 24 * 3600.0
"""How long ago a reading may have ended that answers a question. Whoever asks may have thousands of others to
ask about, and each takes its time: if it came too late, all of them would be read for ever."""


class Scrub(Protocol):
    async def check(self, topic_uid: int, uid: int, bytes_per_second: int) -> bool: ...


class OnlyCopies:
    """One is read at a time, whoever asks."""

    def __init__(self, scrub: Scrub, bytes_per_second: int) -> None:
        self._scrub = scrub
        self._rate = bytes_per_second
        self._reading: asyncio.Task[None] | None = None
        self._good: dict[int, float] = {}
        """Segments that were read and not asked for since, and when."""
        self._is_closed = False

    async def is_good(self, place: Place) -> bool:
        """Whether the copy here was read to its end for this question; False also as long as it is read."""
        uid, is_begun = place.segment.uid, False
        self._forget_old()
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_SECONDS):
                while uid not in self._good and not self._is_closed:
                    if self._reading is None:
                        if is_begun:
                            break
                        self._begin(place.topic.uid, uid)
                        is_begun = True
                    assert self._reading is not None
                    await asyncio.wait([self._reading])
        return self._good.pop(uid, None) is not None

    def forget(self, segment_uid: int) -> None:
        """Another list counts now: what was read was for a question about the last one."""
        self._good.pop(segment_uid, None)

    def _forget_old(self) -> None:
        limit = asyncio.get_running_loop().time() - FRESH_SECONDS
        self._good = {uid: at for uid, at in self._good.items() if at >= limit}

    def _begin(self, topic_uid: int, uid: int) -> None:
        def ended(_: asyncio.Task[None]) -> None:
            self._reading = None

        self._reading = asyncio.get_running_loop().create_task(self._read(topic_uid, uid))
        self._reading.add_done_callback(ended)

    async def _read(self, topic_uid: int, uid: int) -> None:
        if await self._scrub.check(topic_uid, uid, self._rate):
            self._good[uid] = asyncio.get_running_loop().time()

    async def close(self) -> None:
        self._is_closed = True
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
