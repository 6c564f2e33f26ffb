"""Frames of one producer to one topic: in order, each exactly once (A5), over connections that break.

What can fail: any answer may be lost after its frame was appended; the broker may refuse a frame for a
while, or for good. What holds throughout:

- A frame is encoded once; a retry sends the same bytes with the same producer id and sequence, so the log
  recognises a repeat and answers with the original offsets.
- At most `window` frames are unacknowledged, never more than the log remembers of a producer.
- After any failure nothing is sent until every frame on the wire has been answered or given up. Then all
  that is not settled is sent again, from the oldest on.
- A frame that failed for good does not stop those behind it. Its sequence was never used, so they cannot
  follow it under the old identity: they get a fresh one. This is safe, because the log appends a frame only
  if its sequence is exactly the next: nothing behind a frame that was never appended can have been appended
  itself. Frames before it are settled first, under the old identity. Where the failed frame's own outcome
  is unknown (its time was over before an answer came), those behind it whose outcome is unknown too fail
  with it; a fresh identity for them could append them twice.
- Such a frame may land yet, behind those that follow: the order holds between frames that were acknowledged
  without one in doubt before them. Who needs more lets the first that times out be the end (`goes_on`).
- Where the identity is the caller's own, it knows what each sequence stands for, and a frame that fails for
  good ends it: nothing behind that is sent any more.
- A log that no longer knows the producer ends it: all that is open fails with `UnknownProducer`. A new
  identity is never taken to get around that.
- An identity's first frame says which metadata was known here before it was sent at all. A log that has
  forgotten producers since cannot tell whether it has the frame, and refuses it: if no attempt is in doubt it
  was never stored, and goes again with what is known by now; else that ends the producer.

Without idempotence (producer id 0) the log does not recognise a repeat: a retry may append twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ister.client.batch import Batch, reidentify
from ister.client.connection import Connection
from ister.client.retry import Word, gave_up, leaves_doubt, pause_s
from ister.client.routing import Routes
from ister.columns import Codec, RecordHeaders
from ister.errors import (
    ConfigError,
    DuplicateSequence,
    IsterError,
    OutOfSequence,
    UnknownProducer,
)
from ister.frame import Frame, encode, reidentified
from ister.io.clock import Clock, monotonic
from ister.names import normalise_topic
from ister.protocol.codec import AppendAnswer, encode_header
from ister.protocol.messages import ANY_OFFSET, Append, Kind

MAX_WINDOW: Final = 8
"""The log remembers a producer's last 8 frames (A5)."""
_SHORTEST_TIMEOUT_S: Final = 0.1
"""Even a last attempt gets the time of a quick answer."""


class Identity(NamedTuple):
    """Who appends, and the sequence of the first record."""

    producer_id: int
    sequence: int
    told_index: int | None = None
    """Of one that begins at 0: an index of the metadata that was known (`Routes.told_index`) before anybody
    sent anything under it. None states that nobody has yet."""


class Sequencer:
    """Takes frames in order and keeps them so. Everything runs on the event loop's thread."""

    def __init__(
        self,
        topic: str,
        routes: Routes,
        clock: Clock,
        *,
        window: int,
        idempotent: bool,
        request_timeout_s: float,
        retry_deadline_s: float,
        on_settled: Callable[[Batch], None] | None = None,
        identity: Identity | None = None,
        uid: int = 0,
    ) -> None:
        """With an `identity` of the caller's, a frame that fails for good is the end of it: none is taken to
        go on without it. With `uid` only the topic that has it is appended to, and none is made."""
        if not 1 <= window <= MAX_WINDOW:
            raise ConfigError(f"max_in_flight is {window}", hint=f"Choose 1 to {MAX_WINDOW}.")
        self.topic = normalise_topic(topic)
        self.window = window
        self.finished: IsterError | None = None
        """Why nothing more is taken."""
        self.goes_on = True
        """Whether anything is sent behind a frame that timed out, and may land behind that yet."""
        self._routes = routes
        self._clock = clock
        self._idempotent = idempotent
        self._first_timeout_s = min(request_timeout_s, retry_deadline_s)
        self._retry_deadline_s = retry_deadline_s
        self._on_settled = on_settled
        self._header, self._header_terms = b"", (-1, -1, -1)
        self._before: Sequencer | None = None
        self._behind: Sequencer | None = None
        self._queue: deque[Batch] = deque()
        self._sent = 0  # how many, from the head of the queue, have been sent in this round
        self._outstanding = 0  # how many of those have not been answered
        self._troubled = False  # nothing is sent until the round is over
        self._failures = 0
        self._word = Word()
        self._last_error: IsterError | None = None
        self._recovery: asyncio.Task[None] | None = None
        self._waits_for_room = False
        self._connection: Connection | None = None
        self._producer_id = 0
        self._sequence = 0
        self._given = identity
        self._uid = uid
        self._take_identity()

    @property
    def producer_id(self) -> int:
        """Of the frame that was put last, as long as none has failed for good."""
        return self._producer_id

    @property
    def has_slot(self) -> bool:
        """Whether a frame put now would go out now, or with the next round."""
        if len(self._queue) < self.window:
            return True
        # One that failed for good stays in the queue until the round is over, and takes nobody's place.
        return len(self.unsettled()) < self.window

    def unsettled(self) -> list[Batch]:
        return [batch for batch in self._queue if not batch.is_settled]

    def put(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        timestamps_us: Sequence[int] | None,
        headers: Sequence[RecordHeaders] | None,
        codec: Codec,
        expected_offset: int = ANY_OFFSET,
    ) -> Batch:
        """Encode and enqueue. What cannot be encoded raises here and uses no sequence."""
        if self.finished is not None:
            raise self.finished.again()
        frame = encode(
            values,
            keys=keys,
            timestamps_us=timestamps_us,
            headers=headers,
            codec=codec,
            producer_id=self._producer_id,
            sequence=self._sequence,
        )
        return self._enqueue(frame, len(values), expected_offset)

    def put_frame(self, frame: Frame, expected_offset: int = ANY_OFFSET) -> Batch:
        """As `put`, of records that are in a frame already, of another producer's perhaps."""
        return self.put_made(
            lambda producer_id, sequence: reidentified(frame, producer_id, sequence),
            frame.header.count,
            expected_offset,
        )

    def put_made(
        self, make: Callable[[int, int], bytes], count: int, expected_offset: int = ANY_OFFSET
    ) -> Batch:
        """As `put`, of a frame of so many records that `make` makes for a producer id and a sequence."""
        if self.finished is not None:
            raise self.finished.again()
        return self._enqueue(make(self._producer_id, self._sequence), count, expected_offset)

    def _enqueue(self, frame: bytes, count: int, expected_offset: int) -> Batch:
        batch = Batch(self, frame, count, self._routes.known_index(self.topic))
        batch.expected_offset = expected_offset
        if self._idempotent:
            self._number(batch)
        self._queue.append(batch)
        self._pump()
        return batch

    def _number(self, batch: Batch) -> None:
        """Its frame has the identity's next sequence."""
        batch.is_first = self._sequence == 0
        batch.told_index = self._given.told_index if self._given is not None else None
        self._sequence += batch.count

    def go_behind(self, other: Sequencer) -> None:
        """Send nothing before all that the other one has is settled: appends keep the order of the calls."""
        self._before, other._behind = other, self

    def close(self, error: IsterError) -> None:
        """Take nothing more and fail what is open."""
        self._finish(error)
        if self._recovery is not None:
            self._recovery.cancel()

    # The good days.

    def _pump(self) -> None:
        """Send as many as the window and the connection take."""
        if self._sent >= self.window or self._troubled or self._waits_for_room:
            return
        queue = self._queue
        if self._sent >= len(queue):
            return
        if self._before is not None:
            if self._before.unsettled():
                return
            self._before = None
        connection = self._routes.ready(self.topic)
        if connection is not self._connection and self._outstanding:
            return  # what is under way on the old way ends first, else a later frame may arrive before it
        if connection is None:
            self._begin_recovery()
            return
        self._connection = connection
        while self._sent < self.window and self._sent < len(queue) and not self._troubled:
            batch = queue[self._sent]
            if batch.answer is not None:
                # It stays until it is the oldest: the window reaches from the oldest unsettled frame on,
                # since that is how far back the log must remember to recognise it.
                self._sent += 1
                continue
            if batch.error is not None:
                return  # it failed for good, and has to be the oldest before the rest can go on
            if not connection.has_room:
                self._waits_for_room = True
                connection.when_room(self._has_room)
                return
            self._send(connection, batch)

    def _has_room(self) -> None:
        self._waits_for_room = False
        self._pump()

    def _send(self, connection: Connection, batch: Batch) -> None:
        timeout_s = self._first_timeout_s
        if batch.deadline == 0.0:
            batch.deadline = monotonic() + self._retry_deadline_s
        else:
            left_s = batch.deadline - monotonic()
            timeout_s = min(timeout_s, max(left_s, _SHORTEST_TIMEOUT_S))
        batch.attempts += 1
        self._sent += 1
        self._outstanding += 1
        told_index = 0
        if batch.is_first:
            if batch.told_index is None:
                batch.told_index = self._routes.told_index
            told_index = batch.told_index
        terms = batch.min_index, batch.expected_offset, told_index
        if terms != self._header_terms:
            self._header_terms = terms
            self._header = encode_header(Append(self.topic, *terms, self._uid))
        connection.send(Kind.APPEND, self._header, batch.frame, batch, timeout_s)

    def acknowledged(self, batch: Batch, answer: AppendAnswer) -> None:
        self._outstanding -= 1
        self._failures = 0
        self._word.over()
        if answer.leader:
            self._routes.learned(self.topic, answer.leader)
        self._settle(batch, answer, None)
        queue = self._queue
        while queue and queue[0].answer is not None:
            queue.popleft()
            if self._sent:
                self._sent -= 1
        if queue or self._troubled:
            if queue and queue[0].error is not None:
                self._troubled = True
            self._go_on()

    def _go_on(self) -> None:
        if not self._troubled:
            self._pump()
        elif self._outstanding == 0:
            self._begin_recovery()

    def _settle(self, batch: Batch, answer: AppendAnswer | None, error: IsterError | None) -> None:
        if not batch.is_settled:
            batch.settle(answer, error)
            if self._on_settled is not None:
                self._on_settled(batch)
            if self._behind is not None:
                self._behind._pump()

    # The bad days.

    def refused(self, batch: Batch, error: IsterError) -> None:
        self._outstanding -= 1
        self._troubled = True
        self._routes.failed(self.topic, error)
        if leaves_doubt(error):
            batch.doubtful = True
        if isinstance(error, UnknownProducer):
            error = self._unknown(batch, error)
        if error.retriable:
            self._last_error = error
        elif isinstance(error, UnknownProducer | DuplicateSequence) or self._given is not None:
            self._finish(error)
        else:
            self._settle(batch, None, error)
        self._go_on()

    def _unknown(self, batch: Batch, error: UnknownProducer) -> IsterError:
        """What it means that the log does not know this producer: nothing, or the end of it."""
        if self._queue and self._queue[0] is not batch:
            # One before it has not arrived; if that was the first of all, this is how the log says so.
            return OutOfSequence(error.message)
        if not batch.is_first:
            return error
        if batch.doubtful:
            return UnknownProducer(
                f"{error.message}; an earlier attempt was not answered, and may be stored",
                hint=f"Read the end of {self.topic} to see. To go on, open a new producer.",
            )
        is_stated = self._given is not None and self._given.told_index is not None
        if is_stated or batch.told_index is None or error.index <= batch.told_index:
            return error
        batch.told_index = error.index
        return OutOfSequence(error.message)

    def _begin_recovery(self) -> None:
        self._troubled = True
        if self._recovery is None and self.finished is None:
            self._recovery = asyncio.get_running_loop().create_task(self._recover())

    async def _recover(self) -> None:
        """Everything sent has been answered or given up: sort out what is left and begin a new round."""
        try:
            while self._drop_settled():
                if self._last_error is not None and not await self._pause(self._last_error):
                    continue
                try:
                    await self._routes.connection(self.topic)
                    break
                except IsterError as error:
                    self._last_error = error
        finally:
            self._recovery = None
        self._last_error = None
        self._troubled = False
        self._pump()

    async def _pause(self, error: IsterError) -> bool:
        """Wait before the next round. False if it came to an end for the oldest frame instead."""
        head, now = self._queue[0], monotonic()
        for batch in self._queue:
            if batch.deadline == 0.0:  # those that were never sent wait for the same end of the trouble
                batch.deadline = now + self._retry_deadline_s
        self._failures += 1
        if not error.retriable:
            self._settle(head, None, error)
            return False
        elapsed = now - head.deadline + self._retry_deadline_s
        what = f"appending {head.count} record{'s' if head.count != 1 else ''} to {self.topic}"
        if now >= head.deadline:
            attempts = max(head.attempts, self._failures)
            told = gave_up(error, what, attempts, elapsed, self.topic, in_doubt=head.doubtful)
            self._settle(head, None, told)
            return False
        self._word.failing(error, what, elapsed, self._retry_deadline_s)
        await asyncio.sleep(min(pause_s(self._clock, self._failures, error), head.deadline - now))
        return True

    def _drop_settled(self) -> bool:
        """Begin the queue with what is still to be sent; whether there is anything."""
        self._sent = 0
        queue = self._queue
        if not self._idempotent:
            self._queue = deque(batch for batch in queue if not batch.is_settled)
            return bool(self._queue)
        while queue and queue[0].is_settled:
            batch = queue.popleft()
            if batch.error is not None:
                if self._given is not None or (batch.error.retriable and not self.goes_on):
                    self._finish(batch.error)
                    return False
                self._renew_identity(batch)
                queue = self._queue
        return bool(queue)

    def _renew_identity(self, failed: Batch) -> None:
        """Carry on behind a frame that failed for good; the module's head says why this is safe."""
        self._take_identity()
        kept: deque[Batch] = deque()
        for batch in self._queue:
            if batch.is_settled:
                continue
            if failed.doubtful and batch.doubtful:
                self._settle(batch, None, failed.error)
                continue
            batch.frame = reidentify(batch.frame, self._producer_id, self._sequence)
            batch.doubtful = False
            self._number(batch)
            kept.append(batch)
        self._queue = kept

    def _take_identity(self) -> None:
        if self._given is not None:
            self._producer_id, self._sequence, _ = self._given
            return
        self._producer_id = self._clock.token() if self._idempotent else 0
        self._sequence = 0

    def _finish(self, error: IsterError) -> None:
        if self.finished is None:
            self.finished = error
            queue, self._queue, self._sent = self._queue, deque(), 0
            for batch in queue:
                self._settle(batch, None, error)
