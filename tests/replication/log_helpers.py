"""What the tests of logs on several disks share: a log that a leader wrote, and disks to have it on."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from ister.frame import encode, frames_in, stamp
from ister.io.disk import Disk, parent
from ister.replication.copies import copying
from ister.replication.copies.copying import Source, Wanted, read_frames
from ister.testing import SimClock, SimDisk, VirtualLoop, simulate
from ister.wal.marks import marked
from ister.wal.opening import OpenedLog, SegmentIdentity, create, recover

IDENTITY = SegmentIdentity("default/t:1", uid=7, base_offset=100, path="segments/1/1-7")
LOG = IDENTITY.path + ".log"
SIDE = IDENTITY.path + ".side"
PRODUCER = 3
EMPTY: list[Any] = []


def new_disk(seed: int = 0, name: str = "disk") -> SimDisk:
    disk = SimDisk(random.Random(seed), name=name)
    disk.make_directory(parent(IDENTITY.path))
    return disk


def leader_frames(count: int, *, size: int = 150, uid: int = IDENTITY.uid, base: int = 100) -> list[bytes]:
    """Frames of three records each, as a leader that syncs every one of them has stamped them."""
    frames, offset, values = [], base, random.Random(1)
    for number in range(count):
        records = [values.randbytes(size // 3) for _ in range(3)]
        frame = bytearray(encode(records, producer_id=PRODUCER, sequence=3 * number))
        stamp(frame, offset, marked(uid, 0), 1_000 + number)
        frames.append(bytes(frame))
        offset += 3
    return frames


def put_log(disk: Disk, data: bytes, identity: SegmentIdentity = IDENTITY) -> None:
    """These bytes, durably, and no checkpoint."""
    made = create(disk, identity, [], 0)
    if data:
        made.file.write([data], 0)
    made.file.sync()
    made.side.sync()


def put_checkpointed(disk: Disk, data: bytes) -> None:
    """These frames, durably, and a checkpoint at their end."""
    made = create(disk, IDENTITY, [], 0)
    made.file.write([data], 0)
    made.file.sync()
    for frame in frames_in(data):
        made.take(frame.header)
    made.checkpoint()


def end_of(frames: list[bytes]) -> int:
    return IDENTITY.base_offset + 3 * len(frames)


def wanted(end_offset: int) -> Wanted:
    return Wanted(IDENTITY, end_offset, EMPTY, 0)


def reopened(disk: Disk, **how: Any) -> OpenedLog:
    return recover(disk, IDENTITY, [], 0, **how)


FRAMES = leader_frames(40)
DATA = b"".join(FRAMES)
END = end_of(FRAMES)
FRAME = len(FRAMES[0])
"""The size of each."""


class Replica:
    """A good log on a disk of its own, served as a node would. Counts what it was asked for."""

    def __init__(self, frames: list[bytes]) -> None:
        self.disk = new_disk(name="source")
        self.data = b"".join(frames)
        put_log(self.disk, self.data)
        self.log = reopened(self.disk)
        self.asked: list[int] = []

    def read_now(self, offset: int, max_bytes: int) -> bytes:
        self.asked.append(offset)
        log = self.log
        return read_frames(log.file, log.index, IDENTITY.key, log.position, log.end_offset, offset, max_bytes)

    async def read(self, offset: int, max_bytes: int) -> bytes:
        return self.read_now(offset, max_bytes)

    @property
    def source(self) -> Source:
        return Source("node 2", self.read)


def answering(*answers: bytes) -> Source:
    """A source that sends just this."""
    left = list(answers)

    async def read(offset: int, max_bytes: int) -> bytes:
        return left.pop(0)

    return Source("node 2", read)


def clock_of(loop: VirtualLoop) -> SimClock:
    return SimClock(loop, random.Random(0))


def run(make: Any, seed: int = 0) -> Any:
    """Run `make(clock)` on virtual time; what it raises is raised."""

    async def main(loop: VirtualLoop) -> Any:
        return await make(clock_of(loop))

    return simulate(main, seed)


def run_until_it_dies(make: Any, seed: int = 0) -> Any:
    """As `run`, of a process whose power may be cut: None if it was."""

    async def main(loop: VirtualLoop) -> Any:
        task = loop.create_task(make(clock_of(loop)))
        await asyncio.wait([task])
        return None if task.cancelled() else task.result()

    return simulate(main, seed)


def copy_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many chunks and several syncs in a short log."""
    monkeypatch.setattr(copying, "CHUNK_BYTES", 4 * FRAME)
    monkeypatch.setattr(copying, "CHECKPOINT_INTERVAL_BYTES", 12 * FRAME)
    monkeypatch.setattr("ister.wal.side_file.INDEX_INTERVAL_BYTES", 2 * FRAME)


def durable(disk: SimDisk) -> bytes:
    return disk.durable_bytes(LOG)


def foreign(frames: list[bytes], uid: int) -> list[bytes]:
    assert uid != IDENTITY.uid
    return leader_frames(len(frames), uid=uid)
