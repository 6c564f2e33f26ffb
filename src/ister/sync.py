"""The client without an event loop: the same names, for plain programs, notebooks and threads.

    from ister import sync

    with sync.connect("127.0.0.1:9091") as log:
        log.append("orders", [b"one", b"two"])
        for record in log.read("orders"):
            ...

One thread of its own runs the event loop and the asynchronous client. Reading crosses over once for each
fetched chunk and producing once for as many records as have gathered meanwhile, never once for each record.
Any number of threads may share a log. A wait that is interrupted (Ctrl-C) is cancelled on the other side too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

from ister.client import log as asynchronous
from ister.client.gathering import Receipt as AsyncReceipt
from ister.client.gathering import as_bytes, measured
from ister.client.log import Appended
from ister.client.producer import Producer as AsyncProducer
from ister.client.reader import Chunk, Place, batches_in, clipped
from ister.client.reader import Reader as AsyncReader
from ister.columns import RecordHeaders
from ister.errors import ConnectionFailed, InvariantBroken, IsterError, LogClosed
from ister.frame import Frame, Record
from ister.protocol.messages import ClusterAnswer, NodeAnswer, StatsAnswer, TopicDescription
from ister.protocol.recovery import TopicRecovery

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_HANDED_BYTES: Final = 1024 * 1024
"""How much may be on its way from callers' threads to the loop's."""


class _Portal:
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


def connect(bootstrap: str, **options: Any) -> Log:
    """As `ister.connect`, with the same options; to be used in a `with`."""
    return Log(bootstrap, options)


class Log:
    def __init__(self, bootstrap: str, options: dict[str, Any]) -> None:
        self._log = asynchronous.connect(bootstrap, **options)
        self._portal: _Portal | None = None

    def __enter__(self) -> Self:
        self._portal = _Portal()
        try:
            self._run(self._log.__aenter__())
        except BaseException:
            self._portal.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        portal = self._portal
        if portal is not None and portal.is_open:
            try:
                portal.run(self._log.close())
            finally:
                portal.stop()

    def append(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps_us: Sequence[int] | None = None,
        headers: Sequence[RecordHeaders] | None = None,
        compression: str = "none",
    ) -> Appended:
        return self._run(
            self._log.append(
                topic,
                values,
                keys=keys,
                timestamps_us=timestamps_us,
                headers=headers,
                compression=compression,
            )
        )

    def producer(self, topic: str, **options: Any) -> Producer:
        async def make() -> AsyncProducer:
            return self._log.producer(topic, **options)

        return Producer(self._open_portal(), self._run(make()))

    def read(
        self,
        topic: str,
        *,
        start: Place = "earliest",
        end: int | None = None,
        follow: bool = False,
        last: int | None = None,
        max_bytes: int = 1024 * 1024,
        read_from: str = "leader",
    ) -> Reader:
        reader = self._log.read(
            topic,
            start=start,
            end=end,
            follow=follow,
            last=last,
            max_bytes=max_bytes,
            read_from=read_from,
        )
        return Reader(self._open_portal(), reader)

    def create_topic(self, topic: str, *, if_absent: bool = False, **settings: int | str) -> TopicDescription:
        return self._run(self._log.create_topic(topic, if_absent=if_absent, **settings))

    def delete_topic(self, topic: str) -> None:
        self._run(self._log.delete_topic(topic))

    def alter_topic(self, topic: str, **settings: int | str) -> TopicDescription:
        return self._run(self._log.alter_topic(topic, **settings))

    def describe_topic(self, topic: str) -> TopicDescription:
        return self._run(self._log.describe_topic(topic))

    def list_topics(self, prefix: str = "") -> list[TopicDescription]:
        return self._run(self._log.list_topics(prefix))

    def offsets_at(self, topic: str, place: str | int | datetime) -> int:
        return self._run(self._log.offsets_at(topic, place))

    def cluster(self) -> ClusterAnswer:
        return self._run(self._log.cluster())

    def stats(self) -> StatsAnswer:
        return self._run(self._log.stats())

    def recovery_of(self, topic: str) -> TopicRecovery:
        return self._run(self._log.recovery_of(topic))

    def accept_loss(self, shown: TopicRecovery, *, node_stopped: bool) -> TopicRecovery:
        return self._run(self._log.accept_loss(shown, node_stopped=node_stopped))

    def transfer_leader(self, node_id: int = 0) -> NodeAnswer:
        return self._run(self._log.transfer_leader(node_id))

    def add_node(self, host: str, port: int) -> NodeAnswer:
        return self._run(self._log.add_node(host, port))

    def remove_node(self, node_id: int) -> NodeAnswer:
        return self._run(self._log.remove_node(node_id))

    def promote_node(self, node_id: int) -> NodeAnswer:
        return self._run(self._log.promote_node(node_id))

    def control(self, action: str, secret: str, topic: str = "", count: int = 1) -> None:
        self._run(self._log.control(action, secret, topic, count))

    def _open_portal(self) -> _Portal:
        if self._portal is None:
            raise ConnectionFailed("this log is not open", hint="Use it in a with statement.")
        return self._portal

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            portal = self._open_portal()
        except ConnectionFailed:
            work.close()
            raise
        return portal.run(work)


class Reader:
    """Iterate it for records, or take `frames()` or `batches()`: each begins anew."""

    def __init__(self, portal: _Portal, reader: AsyncReader) -> None:
        self._portal = portal
        self._reader = reader

    def __iter__(self) -> Iterator[Record]:
        for chunk in self._chunks():
            for frame in chunk.frames:
                yield from clipped(frame, chunk)

    def frames(self) -> Iterator[Frame]:
        for chunk in self._chunks():
            yield from chunk.frames

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        for chunk in self._chunks():
            yield from batches_in(chunk, columns)

    def _chunks(self) -> Iterator[Chunk]:
        chunks = self._reader.chunks()

        async def step() -> Chunk | None:
            return await anext(chunks, None)

        try:
            while (chunk := self._portal.run(step())) is not None:
                yield chunk
        finally:
            if self._portal.is_open:
                self._portal.run(chunks.aclose())


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

    def __init__(self, portal: _Portal, producer: AsyncProducer) -> None:
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
