"""Pipes in and out: bounded, in order, and never in the way of the event loop."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ister.cli.lines import CHUNK_BYTES, read_chunks, read_lines
from ister.cli.outflow import Outflow
from ister.cli.terminal import Terminal
from ister.errors import MessageTooLarge


async def lines_of(pieces: list[bytes], max_line_bytes: int = 1 << 20) -> list[bytes]:
    """What comes out of a pipe into which the pieces were written one by one."""
    read, write = os.pipe()

    def feed() -> None:
        try:
            for piece in pieces:
                os.write(write, piece)
        except BrokenPipeError:
            pass
        finally:
            os.close(write)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        return [line async for lines in read_lines(read, max_line_bytes) for line in lines]
    finally:
        await asyncio.to_thread(feeder.join)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.sampled_from([b"a", b"\n", b"\xff\x00", b"bb"]), max_size=20).map(b"".join)))
def test_lines_do_not_depend_on_how_the_bytes_arrive(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    expected = whole.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert asyncio.run(lines_of(pieces)) == expected


def test_a_line_without_end_is_refused_before_it_fills_the_memory() -> None:
    with pytest.raises(MessageTooLarge, match="a line of more than 1000 bytes"):
        asyncio.run(lines_of([b"x" * 4000] * 4, max_line_bytes=1000))


def test_a_pipe_is_not_read_ahead_of_whoever_takes_its_chunks() -> None:
    async def scenario() -> int:
        read, write = os.pipe()
        written = 0
        os.set_blocking(write, False)
        chunks = read_chunks(read)
        os.write(write, b"x")
        await anext(chunks)
        full = 0
        while full < 50:  # the pipe stays full however long one waits: nobody reads it any more
            try:
                written += os.write(write, b"x" * 65536)
                full = 0
            except BlockingIOError:
                full += 1
                await asyncio.sleep(0.001)
        os.close(write)
        await chunks.aclose()  # type: ignore[attr-defined]
        return written

    assert asyncio.run(scenario()) <= 4 * CHUNK_BYTES


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, Outflow]]:
    """The reading end of a pipe that is the standard output."""
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        yield read, Outflow(Terminal({}))


def test_a_pipe_that_nobody_reads_does_not_stop_the_event_loop(pipe: tuple[int, Outflow]) -> None:
    read, out = pipe
    data = os.urandom(1 << 20)

    async def scenario() -> bytes:
        writing = asyncio.create_task(out.write(data))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not writing.done()
        got = bytearray()
        os.set_blocking(read, False)
        while len(got) < len(data):
            try:
                got += os.read(read, 65536)
            except BlockingIOError:
                await asyncio.sleep(0)
        await writing
        return bytes(got)

    assert asyncio.run(scenario()) == data
    os.close(read)


def test_a_reader_that_leaves_ends_the_writing(pipe: tuple[int, Outflow]) -> None:
    read, out = pipe

    async def scenario() -> None:
        writing = asyncio.create_task(out.write(b"x" * (1 << 20)))
        await asyncio.sleep(0)
        os.close(read)
        await writing

    with pytest.raises(BrokenPipeError):
        asyncio.run(scenario())


def test_a_reader_that_leaves_is_noticed_with_nothing_to_write(pipe: tuple[int, Outflow]) -> None:
    read, out = pipe

    async def scenario() -> None:
        leaving = asyncio.create_task(out.closed())
        await out.write(b"x")
        for _ in range(100):
            await asyncio.sleep(0)
        assert not leaving.done()
        os.close(read)
        await leaving

    asyncio.run(scenario())
