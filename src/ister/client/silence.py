"""Whether a broker that says nothing is still there.

A machine that loses its power says no goodbye, and neither does a process that hangs: its system even takes
further connections. So where an answer is due and nothing comes for a while, another connection is made to
the same place: if nobody greets there either, this one is given up, long before what it waits for is overdue.
A broker that is only slow, reads nothing for a while, or refuses, does greet.

A request that asks the broker to wait by itself may rightly be unanswered for long. While there are only such
ones, the broker is asked now and then, on the same connection, for what it answers at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from ister.errors import IsterError
from ister.io.clock import monotonic

SILENCE_SECONDS: Final = 3.0
"""So long nothing may come where something is due, until it is tried whether the broker is there; and so long
it has to greet then."""
_ASK_AFTER_SECONDS: Final = 2.0
"""So long nothing may come where nothing is due, until something is asked for that has to be answered before
`SILENCE_SECONDS` are over."""


class Line(Protocol):
    """What is listened to."""

    heard_at: float
    """When the last bytes came."""

    def first_due(self) -> float | None:
        """From when on silence says something; None if nothing is awaited, or nothing will come any more."""
        ...

    def ask(self, due: float) -> None:
        """Ask the broker for an answer that is due then."""
        ...

    def fell_silent(self, why: str) -> None:
        """The broker is not there."""
        ...


class Listening:
    """To one line, as long as an answer is awaited on it."""

    def __init__(self, line: Line, find_there: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """`find_there` raises `ConnectionFailed` if the broker cannot be reached."""
        self._line = line
        self._find_there = find_there
        self._loop = asyncio.get_running_loop()
        self._since = 0.0
        """Silence before this is not held against the broker: nothing was awaited, or it did greet."""
        self._next: asyncio.TimerHandle | asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Something is awaited from now on, and nothing was before."""
        self._since = monotonic()
        if self._next is None:
            self._look_at(self._since + _ASK_AFTER_SECONDS)

    def end(self) -> None:
        if isinstance(self._next, asyncio.TimerHandle):
            self._next.cancel()

    def _look_at(self, time: float) -> None:
        self._next = self._loop.call_at(time, self._look)

    def _look(self) -> None:
        self._next = None
        due = self._line.first_due()
        if due is None:
            return
        now, quiet_since = monotonic(), max(self._line.heard_at, self._since)
        long_enough = quiet_since + SILENCE_SECONDS
        if now >= max(due, long_enough):
            self._next = self._loop.create_task(self._find_out())
        elif due <= long_enough:
            self._look_at(long_enough)
        elif now < quiet_since + _ASK_AFTER_SECONDS:
            self._look_at(quiet_since + _ASK_AFTER_SECONDS)
        else:
            due = now + SILENCE_SECONDS - _ASK_AFTER_SECONDS
            self._line.ask(due)
            self._look_at(due)

    async def _find_out(self) -> None:
        heard_at = self._line.heard_at
        try:
            await self._find_there()
        except IsterError as error:
            if heard_at == self._line.heard_at:
                self._line.fell_silent(error.message)
                return
        self._next = None
        if self._line.first_due() is not None:
            self.begin()
