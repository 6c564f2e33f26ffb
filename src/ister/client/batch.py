"""One frame on its way to the log, those who wait for it, and how it changes its identity.

A batch is settled once, by an answer or by an error, and then tells everybody. It is the sink of its own
append, so that an acknowledgement costs no future beyond those that callers await.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from ister.errors import ConnectionFailed, CorruptFrame, IsterError
from ister.frame import FRAME_LIMIT, Frame, decode, reidentified
from ister.protocol.codec import APPEND_ANSWER, AppendAnswer, Bytes, decode_appended
from ister.protocol.messages import ANY_OFFSET


class Owner(Protocol):
    """Who sent the batch, and decides what its answers mean."""

    def acknowledged(self, batch: Batch, answer: AppendAnswer) -> None: ...

    def refused(self, batch: Batch, error: IsterError) -> None: ...


class Batch:
    """One frame on its way, and those who wait for it."""

    __slots__ = (
        "_owner",
        "_waiters",
        "_watchers",
        "answer",
        "attempts",
        "count",
        "deadline",
        "doubtful",
        "error",
        "expected_offset",
        "frame",
        "held_bytes",
        "is_first",
        "min_index",
        "told",
        "told_index",
    )

    def __init__(self, owner: Owner, frame: bytes, count: int, min_index: int = 0) -> None:
        self._owner = owner
        self._waiters: list[tuple[asyncio.Future[int], int]] = []
        self._watchers: list[asyncio.Future[None]] = []
        self.frame = frame
        self.count = count
        self.min_index = min_index
        """What a node must know of the metadata to take it: what was known when it was put (I3)."""
        self.expected_offset = ANY_OFFSET
        """Where it must be appended, or not at all."""
        self.is_first = False
        """Its producer's first: a log that forgot its producer cannot tell it from one never sent (A5)."""
        self.told_index: int | None = None
        """Of a first one: the metadata that was known before it was sent at all; None if it was not yet."""
        self.held_bytes = len(frame)
        """What it takes of the buffer of whoever made it."""
        self.attempts = 0
        self.deadline = 0.0
        self.doubtful = False
        """An attempt ended without anybody knowing whether the frame was appended."""
        self.answer: AppendAnswer | None = None
        self.error: IsterError | None = None
        self.told = False
        """Somebody has been given the error."""

    @property
    def is_settled(self) -> bool:
        return self.answer is not None or self.error is not None

    def wait(self, row: int) -> asyncio.Future[int]:
        """A future of the offset of one of its records; each caller has its own, free to be cancelled."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self.is_settled:
            self._tell(future, row)
        else:
            self._waiters.append((future, row))
        return future

    async def settled(self) -> None:
        """Wait for the outcome without asking for it: who flushes is not told of errors in others' stead."""
        if not self.is_settled:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._watchers.append(future)
            await future

    def adopt(self, waiters: list[tuple[asyncio.Future[int], int]]) -> None:
        """Take over those who waited for its records before it was a frame."""
        for future, row in waiters:
            if self.is_settled:
                self._tell(future, row)
            else:
                self._waiters.append((future, row))

    def settle(self, answer: AppendAnswer | None, error: IsterError | None) -> None:
        self.answer, self.error = answer, error
        self.frame = b""
        waiters, self._waiters = self._waiters, []
        for future, row in waiters:
            self._tell(future, row)
        for watcher in self._watchers:
            if not watcher.done():
                watcher.set_result(None)

    def _tell(self, future: asyncio.Future[int], row: int) -> None:
        if future.done():
            return  # its caller was cancelled
        if self.answer is not None:
            future.set_result(self.answer.base_offset + row)
        elif self.error is not None:
            self.told = True
            future.set_exception(self.error.again())

    # As the sink of its own append.

    def answered(self, header: bytes, payload: Bytes) -> None:
        if len(header) < APPEND_ANSWER.size:
            self.failed(ConnectionFailed(f"an append was answered with a header of {len(header)} bytes"))
        else:
            self._owner.acknowledged(self, decode_appended(header))

    def failed(self, error: IsterError) -> None:
        self._owner.refused(self, error)


def reidentify(frame: bytes, producer_id: int, sequence: int) -> bytes:
    """The same records under another producer and sequence."""
    whole = decode(frame, limit=FRAME_LIMIT)
    if not isinstance(whole, Frame):
        raise CorruptFrame(f"a frame of this client's own is damaged in memory: {whole}")
    return reidentified(whole, producer_id, sequence)
