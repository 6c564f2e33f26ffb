"""The standard output without ever blocking the event loop on a pipe.

`ister tail events | less` may stand still for an hour. A blocking write would stop the loop for as long,
and with it the client's timers, which then take a full socket for a dead broker. So a pipe gets only what
it takes at once, and the rest waits for room. Files and terminals are written to directly.

`ister tail events | head -1` on a quiet topic has nothing to write that would show that `head` is gone. So
whoever waits for records watches the pipe as well.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
import sys
from typing import Final

from ister.cli.terminal import Terminal

PIECE_BYTES: Final = select.PIPE_BUF
"""A pipe that is ready for writing takes this much without blocking."""


class Outflow:
    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._descriptor = _pipe_descriptor()

    async def write(self, data: bytes) -> None:
        if self._descriptor is None:
            self._terminal.write(data)
            return
        ready = select.poll()
        ready.register(self._descriptor, select.POLLOUT)
        rest = memoryview(data)
        while rest:
            if ready.poll(0):
                rest = rest[os.write(self._descriptor, rest[:PIECE_BYTES]) :]
            else:
                await self._room(self._descriptor)

    async def closed(self) -> None:
        """Returns once nobody reads the pipe any more; never, where there is no pipe."""
        if self._descriptor is not None:
            # A pipe's writing end is never ready for reading: what wakes this up is the other end's closing.
            # A socket, or a pipe open both ways, may be ready for another reason.
            await self._woken(self._descriptor)
            if _is_broken(self._descriptor):
                return
        await asyncio.Event().wait()

    async def _woken(self, descriptor: int) -> None:
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        loop.add_reader(descriptor, woken.set)
        try:
            await woken.wait()
        finally:
            loop.remove_reader(descriptor)

    async def _room(self, descriptor: int) -> None:
        loop = asyncio.get_running_loop()
        room = asyncio.Event()
        loop.add_writer(descriptor, room.set)
        try:
            await room.wait()
        finally:
            loop.remove_writer(descriptor)


def _is_broken(descriptor: int) -> bool:
    state = select.poll()
    state.register(descriptor, 0)  # POLLERR is always reported
    return any(events & select.POLLERR for _, events in state.poll(0))


def _pipe_descriptor() -> int | None:
    if sys.stdout is None:
        return None  # it was closed before we started; the first write says so
    sys.stdout.flush()
    try:
        descriptor = sys.stdout.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, ValueError):
        return None  # something stands in for the standard output
    return descriptor if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None
