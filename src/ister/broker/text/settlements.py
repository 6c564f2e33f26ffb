"""What this node has to tell the owners of other nodes' cursors: which records left, which came back.

The client has its reply already, so nothing waits for this. For each owner one task sends what has gathered,
many at a time, and tries again while the owner can't be reached. What could not be told within the bound
after which an owner takes a record back anyway is dropped: the record is then repeated, never lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final, NamedTuple

from ister.broker.text.node import TextNode
from ister.broker.text.shared_cursor import SETTLE_SECONDS, DeliveryId
from ister.errors import IsterError
from ister.io.clock import monotonic
from ister.logs import fields
from ister.protocol.codec import encode_header
from ister.protocol.peer import GetSettled, PeerKind, node_of

log = logging.getLogger("ister.broker.get")

ROWS_IN_A_MESSAGE: Final = 500
MAX_WAITING: Final = 10_000
"""For one owner; beyond it the oldest are dropped, which its own bound is about to take back anyway."""
FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 1.0


class _Row(NamedTuple):
    kind: PeerKind
    delivery_id: DeliveryId | None
    abandoned: tuple[int, int, int] | None
    since: float


class Settlements:
    def __init__(self, node: TextNode, *, keep_seconds: float = SETTLE_SECONDS) -> None:
        self._node = node
        self._keep_seconds = keep_seconds
        self._waiting: dict[int, deque[_Row]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def done(self, owner: int, delivery_id: DeliveryId) -> None:
        self._add(owner, PeerKind.GET_DONE, delivery_id)

    def returned(self, owner: int, delivery_id: DeliveryId) -> None:
        self._add(owner, PeerKind.GET_RETURNED, delivery_id)

    def abandoned(self, owner: int, topic_uid: int, request: int) -> None:
        self._add(owner, PeerKind.GET_RETURNED, None, (topic_uid, self._node.member, request))

    async def stop(self, within_seconds: float) -> None:
        """Tell what can still be told."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=within_seconds)
        left = list(self._tasks.values())
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _add(
        self,
        owner: int,
        kind: PeerKind,
        delivery_id: DeliveryId | None,
        abandoned: tuple[int, int, int] | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        waiting = self._waiting.setdefault(owner, deque(maxlen=MAX_WAITING))
        waiting.append(_Row(kind, delivery_id, abandoned, monotonic()))
        if owner not in self._tasks:
            self._tasks[owner] = loop.create_task(self._send_all(owner, waiting), name=f"get-tell-{owner}")

    async def _send_all(self, owner: int, waiting: deque[_Row]) -> None:
        pause = FIRST_PAUSE_SECONDS
        try:
            while waiting:
                rows = _of_one_kind(waiting)
                try:
                    await self._node.peer_request(owner, rows[0].kind, _header(rows), b"")
                    pause = FIRST_PAUSE_SECONDS
                except IsterError as error:
                    self._keep(owner, waiting, rows, error)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        finally:
            self._tasks.pop(owner, None)
            self._waiting.pop(owner, None)

    def _keep(self, owner: int, waiting: deque[_Row], rows: list[_Row], error: IsterError) -> None:
        """Put back, in front, what is worth telling later; a full queue keeps the newer ones."""
        oldest = monotonic() - self._keep_seconds
        kept = [row for row in rows if row.since > oldest and error.retriable]
        room = MAX_WAITING - len(waiting)
        waiting.extendleft(kept[: -room - 1 : -1] if room else [])
        dropped = len(rows) - min(len(kept), room)
        if dropped:
            log.warning(
                "the owner of a GET cursor could not be told of %d records: they may repeat: %s",
                dropped,
                error.message,
                extra=fields(owner=node_of(owner)),
            )


def _of_one_kind(waiting: deque[_Row]) -> list[_Row]:
    """The first ones that go into one message; removed from the queue."""
    rows = [waiting.popleft()]
    while waiting and len(rows) < ROWS_IN_A_MESSAGE and waiting[0].kind is rows[0].kind:
        rows.append(waiting.popleft())
    return rows


def _header(rows: list[_Row]) -> bytes:
    settled: list[tuple[int, int, int, int]] = [
        row.delivery_id for row in rows if row.delivery_id is not None
    ]
    abandoned = [row.abandoned for row in rows if row.abandoned is not None]
    return encode_header(GetSettled(settled, abandoned))
