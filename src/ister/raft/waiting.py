"""Who waits for the log: for an entry proposed here, for a read to be confirmed, for an index to be applied.

Each of them hears once: what came of it, what came instead, or that its time is over. Nobody who has stopped
waiting is remembered.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ister.errors import IsterError, NotLeader, RequestTimeout
from ister.raft.messages import Entry


class Waiting:
    def __init__(self) -> None:
        self._entries: dict[int, tuple[int, asyncio.Future[Any]]] = {}
        """By index: the term in which it was proposed, and who proposed it."""
        self._indexes: dict[asyncio.Future[None], int] = {}

    async def for_entry(self, index: int, term: int, timeout: float) -> Any:
        """What the state machine made of the entry. `NotLeader` if another leader's came in its place."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._entries[index] = (term, future)
        try:
            return await _within(timeout, future, f"committing index {index}")
        finally:
            if index in self._entries and self._entries[index][1] is future:
                del self._entries[index]

    async def for_index(self, index: int, timeout: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._indexes[future] = index
        await self._hear(future, timeout, f"applying metadata up to index {index}")

    async def for_read(self, future: asyncio.Future[None], timeout: float) -> None:
        """See `read_confirmed`."""
        await self._hear(future, timeout, "confirming leadership")

    async def _hear(self, future: asyncio.Future[None], timeout: float, what: str) -> None:
        try:
            await _within(timeout, future, what)
        finally:
            self._indexes.pop(future, None)

    def read_confirmed(self, future: asyncio.Future[None], index: int) -> None:
        """It may be answered once `index` is applied; if anybody waits for it still."""
        if not future.done():
            self._indexes[future] = index

    def entry_applied(self, entry: Entry, result: Any) -> None:
        term, future = self._entries.pop(entry.index, (0, None))
        if future is not None and not future.done():
            if term == entry.term:
                future.set_result(result)
            else:
                future.set_exception(NotLeader("metadata: another leader's entry came instead"))

    def applied_up_to(self, index: int) -> None:
        for future in [future for future, wanted in self._indexes.items() if wanted <= index]:
            del self._indexes[future]
            if not future.done():
                future.set_result(None)

    def end(self, error: IsterError) -> None:
        """Nothing will come any more."""
        waiting = [*(future for _, future in self._entries.values()), *self._indexes]
        self._entries.clear()
        self._indexes.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(error.again())


async def _within(timeout: float, future: asyncio.Future[Any], what: str) -> Any:
    timer = asyncio.get_running_loop().call_later(timeout, _expire, future, timeout, what)
    try:
        return await future
    finally:
        timer.cancel()


def _expire(future: asyncio.Future[Any], timeout: float, what: str) -> None:
    if not future.done():
        future.set_exception(
            RequestTimeout(
                f"{what} took longer than {timeout:.1f} s",
                hint="The cluster may have no majority. `ister cluster status` on several nodes tells.",
            )
        )
