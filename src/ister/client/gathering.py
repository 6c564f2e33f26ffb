"""Records on their way into a frame: the columns of the batch that is being gathered, and its receipts.

A receipt costs a record one small object; who waits for it costs one future. A batch of a thousand records
that nobody waits for has none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, Final

from ister.client.batch import Batch
from ister.columns import RecordHeaders
from ister.errors import BadRequest, IsterError

RECORD_OVERHEAD: Final = 16
"""Bytes that a record costs besides its own: its ends in the columns, its place in a list."""


class Gathering:
    """Columns that become a frame when the batch is cut."""

    __slots__ = ("_batch", "_waiters", "error", "headers", "keys", "size", "times", "told", "values")

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.times: list[int] | None = None
        self.headers: list[RecordHeaders] | None = None
        self.size = 0
        self._batch: Batch | None = None
        self.error: IsterError | None = None
        self.told = False
        self._waiters: list[tuple[asyncio.Future[int], int]] = []

    def fits(self, timestamp_us: int | None) -> bool:
        """Event times are a column that a frame has or has not: all of its records are of one kind."""
        return not self.values or (timestamp_us is None) == (self.times is None)

    def add(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: RecordHeaders | None,
        timestamp_us: int | None,
    ) -> None:
        if timestamp_us is not None:
            if self.times is None:
                self.times = []
            self.times.append(timestamp_us)
        if key is not None and self.keys is None:
            self.keys = [None] * len(self.values)
        if headers and self.headers is None:
            self.headers = [()] * len(self.values)
        self.values.append(value)
        if self.keys is not None:
            self.keys.append(key)
        if self.headers is not None:
            self.headers.append(headers or ())

    def wait(self, row: int) -> asyncio.Future[int]:
        if self._batch is not None:
            return self._batch.wait(row)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self.error is not None:
            self.told = True
            future.set_exception(self.error.again())
        else:
            self._waiters.append((future, row))
        return future

    def become(self, batch: Batch) -> None:
        """It was cut, and is this frame now."""
        self._batch = batch
        batch.adopt(self._waiters)
        self._forget()

    def fail(self, error: IsterError) -> None:
        """It was cut and became no frame."""
        self.error = error
        for future, _ in self._waiters:
            if not future.done():
                self.told = True
                future.set_exception(error.again())
        self._forget()

    def _forget(self) -> None:
        # Receipts hold on to this object for as long as their owners like; the records need not stay.
        self.values, self.keys, self.times, self.headers, self._waiters = [], None, None, None, []


class Receipt:
    """A record that was taken. Awaiting it gives its offset once it is acknowledged, or its error."""

    __slots__ = ("_gathering", "_row")

    def __init__(self, gathering: Gathering, row: int) -> None:
        self._gathering = gathering
        self._row = row

    def __await__(self) -> Generator[Any, None, int]:
        return self._gathering.wait(self._row).__await__()


def measured(value: bytes | None, key: bytes | None, headers: RecordHeaders | None) -> int:
    """What a record with a key or headers takes of the buffer; raises if it is not made of bytes."""
    if key is not None and not isinstance(key, bytes):
        raise BadRequest(f"a key must be bytes, not {type(key).__name__}", hint="Encode it first.")
    size = RECORD_OVERHEAD + (len(value) if value is not None else 0) + (len(key) if key is not None else 0)
    for name, data in headers or ():
        if not isinstance(name, str) or not isinstance(data, bytes):
            raise BadRequest(f"a header must be (str, bytes), not ({name!r}, {data!r})")
        size += len(name) + len(data) + 8
    return size


def as_bytes(value: object) -> bytes:
    """A copy of what is bytes in another form, since it may change while the record waits."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise BadRequest(f"a record must be bytes, not {type(value).__name__}", hint="Encode text first.")
