"""The producer for programs without an event loop: records cross over to the loop in heaps, not one by one.

Threads put records into a list; the first of them wakes the loop, which takes all that has gathered and gives
it to the asynchronous producer in the order of the calls. No more than `_HANDED_BYTES` wait there: then
`submit` blocks. A caller that stops waiting takes nothing along that others have handed over.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

from ister.client.gathering import Receipt as AsyncReceipt
from ister.client.gathering import as_bytes, measured
from ister.client.portal import Portal
from ister.client.producer import Producer as AsyncProducer
from ister.columns import RecordHeaders
from ister.errors import InvariantBroken, IsterError, LogClosed

_HANDED_BYTES: Final = 1024 * 1024
"""How much may be on its way from callers' threads to the loop's."""


class _Handed(NamedTuple):
    receipt: Receipt
    value: bytes | None
    key: bytes | None
    headers: RecordHeaders | None
    timestamp_us: int | None


class Receipt:
    """A record that was taken. `result()` waits for its offset, or raises its error."""

    __slots__ = ("_producer", "error", "taken")

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.taken: AsyncReceipt | None = None
        self.error: IsterError | None = None

    def result(self, timeout_s: float | None = None) -> int:
        """The offset; a `TimeoutError` leaves the record on its way."""
        return self._producer.wait_for(self, timeout_s)


class Producer:
    """As the asynchronous one; its methods may be called from any thread."""

    def __init__(self, portal: Portal, producer: AsyncProducer) -> None:
        self._portal = portal
        self._producer = producer
        self._changed = threading.Condition()
        self._handed: list[_Handed] = []
        self._handed_bytes = 0
        self._drain_due = False
        self._drain_lock = asyncio.Lock()
        self._drains: set[asyncio.Task[None]] = set()

    @property
    def topic(self) -> str:
        return self._producer.topic

    def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: RecordHeaders | None = None,
        timestamp_us: int | None = None,
    ) -> int:
        receipt = self.submit(value, key=key, headers=headers, timestamp_us=timestamp_us)
        return receipt.result()

    def submit(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: RecordHeaders | None = None,
        timestamp_us: int | None = None,
    ) -> Receipt:
        """Take one record, waiting only for room in the buffer."""
        if type(value) is not bytes and value is not None:
            value = as_bytes(value)
        size = measured(value, key, headers)
        receipt = Receipt(self)
        with self._changed:
            while self._handed_bytes >= _HANDED_BYTES and self._portal.is_open:
                self._changed.wait(1.0)  # the portal may have been closed meanwhile, with nobody to tell
            self._handed.append(_Handed(receipt, value, key, headers, timestamp_us))
            self._handed_bytes += size
            first, self._drain_due = not self._drain_due, True
        if first:
            self._start(self._begin_drain)
        return receipt

    def send_many(
        self,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[RecordHeaders] | None = None,
        timestamps_us: Sequence[int] | None = None,
    ) -> Sequence[int]:
        async def work() -> Sequence[int]:
            await self._drained()
            return await self._producer.send_many(
                values, keys=keys, headers=headers, timestamps_us=timestamps_us
            )

        return self._portal.run(work())

    def flush(self) -> None:
        """Wait until all that was taken is acknowledged; raises the first error among it."""

        async def work() -> None:
            await self._drained()
            await self._producer.flush()

        self._portal.run(work())

    def close(self) -> None:
        async def work() -> None:
            await self._drained()
            await self._producer.close()

        self._portal.run(work())

    def wait_for(self, receipt: Receipt, timeout_s: float | None) -> int:
        async def work() -> int:
            await self._drained()
            if receipt.error is not None:
                raise receipt.error
            if receipt.taken is None:
                raise InvariantBroken("a record was neither taken nor refused")
            return await receipt.taken

        return self._portal.run(work(), timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif self._portal.is_open:
            self._portal.run(self._producer.__aexit__(kind, error, trace))

    # On the loop's thread.

    def _start(self, call: Callable[[], object]) -> None:
        if not self._portal.is_open:
            raise LogClosed("this log is closed", hint="Call ister.sync.connect again.")
        self._portal.loop.call_soon_threadsafe(call)

    def _begin_drain(self) -> asyncio.Task[None]:
        task = self._portal.loop.create_task(self._drain())
        self._drains.add(task)  # the loop itself holds tasks only weakly
        task.add_done_callback(self._drains.discard)
        return task

    async def _drained(self) -> None:
        # A caller that stops waiting must not take along what others have handed over.
        await asyncio.shield(self._begin_drain())

    async def _drain(self) -> None:
        """Pass on all that was handed over, in order. Returns when it has been taken, or refused."""
        async with self._drain_lock:
            while True:
                with self._changed:
                    handed, self._handed = self._handed, []
                    self._handed_bytes = 0
                    self._drain_due = bool(handed)
                    self._changed.notify_all()
                if not handed:
                    return
                for item in handed:
                    await self._pass_on(item)

    async def _pass_on(self, item: _Handed) -> None:
        try:
            item.receipt.taken = await self._producer.submit(
                item.value, key=item.key, headers=item.headers, timestamp_us=item.timestamp_us
            )
        except IsterError as error:
            item.receipt.error = error
