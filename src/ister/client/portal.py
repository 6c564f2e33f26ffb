"""An event loop for callers that have none: in a thread of its own, or in theirs.

Work that is handed over runs on the loop while its caller waits here. Whatever ends that wait early, a
timeout or Ctrl-C, cancels the work too. After `stop` nothing runs any more and every call says so.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from ister.errors import LogClosed

T = TypeVar("T")


class Portal:
    """The thread with the event loop, and the way to it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="ister-sync", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            _finish(self.loop)

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Do it on the loop and wait here. Whatever ends the wait early also cancels the work."""
        if not self.is_open:
            work.close()
            raise LogClosed("this log is closed", hint="Call ister.sync.connect again.")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        if self.is_open:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()


class Turns:
    """The same without a thread: the loop runs while its caller waits, and stands still in between.

    For one thread that does nothing else meanwhile, like a reader that hands on each answer: it saves the
    way to another thread and back, and both their fights for the interpreter. What was asked for ahead
    arrives in the socket. A caller that stays away for longer than an answer may take finds its connection
    broken, and its request is sent again.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    @property
    def is_open(self) -> bool:
        return not self.loop.is_closed()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        if not self.is_open:
            work.close()
            raise LogClosed("this log is closed", hint="Call ister.sync.connect again.")
        task = self.loop.create_task(work)
        try:
            return self.loop.run_until_complete(asyncio.wait_for(task, timeout_s))
        except BaseException:
            task.cancel()
            raise

    def stop(self) -> None:
        if self.is_open:
            _finish(self.loop)


def _finish(loop: asyncio.AbstractEventLoop) -> None:
    """End what still runs on it, and close it."""
    try:
        loop.run_until_complete(_end_all())
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


async def _end_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
