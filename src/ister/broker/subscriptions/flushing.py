"""Storing what the subscriptions of this node have come to: one command for all of them (S2).

Due 1,000 acknowledgements or 5 s after the last one, whichever is first, by a timer: a consumer that
acknowledges once and then never again has its cursor stored too (D12). At once where somebody waits for it,
and when the node stops. What an owner has not stored dies with it: those records are delivered again, and
none is skipped.

An owner that could not store for `GRACE_SECONDS` hands out nothing more: it may not be the owner any more.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ister.broker.subscriptions.owned import Owned
from ister.errors import IsterError, StaleDelivery
from ister.io.clock import monotonic
from ister.logs import fields
from ister.metadata.commands import FlushRow, FlushSubscriptions

if TYPE_CHECKING:
    from ister.broker.subscriptions.service import Subscriptions

log = logging.getLogger("ister.broker.subscriptions")

FLUSH_SECONDS: Final = 5.0
FLUSH_ACKNOWLEDGEMENTS: Final = 1_000
LEAST_SECONDS: Final = 0.1
"""Between two flushes for which nobody waits."""
GRACE_SECONDS: Final = 10.0
ROWS_IN_A_FLUSH: Final = 500


class Flushing:
    def __init__(self, service: Subscriptions, flush_seconds: float = FLUSH_SECONDS) -> None:
        self._service = service
        self._flush_seconds = flush_seconds
        self._dirty: dict[int, Owned] = {}
        self._acknowledgements = 0
        self._due = asyncio.Event()
        """Something is to be stored."""
        self._soon = asyncio.Event()
        """... and not only when the timer says so."""
        self._now = asyncio.Event()
        """... and somebody waits for it."""
        self._turn = asyncio.Lock()

    def note(self, owned: Owned, acknowledgements: int) -> None:
        self._dirty[owned.uid] = owned
        if owned.unstored_since is None:
            owned.unstored_since = monotonic()
        self._due.set()
        self._acknowledgements += acknowledgements
        if self._acknowledgements >= FLUSH_ACKNOWLEDGEMENTS:
            self._soon.set()

    def hurry(self) -> None:
        """Do not wait for the timer, if there is something to store."""
        self._soon.set()

    def forget(self, owned: Owned) -> None:
        if self._dirty.get(owned.uid) is owned:
            del self._dirty[owned.uid]

    async def keep(self) -> None:
        while True:
            await self._due.wait()
            try:
                async with asyncio.timeout(self._flush_seconds):
                    await self._soon.wait()
            except TimeoutError:
                pass
            await self.flush()
            await asyncio.sleep(LEAST_SECONDS)

    async def store(self, owned: Owned) -> None:
        """Returns when all that was acknowledged so far is stored; raises if it was not."""
        wanted = owned.row()
        async with self._turn:
            await self._propose([owned])
        if owned.stored.cursor < wanted.cursor or not self._service.owns(owned):
            raise StaleDelivery(f"{owned.name} changed hands before it was stored")

    async def flush(self) -> None:
        async with self._turn:
            self._due.clear()
            self._soon.clear()
            self._acknowledgements = 0
            dirty, self._dirty = list(self._dirty.values()), {}
            for first in range(0, len(dirty), ROWS_IN_A_FLUSH):
                batch = dirty[first : first + ROWS_IN_A_FLUSH]
                try:
                    await self._propose(batch)
                except IsterError as error:
                    log.warning("cursors of subscriptions not stored yet: %s", error.message)
                    for owned in batch:
                        if self._service.owns(owned):
                            self.note(owned, 0)

    async def _propose(self, batch: list[Owned]) -> None:
        metadata = self._service.metadata
        rows = [owned.row() for owned in batch]
        await metadata.propose(FlushSubscriptions(metadata.member, rows))
        for owned, row in zip(batch, rows, strict=True):
            self._stored(owned, row)

    def _stored(self, owned: Owned, row: FlushRow) -> None:
        """See what came of a row: the metadata says whose the subscription is."""
        state = self._service.state_of(owned)
        if state is None or not self._service.owns(owned) or state.cursor < row.cursor:
            log.warning("subscription lost", extra=fields(subscription=owned.name, epoch=owned.epoch))
            self._service.drop(owned)
            return
        owned.stored = row
        owned.unstored_since = None
        if owned.row() != row:
            self.note(owned, 0)
