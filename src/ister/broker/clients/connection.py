"""One client connection: requests out to the broker, answers back. `receiving` has the bytes that come in.

Appends run on the spot, with no task and no future; their answers are gathered and written once per commit
cycle. Everything else is a task.

Bounds, enforced here: how many requests wait for their answers, the bytes of those with large headers, and
what a slow reader may have in its send buffer (no further fetch is read from disk until it has taken what
is there). What all slow readers together may have is in `answers`; the transport tells us of the first byte
that its client did not take and of the moment when nothing is left, so that every one of them is counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, cast

from ister.broker.clients.answers import Share, is_too_slow
from ister.broker.clients.receiving import Receiver
from ister.errors import BadRequest, IsterError, Overloaded
from ister.frame import admit
from ister.io.clock import monotonic
from ister.protocol.codec import PREFIX_SIZE, encode_appended, encode_failure, encode_message
from ister.protocol.messages import PREAMBLE_MAGIC, Kind
from ister.protocol.text import LENGTH_SIZE

if TYPE_CHECKING:
    from ister.broker.clients.server import Server

log = logging.getLogger("ister.broker.clients.connection")

WRITE_BUFFER_BYTES = 1024 * 1024
_SHORT_BUFFER_BYTES = 64 * 1024
"""What a client may leave untaken while others wait for the memory of answers."""
_JOIN_BELOW_BYTES = 16 * 1024
_JOIN_FROM_PARTS = 16
MAX_TASKS = 1000
UNCOUNTED_HEADER_BYTES = 512
"""Any real header is shorter, and costs less than the task that it is in; larger ones are in flight."""

_APPEND = int(Kind.APPEND)
_HELLO = int(Kind.HELLO)


class Connection(Receiver):
    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.peer = "?"
        self.read_slots = asyncio.Semaphore(2)
        self.description_slots = asyncio.Semaphore(2)
        self._out: list[bytes] = []
        self._tokens = 0
        self._appends: dict[int, tuple[int, int, int]] = {}
        self._tasks: dict[asyncio.Task[None], int] = {}
        # What its client has not taken.
        self._is_behind = False
        self._unsent = 0
        self._written = 0
        self._watched: tuple[float, int] | None = None

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)
        self.last_received = monotonic()
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """What it has in the log stays counted until the log has answered."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        self._taken_all()
        self._server.closed(self)
        self._abandon()

    def pause_writing(self) -> None:
        self._is_behind = True  # who wrote counts what is left

    def resume_writing(self) -> None:
        self._taken_all()
        self.writable.set()
        self._steer_reading()

    def eof_received(self) -> bool:
        return False  # close: a client that sends no more wants no more

    # Requests.

    def _handle(
        self,
        data: bytearray,
        start: int,
        total: int,
        correlation: int,
        kind: int,
        header_size: int,
        *,
        owned: bool = False,
    ) -> None:
        header_end = start + PREFIX_SIZE + header_size
        header = bytes(data[start + PREFIX_SIZE : header_end])
        end = start + total
        try:
            if kind == _APPEND and self.greeted:
                # A frame in the shared scratch must be copied; a request's own buffer is kept as it is.
                self._append(
                    correlation,
                    header,
                    memoryview(data)[header_end:end] if owned else data[header_end:end],
                )
            elif kind != _HELLO and not self.greeted:
                raise BadRequest(f"the first request is of kind {kind}, a hello was expected")
            elif kind == _HELLO:
                self._server.hello(self, correlation, header)  # at once: requests may follow right behind it
            else:
                self._start(
                    self._server.requests.answer(self, kind, correlation, header), correlation, len(header)
                )
        except IsterError as error:
            self._send(encode_failure(correlation, error))
            if not self.greeted and kind != _HELLO:
                self.refuse(error)
        except Exception as error:
            log.exception("request of kind %d failed", kind)
            self._send(encode_failure(correlation, IsterError(f"{type(error).__name__}: {error}")))

    def _speaks_text(self, first: bytes) -> None:
        self._closed = True
        self._server.speaks_text(self, self._transport, first)

    def _append(self, correlation: int, header: bytes, frame: bytearray | memoryview) -> None:
        """The hot path: check, append, remember who to answer."""
        found = admit(frame)
        server = self._server
        self._tokens = token = self._tokens + 1
        size = len(frame)
        self._appends[token] = (correlation, size, found.count)
        self.in_flight_bytes = own = self.in_flight_bytes + size
        server.in_flight_bytes = total = server.in_flight_bytes + size
        if own > server.connection_limit or total > server.total_limit:
            self._steer_reading()
        try:
            topic = server.logs.get(header)
            if topic is None:
                server.append(header, frame, found, self, token)
            else:
                topic.append(frame, found, self, token, self.last_received)
        except IsterError:
            del self._appends[token]
            self._reserve(-size)
            raise

    # Answers to appends: `ister.wal.segment.Sink`.

    def appended(self, token: int, base_offset: int, append_time_us: int, leader: int = 0) -> None:
        correlation, size, count = self._appends.pop(token)
        server = self._server
        server.records_in.value += count
        self.in_flight_bytes -= size
        server.in_flight_bytes -= size
        if self._reading_paused or server.waiting:
            self._reserve(0)
        if not self._closed:
            out = self._out
            if not out:
                server.will_flush(self)
            out.append(encode_appended(correlation, base_offset, append_time_us, leader))

    def refused(self, token: int, error: IsterError) -> None:
        correlation, size, _ = self._appends.pop(token)
        self._reserve(-size)
        if not self._closed:
            self._send(encode_failure(correlation, error))

    def _send_failure(self, correlation: int, error: IsterError) -> None:
        self._send(encode_failure(correlation, error))

    def _send(self, answer: bytes) -> None:
        """Gather; all that is gathered goes out in one write at the end of the cycle."""
        if not self._out:
            self._server.will_flush(self)
        self._out.append(answer)

    def flush(self) -> None:
        out, self._out = self._out, []
        if out and not self._transport.is_closing():
            self._write(out[0] if len(out) == 1 else b"".join(out))
            if self._is_behind:
                self.count_unsent()

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        self._written += len(data)
        self._server.bytes_out.value += len(data)
        self._transport.write(data)

    # Answers to everything else.

    def _start(self, work: Coroutine[Any, Any, None], correlation: int, header_size: int) -> None:
        if len(self._tasks) >= MAX_TASKS:
            work.close()
            raise Overloaded(f"{len(self._tasks)} requests of this connection are still being answered")
        counted = header_size if header_size > UNCOUNTED_HEADER_BYTES else 0
        task = asyncio.get_running_loop().create_task(self._run(work, correlation))
        self._tasks[task] = counted
        task.add_done_callback(self._ended)
        if counted:
            self._reserve(counted)

    def _ended(self, task: asyncio.Task[None]) -> None:
        counted = self._tasks.pop(task)
        if counted:
            self._reserve(-counted)

    async def _run(self, work: Coroutine[Any, Any, None], correlation: int) -> None:
        try:
            await self.drained()  # no answer is made for a client that has yet to take earlier ones
            await work
        except IsterError as error:
            self._send(encode_failure(correlation, error))
        except Exception as error:
            log.exception("request failed")
            self._send(encode_failure(correlation, IsterError(f"{type(error).__name__}: {error}")))
        finally:
            work.close()

    def respond(self, correlation: int, header: bytes, payload: list[bytes | bytearray | memoryview]) -> None:
        if self._transport.is_closing():
            return
        self.flush()
        size = sum(map(len, payload))
        prefix = encode_message(correlation, 0, header, size)
        if size < _JOIN_BELOW_BYTES or len(payload) >= _JOIN_FROM_PARTS:
            self._write(b"".join((prefix, *payload)))
        else:
            self._write(prefix)
            for part in payload:
                self._write(part)
        if self._is_behind:
            self.count_unsent()

    # What its client has not taken.

    async def drained(self) -> None:
        """Wait until this client has taken its answers; of many that wait, one may fill the buffer again."""
        while not self.writable.is_set():
            await self.writable.wait()

    async def room_for(self, wanted: int, least: int = 0) -> Share:
        """Memory for an answer, for a client that has taken its earlier ones."""
        answers = self._server.answers
        await self.drained()
        share = await answers.take(wanted, least)
        while not self.writable.is_set():  # it stopped reading while it waited: others go first
            share.give_back()
            await self.drained()
            share = await answers.take(wanted, least)
        return share

    def count_unsent(self) -> None:
        unsent = self._transport.get_write_buffer_size()
        answers = self._server.answers
        change, self._unsent = unsent - self._unsent, unsent
        answers.change(change)
        mark = _SHORT_BUFFER_BYTES if answers.is_short else WRITE_BUFFER_BYTES
        if unsent > mark and self.writable.is_set():
            self.writable.clear()
            self._steer_reading()

    def _taken_all(self) -> None:
        self._is_behind, self._watched = False, None
        change, self._unsent = -self._unsent, 0
        self._server.answers.change(change)

    def _holds_up_others(self, now: float, timeout: float) -> bool:
        """Whether others wait for memory while this client takes its answers too slowly, or not at all."""
        if not self._is_behind:
            return False
        self.count_unsent()
        if not self._server.answers.is_short or self._unsent <= _SHORT_BUFFER_BYTES:
            self._watched = None
            return False
        taken = self._written - self._unsent
        if self._watched is None:
            self._watched = now, taken
        since, taken_before = self._watched
        return is_too_slow(taken - taken_before, now - since, timeout)

    # The end.

    def refuse(self, error: IsterError) -> None:
        self._server.tell_of_refusal(self.peer, error)
        self.flush()
        self._write(encode_failure(0, error))
        self._transport.close()
        self._abandon()
        if self._is_behind:
            self.count_unsent()

    def expire(self, now: float, timeout: float) -> None:
        """Close if a request was begun and does not come, no hello ever did, or answers are not taken."""
        if self._closed:
            if now - self.last_received > timeout:
                self._transport.abort()  # it was told to go and does not even take its last answers
            return
        late = self._lateness(now, timeout)
        if late is not None and self._may_speak_text:
            self._closed = True
            self._server.speaks_text(self, self._transport, b"").dismiss(late)
        elif late is not None:
            self.refuse(late)
        elif self._holds_up_others(now, timeout):
            log.warning(
                "connection dropped: %d bytes of answers not taken while others wait for max_answer_bytes",
                self._unsent,
                extra={"fields": {"peer": self.peer}},
            )
            self._transport.abort()

    @property
    def _may_speak_text(self) -> bool:
        """Clients of our own say at once what they speak; who connects and waits is more likely a person."""
        return self.version == 0 and not (
            self._stash and PREAMBLE_MAGIC.startswith(self._stash[:LENGTH_SIZE])
        )

    @property
    def has_no_appends(self) -> bool:
        return not self._appends

    def close(self) -> None:
        self.flush()
        self._transport.close()
