"""Records gathered into frames: a little waiting buys large batches, and a bounded buffer bounds memory.

A batch is cut when it has enough bytes or records, or when its oldest record has lingered long enough and
one more frame may be on the wire. While the window is full a batch that is due keeps on growing instead of
queueing up behind it, so the slower the broker, the larger the frames.

A record is in one of three places: in the batch that is being gathered, in a frame that the sequencer holds
until it is settled, or told to its caller. New ones wait while the first two hold `buffer_bytes`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from types import TracebackType
from typing import Final, Self

from ister.client.batch import Batch
from ister.client.gathering import RECORD_OVERHEAD, Gathering, Receipt, as_bytes, measured
from ister.client.sequencer import Sequencer
from ister.columns import Codec, RecordHeaders
from ister.errors import BadRequest, ConfigError, ConnectionFailed, IsterError

_FAILURES_KEPT: Final = 100
"""How many failed batches are remembered until a flush says so."""
CODECS: Final = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


def codec_named(compression: str) -> Codec:
    codec = CODECS.get(compression)
    if codec is None:
        raise ConfigError(f"unknown compression {compression!r}", hint=f"Choose one of {', '.join(CODECS)}.")
    return codec


class Producer:
    """Made by `Log.producer`. Leaving it in peace flushes; leaving it by an exception gives up the rest."""

    def __init__(
        self,
        *,
        linger_ms: float,
        batch_bytes: int,
        batch_records: int,
        buffer_bytes: int,
        compression: str,
    ) -> None:
        if batch_bytes < 1 or batch_records < 1 or linger_ms < 0 or buffer_bytes < batch_bytes:
            raise ConfigError(
                f"producer with batch_bytes={batch_bytes}, batch_records={batch_records}, "
                f"linger_ms={linger_ms:g}, buffer_bytes={buffer_bytes}",
                hint="All must be positive, and the buffer must hold at least one batch.",
            )
        self._codec = codec_named(compression)
        self._linger_s = linger_ms / 1000
        self._batch_bytes = batch_bytes
        self._batch_records = batch_records
        self._buffer_bytes = buffer_bytes
        self._loop = asyncio.get_running_loop()
        self._sequencer: Sequencer
        self._gathering = Gathering()
        self._timer: asyncio.Handle | None = None
        self._due = False
        self._held_bytes = 0
        self._room: deque[asyncio.Future[None]] = deque()
        self._failed: deque[Batch | Gathering] = deque(maxlen=_FAILURES_KEPT)
        self._closed = False

    def attach(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer

    @property
    def topic(self) -> str:
        return self._sequencer.topic

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: RecordHeaders | None = None,
        timestamp_us: int | None = None,
    ) -> int:
        """Append one record; returns its offset once it is acknowledged."""
        if self._held_bytes >= self._buffer_bytes:
            await self._wait_for_room()
        return await self._take(value, key, headers, timestamp_us)

    async def submit(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: RecordHeaders | None = None,
        timestamp_us: int | None = None,
    ) -> Receipt:
        """Take one record, waiting only for room in the buffer. Await the receipt for its offset.

        The error of a record that nobody waits for is raised by the next `flush`.
        """
        if self._held_bytes >= self._buffer_bytes:
            await self._wait_for_room()
        return self._take(value, key, headers, timestamp_us)

    async def send_many(
        self,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[RecordHeaders] | None = None,
        timestamps_us: Sequence[int] | None = None,
    ) -> Sequence[int]:
        """Append many records, in as many frames as they need; returns their offsets.

        The offsets are a `range` unless other writers came in between the frames. If a frame fails its
        error is raised; the others may have been appended.
        """
        for column in (keys, headers, timestamps_us):
            if column is not None and len(column) != len(values):
                raise BadRequest(f"{len(column)} of a column for {len(values)} values")
        self._check_open()
        self._cut()  # what was taken before comes before
        sizes = [RECORD_OVERHEAD + (len(value) if value is not None else 0) for value in values]
        batches: list[Batch] = []
        start = 0
        while start < len(values):
            if self._held_bytes >= self._buffer_bytes:
                await self._wait_for_room()
            end = start + self._fitting(sizes, start)
            rows = slice(start, end)
            batch = self._sequencer.put(
                values[rows],
                keys[rows] if keys is not None else None,
                timestamps_us[rows] if timestamps_us is not None else None,
                headers[rows] if headers is not None else None,
                self._codec,
            )
            batch.held_bytes = sum(sizes[rows])
            self._held_bytes += batch.held_bytes
            batches.append(batch)
            start = end
        return await _offsets_of(batches)

    async def flush(self) -> None:
        """Wait until all that was taken is settled; raises the first error that nobody was told of."""
        self._cut()
        for batch in self._sequencer.unsettled():
            await batch.settled()
        failed, self._failed = self._failed, deque(maxlen=_FAILURES_KEPT)
        for batch_or_gathering in failed:
            if batch_or_gathering.error is not None and not batch_or_gathering.told:
                raise batch_or_gathering.error.again()

    async def close(self) -> None:
        """Flush, and take nothing more."""
        if self._closed:
            return
        try:
            await self.flush()
        finally:
            self.abandon("was closed")

    def abandon(self, why: str) -> None:
        """Take nothing more, and fail what is not acknowledged. Its outcome is unknown."""
        self._closed = True
        error = ConnectionFailed(f"the producer to {self.topic} {why}", hint="Open a new producer.")
        if self._timer is not None:
            self._timer.cancel()
        self._gathering.fail(error)
        self._gathering = Gathering()
        self._sequencer.close(error)
        self._wake_room()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        elif not self._closed:
            self.abandon("was left by an exception before everything was acknowledged")

    # Taking and cutting.

    def _take(
        self, value: bytes | None, key: bytes | None, headers: RecordHeaders | None, timestamp_us: int | None
    ) -> Receipt:
        if type(value) is not bytes and value is not None:
            value = as_bytes(value)
        if self._closed:
            self._check_open()
        if key is None and not headers:
            size = RECORD_OVERHEAD + (len(value) if value is not None else 0)
        else:
            size = measured(value, key, headers)
        gathering = self._gathering
        # A record that fills a batch goes alone: if it is too large for the log, nobody else suffers.
        if gathering.values and (size >= self._batch_bytes or not gathering.fits(timestamp_us)):
            self._cut()
            gathering = self._gathering
        row = len(gathering.values)
        gathering.add(value, key, headers, timestamp_us)
        gathering.size += size
        self._held_bytes += size
        receipt = Receipt(gathering, row)
        if gathering.size >= self._batch_bytes or row + 1 >= self._batch_records:
            self._cut()
        elif row == 0:
            self._timer = (
                self._loop.call_later(self._linger_s, self._lingered)
                if self._linger_s
                else self._loop.call_soon(self._lingered)
            )
        return receipt

    def _lingered(self) -> None:
        self._due = True
        if self._sequencer.has_slot:
            self._cut()

    def _cut(self) -> None:
        """Make a frame of what was gathered and hand it on."""
        gathering = self._gathering
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = False
        if not gathering.values:
            return
        self._gathering = Gathering()
        try:
            batch = self._sequencer.put(
                gathering.values, gathering.keys, gathering.times, gathering.headers, self._codec
            )
        except IsterError as error:
            self._held_bytes -= gathering.size
            gathering.fail(error)
            self._failed.append(gathering)
            self._wake_room()
            return
        batch.held_bytes = gathering.size
        gathering.become(batch)

    def settled(self, batch: Batch) -> None:
        self._held_bytes -= batch.held_bytes
        if batch.error is not None:
            self._failed.append(batch)
        if self._due:
            self._loop.call_soon(self._lingered)  # after the sequencer has taken the batch off its queue
        self._wake_room()

    def _fitting(self, sizes: list[int], start: int) -> int:
        """How many records from `start` make one frame: at least one."""
        window = sizes[start : start + self._batch_records]
        totals = accumulate(window)
        return max(1, sum(1 for total in totals if total <= self._batch_bytes))

    async def _wait_for_room(self) -> None:
        while self._held_bytes >= self._buffer_bytes and not self._closed:
            room: asyncio.Future[None] = self._loop.create_future()
            self._room.append(room)
            await room
        self._check_open()

    def _wake_room(self) -> None:
        while self._room and (self._held_bytes < self._buffer_bytes or self._closed):
            room = self._room.popleft()
            if not room.done():
                room.set_result(None)

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionFailed(f"the producer to {self.topic} is closed", hint="Open a new producer.")


async def _offsets_of(batches: list[Batch]) -> Sequence[int]:
    results = await asyncio.gather(*(batch.wait(0) for batch in batches), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    runs = [(batch.answer.base_offset, batch.count) for batch in batches if batch.answer is not None]
    if not runs:
        return range(0)
    first, end = runs[0][0], runs[0][0]
    for base, count in runs:
        if base != end:
            return [offset for start, length in runs for offset in range(start, start + length)]
        end += count
    return range(first, end)
