"""What runs when on virtual time: asyncio's queue of callbacks and its timers, without its selector.

It does what `asyncio.BaseEventLoop` does, in fewer steps: a simulation spends most of its time here.
Callbacks run in the order in which they were scheduled, timers in the order of their times, those of one time
in the order in which they were set. When nothing is ready the clock moves to the next timer, at once.

A process may be frozen: what comes due in it is set aside, in its order, until it is thawed.
"""

from __future__ import annotations

import asyncio
import contextvars
from asyncio import base_events
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

from ister.testing.process import SimProcess, process_of

_RESOLUTION = 1e-9
_KEPT_CANCELLED = 100
"""So many cancelled timers may stay in the queue, and then as many as there are others."""


class ScheduledLoop(base_events.BaseEventLoop):
    """The queue, the timers and the clock. `_count_turn` is told of every turn."""

    _ready: deque[asyncio.Handle]  # the base class makes it

    def __init__(self) -> None:
        super().__init__()
        self._clock_resolution = _RESOLUTION
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self._cancelled_count = 0
        self._frozen: dict[SimProcess, list[asyncio.Handle]] = {}

    def time(self) -> float:
        return self._now

    # The base ties args to the callback's own; here they pass through.

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self._closed:  # type: ignore[attr-defined]
            raise RuntimeError("the simulated event loop is closed")
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        if self._closed:  # type: ignore[attr-defined]
            raise RuntimeError("the simulated event loop is closed")
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_count += 1
        heappush(self._timers, (when, self._timer_count, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """asyncio's own call: most timers are timeouts that never come, and would only fill the queue."""
        self._cancelled_count += 1
        if self._cancelled_count > _KEPT_CANCELLED and 2 * self._cancelled_count > len(self._timers):
            self._timers = [timer for timer in self._timers if not timer[2].cancelled()]
            heapify(self._timers)
            self._cancelled_count = 0

    def _count_turn(self, next_time: float | None) -> None:
        """Another turn begins. `next_time` is where the clock goes: None if nothing will ever happen."""

    def _run_once(self) -> None:
        """One turn: all that is ready now, and nothing that becomes ready by it."""
        ready = self._ready
        while self._timers and self._timers[0][2].cancelled():
            heappop(self._timers)
        if ready or self._stopping:  # type: ignore[attr-defined]
            self._count_turn(self._now)
        elif self._timers:
            self._count_turn(max(self._now, self._timers[0][0]))
        else:
            self._count_turn(None)
        due = self._now + _RESOLUTION
        timers = self._timers
        while timers and timers[0][0] < due:
            ready.append(heappop(timers)[2])
        if self._frozen:
            self._set_frozen_aside()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()

    # Processes that are stopped for a while.

    def freeze(self, process: SimProcess) -> None:
        """For `SimProcess.freeze`: from the next turn on, set aside what comes due in this process."""
        self._frozen[process] = []

    def thaw(self, process: SimProcess) -> None:
        for handle in self._frozen.pop(process):
            self._ready.append(handle)

    def _set_frozen_aside(self) -> None:
        due = list(self._ready)
        self._ready.clear()
        for handle in due:
            process = process_of(handle._context)  # type: ignore[attr-defined]
            aside = self._frozen.get(process) if process is not None else None
            if aside is None:
                self._ready.append(handle)
            else:
                aside.append(handle)
