"""One client of the text protocol: its bytes in, its replies out, one command after the other.

A command begins when the reply before it has left, so that replies are in order and a client that does not
take them is not read from for long. One command's failure is that command's `ERR`: never `EMPTY`, never
another's. A record is settled by what became of its reply: done once all of it has left to the socket, else
given back (S5).

What was received and has not been worked on is bounded: beyond `is_full` the caller stops reading. A client
that has said all that it will say (`eof`) gets its replies, and is then let go; one that is gone (`lost`) is
not answered any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from ister.broker.text.get_service import Taken
from ister.errors import IsterError
from ister.protocol import text
from ister.protocol.text import Get, Metrics, Put, Refused, Register, Request, State, TextDecoder

log = logging.getLogger("ister.broker.text")

FULL_BYTES: Final = 2 * text.MAX_FRAME_BYTES
RESUME_BYTES: Final = text.MAX_FRAME_BYTES + text.LENGTH_SIZE
"""Enough for any one frame: who has begun one is always let to finish it."""


class TextBackend(Protocol):
    """What carries the commands out; `ister.broker.text.service` in a broker."""

    async def register(self, topic: str) -> None: ...

    async def put(self, topic: str, payload: bytes) -> None: ...

    async def take(self, topic: str) -> Taken | None: ...

    def done(self, taken: Taken) -> None: ...

    def returned(self, taken: Taken) -> None: ...

    async def state(self, topic: str) -> bytes: ...

    async def metrics(self) -> bytes: ...


class TextSession:
    def __init__(
        self,
        backend: TextBackend,
        write: Callable[[bytes], None],
        flushed: Callable[[], Awaitable[None]],
        close: Callable[[], None],
        *,
        on_full: Callable[[bool], None] | None = None,
    ) -> None:
        """`flushed` returns when all that was written has left to the socket; raises if it never will.

        `on_full(True)` asks the caller to stop reading, `on_full(False)` to go on.
        """
        self._backend = backend
        self._write = write
        self._flushed = flushed
        self._close = close
        self._on_full = on_full
        self._decoder = TextDecoder()
        self._task: asyncio.Task[None] | None = None
        self._no_more = False
        self._is_over = False
        self.is_full = False

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        if self._no_more or self._is_over:
            return
        self._decoder.feed(data)
        self._steer()
        self._go_on()

    def eof(self) -> None:
        """The client sends no more: answer what is there, then close."""
        self._no_more = True
        self._go_on()

    def dismiss(self, error: IsterError) -> None:
        """A client that sends half a command, or none, and then nothing: say why, and let it go."""
        self._write(text.encode_frame(text.error_reply(text.describe_error(error, ""))))
        self._end()

    def lost(self) -> None:
        """The connection is gone, or has to go: nobody takes a reply any more."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()

    @property
    def is_idle(self) -> bool:
        """Whether every command that has come in full is answered."""
        return self._task is None

    @property
    def waits_for_more(self) -> bool:
        """Whether a frame was begun that has not come in full, and everything before it is answered."""
        return self.is_idle and not self._decoder.is_between_frames

    async def ended(self) -> None:
        """Wait until no command is being worked on."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def _go_on(self) -> None:
        if self._task is None and not self._is_over:
            self._task = asyncio.get_running_loop().create_task(self._work(), name="text-session")

    def _steer(self) -> None:
        waiting = self._decoder.waiting_bytes
        is_full = waiting > (RESUME_BYTES if self.is_full else FULL_BYTES)
        if is_full != self.is_full:
            self.is_full = is_full
            if self._on_full is not None:
                self._on_full(is_full)

    async def _work(self) -> None:
        try:
            while not self._is_over and (request := self._decoder.take()) is not None:
                self._steer()
                await self._serve(request)
            self._steer()
        except (IsterError, OSError) as error:
            log.debug("text client gone: %s", error)
            self._end()
        except Exception:
            log.exception("text session failed")
            self._end()
        finally:
            self._task = None
        if self._no_more:
            self._end()

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._close()

    async def _serve(self, request: Request) -> None:
        """One command, one reply; raises only if the connection is gone."""
        taken: Taken | None = None
        try:
            if isinstance(request, Get):
                taken = await self._backend.take(request.topic)
                reply = text.EMPTY if taken is None else text.data_reply(taken.value)
            else:
                reply = await self._reply_to(request)
        except IsterError as error:
            reply = text.error_reply(text.describe_error(error, getattr(request, "topic", "")))
        except Exception as error:
            log.exception("text command failed")
            reply = text.error_reply(f"internal: {type(error).__name__}: {error}")
        try:
            self._write(text.encode_frame(reply))
            await self._flushed()
        except BaseException:
            if taken is not None:
                self._backend.returned(taken)
            raise
        if taken is not None:
            self._backend.done(taken)
        if isinstance(request, Refused) and request.closes:
            self._end()

    async def _reply_to(self, request: Register | Put | State | Metrics | Refused) -> bytes:
        match request:
            case Register(topic):
                await self._backend.register(topic)
            case Put(topic, payload):
                await self._backend.put(topic, payload)
            case State(topic):
                return await self._backend.state(topic)
            case Metrics():
                return await self._backend.metrics()
            case Refused(why):
                return text.error_reply(why)
        return text.OK
