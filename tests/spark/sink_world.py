"""The sink's stage and ledger against simulated brokers: no Spark, and every pause and death where a test
wants it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import ister
from ister.client.sequencer import Identity
from ister.errors import IsterError
from ister.frame import Frame, decode, encode
from ister.spark.sink.committing import Committed, Committer
from ister.spark.sink.failpoints import Reach, nowhere
from ister.spark.sink.origin import Origin
from ister.spark.sink.staging import Staged, open_stager

QUERY = Origin.of_query("q")


class Died(Exception):
    """A driver was killed here."""


def dies_at(step: str) -> Reach:
    async def reach(reached: str) -> None:
        if reached == step:
            raise Died(step)

    return reach


class Pause:
    """A driver stands still at a step until it is let go."""

    def __init__(self, step: str) -> None:
        self._step = step
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self, reached: str) -> None:
        if reached == self._step and not self.reached.is_set():
            self.reached.set()
            await self.go_on.wait()


def frame_of(values: Sequence[bytes]) -> Frame:
    found = decode(encode(values))
    assert isinstance(found, Frame)
    return found


async def stage(log: ister.Log, *frames: Sequence[bytes], topic: str = "t", origin: Origin = QUERY) -> Staged:
    """One task's frames, each of these values."""
    stager = await open_stager(log, origin.stage)
    try:
        for values in frames:
            await stager.put_frame(topic, frame_of(values))
        return await stager.finish()
    finally:
        stager.close()


async def commit(
    log: ister.Log,
    batch: int,
    *staged: Staged,
    reach: Reach = nowhere,
    origin: Origin = QUERY,
    note: str = "",
) -> Committed:
    return await Committer(log, origin, reach).commit(batch, staged, note)


def lines(batch: int, count: int) -> list[list[bytes]]:
    """Frames of one record each, which say whose they are."""
    return [[b"%d-%d" % (batch, number)] for number in range(count)]


def flat(frames: Sequence[Sequence[bytes]]) -> list[bytes]:
    return [value for values in frames for value in values]


async def forget_producers(log: ister.Log, topic: str, segment_records: int) -> None:
    """Let so many others write that the log drops everybody it knew before, at its next seals (A5)."""
    for number in range(1001 + 2 * segment_records):
        sequencer = log.sequencer(topic, Identity(1_000_000 + number, 0))
        await sequencer.put([b"other"], None, None, None, ister.frame.Codec.NONE).wait(0)
        sequencer.close(IsterError("done"))


async def records_of(log: ister.Log, topic: str = "t") -> list[bytes]:
    """What the sink has written, in order."""
    return [record.value or b"" async for record in log.read(topic) if record.value != b"other"]
