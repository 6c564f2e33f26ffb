"""A thread with an event loop of its own, and the way to it from other threads.

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
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()

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
