"""What the tests of the log engine share: a disk in memory, a segment on it, and who waits for answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ister.errors import IsterError
from ister.frame import FrameHeader, decode_header, encode, frames_in
from ister.io.disk import Disk
from ister.testing import Loss, SimDisk
from ister.wal.group_commit import FlushJob, GroupCommit
from ister.wal.leases import Leases
from ister.wal.opening import OpenedLog, SegmentIdentity, create, recover
from ister.wal.segment import FsyncPolicy, Segment
from ister.wal.tail import HotTail

IDENTITY = SegmentIdentity("default/t:1", uid=7, base_offset=100, path="segments/1/1-7")


@dataclass
class Answers:
    """A sink and an owner that remember what they were told."""

    appended_at: dict[int, int] = field(default_factory=dict)
    refusals: dict[int, IsterError] = field(default_factory=dict)
    failures: list[FlushJob] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)

    def appended(self, token: int, base_offset: int, append_time_us: int, leader: int = 0) -> None:
        assert token not in self.appended_at and token not in self.refusals, "answered twice"
        self.appended_at[token] = base_offset

    def refused(self, token: int, error: IsterError) -> None:
        assert token not in self.appended_at and token not in self.refusals, "answered twice"
        self.refusals[token] = error

    def committed(self, segment: Segment) -> None:
        self.commits.append(segment.committed_end)

    def failed(self, segment: Segment, job: FlushJob) -> None:
        self.failures.append(job)
        segment.fail(IsterError(f"disk: {job.error}"))

    def stopped(self, segment: Segment) -> None:
        assert segment.failure is not None


def new_disk(seed: int = 0) -> SimDisk:
    disk = SimDisk(random.Random(seed))
    disk.mount().make_directory("segments/1")
    return disk


@dataclass
class Bench:
    """A segment, ready to append to."""

    segment: Segment
    answers: Answers
    commits: GroupCommit
    leases: Leases
    tokens: int = 0

    def append(self, *values: bytes, producer_id: int = 0, sequence: int = 0, now_us: int = 1) -> int:
        self.tokens += 1
        frame = bytearray(encode(values, producer_id=producer_id, sequence=sequence))
        header = decode_header(frame)
        assert isinstance(header, FrameHeader)
        self.segment.append(frame, header, now_us, self.answers, self.tokens, 0.0)
        return self.tokens

    async def settle(self) -> None:
        await self.commits.stop()


def open_bench(
    disk: Disk, recovered: OpenedLog | None = None, policy: FsyncPolicy = FsyncPolicy.FSYNC
) -> Bench:
    answers, leases, commits = Answers(), Leases(), GroupCommit(disk)
    leases.replace(frozenset({IDENTITY.key}))
    segment = Segment(
        IDENTITY,
        recovered or create(disk, IDENTITY, [], 0),
        owner=answers,
        leases=leases,
        commits=commits,
        tail=HotTail(1 << 20).of_segment(),
        policy=policy,
    )
    return Bench(segment, answers, commits, leases)


def written_log(
    disk: SimDisk, frames: Iterable[Sequence[bytes]], *, checkpoint_at: int = 0, producer_id: int = 0
) -> SimDisk:
    """A log of these frames, every one in a cycle of its own, and a checkpoint behind so many; then the power
    is cut."""

    async def main() -> None:
        bench, sequence = open_bench(disk.mount()), 0
        for number, values in enumerate(frames, 1):
            bench.append(*values, producer_id=producer_id, sequence=sequence)
            sequence += len(values) if producer_id else 0
            await bench.settle()
            if number == checkpoint_at:
                bench.segment.final_checkpoint()()
        bench.segment.close()

    asyncio.run(main())
    disk.crash(Loss.ALL)
    return disk


def values_in(recovered: OpenedLog) -> list[bytes | None]:
    data = recovered.file.read(recovered.position, 0)
    return [record.value for frame in frames_in(data) for record in frame.records()]


def reopen(disk: Disk, **how: int | None) -> OpenedLog:
    return recover(disk, IDENTITY, [], 0, **how)
