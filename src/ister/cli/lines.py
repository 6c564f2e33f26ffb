"""Lines from a pipe or a file, fast and in bounded memory, without ever blocking the event loop.

A thread reads whatever is there, up to a megabyte, and waits while two chunks are unread: a slow broker
slows the pipe, and `tail -f | ister put --lines` still passes each line on at once. The thread is a daemon:
a Ctrl-C does not wait for a pipe that may never say anything again.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from typing import Final

import click

from ister.errors import MessageTooLarge

CHUNK_BYTES: Final = 1 << 20
UNREAD_CHUNKS: Final = 2
STDIN: Final = 0


async def read_chunks(descriptor: int) -> AsyncIterator[bytes]:
    """What the file descriptor gives, in the pieces in which it comes, until its end; closes it then."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(UNREAD_CHUNKS)
    wanted = True

    def pump() -> None:
        while room.acquire() and wanted:
            piece: bytes | OSError
            try:
                piece = os.read(descriptor, CHUNK_BYTES)
            except OSError as error:
                piece = error
            try:
                loop.call_soon_threadsafe(arrived.put_nowait, piece)
            except RuntimeError:
                break  # the loop has ended, and with it anyone who would want more
            if not piece or isinstance(piece, OSError):
                break
        if descriptor != STDIN:
            os.close(descriptor)

    threading.Thread(target=pump, name="ister-lines", daemon=True).start()
    try:
        while piece := await arrived.get():
            if isinstance(piece, OSError):
                raise click.ClickException(f"the input cannot be read: {piece.strerror}") from piece
            yield piece
            room.release()
    finally:
        wanted = False
        room.release()


async def read_lines(descriptor: int, max_line_bytes: int) -> AsyncIterator[list[bytes]]:
    """Lines without their newline, as many as have arrived. A last one without a newline counts too."""
    pieces: list[bytes] = []
    held = 0
    async for chunk in read_chunks(descriptor):
        head, newline, rest = chunk.rpartition(b"\n")
        if newline:
            pieces.append(head)
            yield b"".join(pieces).split(b"\n")
            pieces, held = [rest], len(rest)
        else:
            pieces.append(chunk)
            held += len(chunk)
        if held > max_line_bytes:
            raise MessageTooLarge(
                f"a line of more than {max_line_bytes} bytes",
                hint="Send it with --file, or as shorter lines.",
            )
    last = b"".join(pieces)
    if last:
        yield [last]
