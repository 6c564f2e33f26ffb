"""What a node does beside its requests: tasks that nobody waits for, and what it means when one fails.

A node that goes on without its failover or its repair looks alive, and is not. So work that it is not whole
without ends the node with it, whatever it met; and so does a defect anywhere. An error of Ister's or of the
disk that ends other work costs that work alone: it is reported to the loop, which logs it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, cast

from ister.errors import InvariantBroken, IsterError

log = logging.getLogger("ister.background")


class Background:
    """The tasks of one part of a node."""

    def __init__(self, on_fatal: Callable[[IsterError], None]) -> None:
        self._on_fatal = on_fatal
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False

    def spawn(self, work: Awaitable[None], *, vital: bool = False) -> None:
        """Begin it, and look after its end. `vital` is what the node is not whole without."""
        task = asyncio.get_running_loop().create_task(cast(Coroutine[Any, Any, None], work))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, vital))

    def _ended(self, vital: bool, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = task.exception() if not task.cancelled() else None
        if error is None:
            return
        name = getattr(task.get_coro(), "__qualname__", task.get_name())
        is_known = isinstance(error, IsterError | OSError) and not isinstance(error, InvariantBroken)
        if self._is_stopping and is_known:
            log.debug("%s ended with the node: %s", name, error)
        elif self._is_stopping or (is_known and not vital):
            report = {"message": f"{name} came to nothing", "exception": error, "task": task}
            task.get_loop().call_exception_handler(report)
        else:
            fatal = InvariantBroken(f"{name} ended: {type(error).__name__}: {error}")
            fatal.__cause__ = error
            self._on_fatal(fatal)

    async def stop(self) -> None:
        """Cancel all of it, and wait until it is over."""
        self._is_stopping = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
