"""Appends that wait while their segment is being opened or handed off (H3).

Bounded in count, bytes and time; past any of these, a retriable error. Released in the order of arrival.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ister.errors import IsterError, Overloaded
from ister.frame import FrameHeader
from ister.wal.sink import Sink


class HeldAppend(NamedTuple):
    frame: bytearray | memoryview
    header: FrameHeader
    sink: Sink
    token: int
    started: float


class HeldAppends:
    def __init__(
        self, max_count: int, max_bytes: int, max_seconds: float, why: Callable[[], str] = lambda: ""
    ) -> None:
        """`why` says what they wait for, where there is something to say."""
        self._why = why
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._waiting: deque[HeldAppend] = deque()
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, append: HeldAppend, topic: str) -> None:
        """Keep it for later, or raise `Overloaded`."""
        if len(self._waiting) >= self._max_count or self._bytes + len(append.frame) > self._max_bytes:
            raise Overloaded(
                f"{len(self._waiting)} appends ({self._bytes} bytes) already wait for a segment of {topic} "
                f"(max_held_appends {self._max_count}, max_held_bytes {self._max_bytes})"
            )
        self._waiting.append(append)
        self._bytes += len(append.frame)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._max_seconds, self._too_long, topic)

    def put_first(self, appends: Sequence[HeldAppend], topic: str) -> None:
        """Those that were admitted, and are not in the log, before those that came later (H2). They were
        within the bounds when they were admitted."""
        self._waiting.extendleft(reversed(appends))
        self._bytes += sum(len(append.frame) for append in appends)
        if appends and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._max_seconds, self._too_long, topic)

    def _too_long(self, topic: str) -> None:
        seconds, why = self._max_seconds, self._why()
        said = f"topic {topic} had no open segment for {seconds:.0f} s (max_held_ms)"
        self.refuse(Overloaded(f"{said}: {why}" if why else said))

    def release(self) -> Iterator[HeldAppend]:
        """All of them, oldest first; none is held any more."""
        waiting = self._clear()
        yield from waiting

    def refuse(self, error: IsterError) -> None:
        for append in self._clear():
            append.sink.refused(append.token, error.again())

    def _clear(self) -> deque[HeldAppend]:
        waiting, self._waiting, self._bytes = self._waiting, deque(), 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return waiting
