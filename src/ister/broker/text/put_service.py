"""PUT at the node that a client talks to: the record goes to whichever node takes it, and the client is told.

A node that could not be reached, or that leads no longer, has not taken the record: while a failover goes on
the record waits here, and is tried again, up to `max_held_ms`. What was given away and is not answered is in
doubt, and its client is told so in time: there is no request without an end. A client of this protocol is no
producer whose repeats are recognised (A5), so a record in doubt is never sent again here.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ister.broker.text.node import TextNode
from ister.errors import SAME_PRODUCER_HINT, IsterError, NodeUnreachable, NotLeader, RequestTimeout
from ister.io.clock import monotonic

FIRST_PAUSE_SECONDS: Final = 0.02
LONGEST_PAUSE_SECONDS: Final = 0.2
_NOT_TAKEN: Final = (NotLeader, NodeUnreachable)
_REPEATS: Final = "If it is sent again it may be stored twice."


class PutService:
    def __init__(self, node: TextNode, *, held_seconds: float = 5.0, answer_seconds: float = 10.0) -> None:
        """`held_seconds` bounds the wait for a node that takes the record, `answer_seconds` that node's."""
        self._node = node
        self._held_seconds = held_seconds
        self._answer_seconds = answer_seconds

    async def put(self, name: str, payload: bytes) -> None:
        """Append to a topic by its full name; returns once the record is acknowledged."""
        until = monotonic() + self._held_seconds
        try:
            async with asyncio.timeout_at(until + self._answer_seconds):
                await self._append(name, payload, until)
        except TimeoutError as error:
            seconds = self._held_seconds + self._answer_seconds
            raise RequestTimeout(
                f"a record for {name} was not acknowledged in {seconds:g} s: it may or may not be stored",
                hint=f"`ister topic describe {name}` says what it waits for. {_REPEATS}",
            ) from error
        except IsterError as error:
            if error.hint == SAME_PRODUCER_HINT:  # which this client is not
                raise type(error)(error.message, hint=f"The outcome is unknown. {_REPEATS}") from error
            raise

    async def _append(self, name: str, payload: bytes, until: float) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                await self._node.append_one(name, payload)
                return
            except _NOT_TAKEN as error:
                if monotonic() + pause > until:
                    raise self._not_taken(name, error) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _not_taken(self, name: str, error: IsterError) -> NotLeader:
        seconds = self._held_seconds
        return NotLeader(
            f"no node took a record for {name} in {seconds:g} s (max_held_ms): {error.message}",
            hint=f"Nothing was stored. Send it again; `ister topic describe {name}` says what it waits for.",
        )
