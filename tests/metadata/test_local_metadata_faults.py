"""The metadata's journal: rotation under faults, and names that a killed process left behind."""

from __future__ import annotations

import asyncio
import errno

import pytest

from ister.errors import IsterError
from ister.metadata.commands import CreateTopic
from ister.metadata.local import LocalMetadata
from ister.protocol.messages import TopicSettings
from ister.testing import Loss, SimClock, SimDisk, VirtualLoop, simulate
from ister.testing.mount import OpenFile
from ister.wal.group_commit import GroupCommit


def topic(number: int) -> CreateTopic:
    return CreateTopic(f"default/t{number}", TopicSettings(), 1, [1], 0)


def store(loop: VirtualLoop, disk: SimDisk, fatal: list[IsterError], every: int = 10_000) -> LocalMetadata:
    clock = SimClock(loop, loop.fork("clock"))
    mount = disk.mount()
    commits = GroupCommit(mount, clock)
    commits._recent_sync = 1.0
    return LocalMetadata(mount, clock, commits, on_fatal=fatal.append, snapshot_every=every)


def test_a_journal_that_fails_while_a_snapshot_waits_does_not_hold_up_the_stop() -> None:
    async def main(loop: VirtualLoop) -> None:
        disk, fatal = SimDisk(loop.fork("disk")), []
        metadata = store(loop, disk, fatal, every=2)
        await metadata.open()
        first = [loop.create_task(metadata.propose(topic(n))) for n in range(2)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # their cycle has begun; the next one collects
        second = [loop.create_task(metadata.propose(topic(n))) for n in range(2, 4)]
        disk.faults.add("sync", prefix="metadata/journal", after=1)
        await asyncio.gather(*first)
        with pytest.raises(IsterError):
            await asyncio.gather(*second)
        assert fatal, "the node was told to stop"
        async with asyncio.timeout(60):
            await metadata.close()

    simulate(main, 0, limit_seconds=600)


def test_a_snapshot_that_cannot_be_written_leaks_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, closed = [0], [0]
    make, close = OpenFile.__init__, OpenFile.close

    def counting_make(self: OpenFile, *args: object) -> None:
        opened[0] += 1
        make(self, *args)  # type: ignore[arg-type]

    def counting_close(self: OpenFile) -> None:
        closed[0] += 1
        close(self)

    monkeypatch.setattr(OpenFile, "__init__", counting_make)
    monkeypatch.setattr(OpenFile, "close", counting_close)

    async def main(loop: VirtualLoop) -> tuple[int, int]:
        disk, fatal = SimDisk(loop.fork("disk")), []
        metadata = store(loop, disk, fatal, every=1)
        await metadata.open()
        disk.faults.add("write", prefix="metadata/snapshot", error=errno.ENOSPC)
        before = opened[0] - closed[0]
        for number in range(20):
            await metadata.propose(topic(number))
        while metadata._rotating is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not fatal
        return before, opened[0] - closed[0]

    before, after = simulate(main, 0, limit_seconds=600)
    assert after <= before + 2, f"{after - before} files more are open after 20 commands"


@pytest.mark.parametrize("at", range(12))
def test_names_that_a_killed_process_made_are_durable_before_they_are_relied_on(at: int) -> None:
    """P2, for names: kill -9 during the first start, a second start and a command; then the power fails."""

    async def main(loop: VirtualLoop) -> int:
        disk, fatal = SimDisk(loop.fork("disk")), []
        first = store(loop, disk, fatal)

        class Killed(Exception):
            pass

        burn, left = disk._burn, [at]

        def fused(what: str) -> None:
            if left[0] == 0:
                left[0] = -1
                disk.kill()
                raise Killed
            left[0] -= 1
            burn(what)

        disk._burn = fused  # type: ignore[method-assign]
        try:
            await first.open()
        except (Killed, asyncio.CancelledError):
            pass
        disk._burn = burn  # type: ignore[method-assign]
        disk.kill()
        second = store(loop, disk, fatal)
        await second.open()
        await second.propose(topic(1))
        disk.crash(Loss.ALL)
        third = store(loop, disk, fatal)
        await third.open()
        return len(third.state.topics)

    assert simulate(main, 0, limit_seconds=600) == 1


@pytest.mark.parametrize("at", range(16))
def test_a_snapshot_seen_after_a_kill_is_durable_before_a_command_relies_on_it(at: int) -> None:
    """P2: kill -9 while a snapshot replaces the journal, another start, one command; then power fails."""

    async def main(loop: VirtualLoop) -> list[str]:
        disk, fatal = SimDisk(loop.fork("disk")), []
        first = store(loop, disk, fatal, every=2)
        await first.open()
        await first.propose(topic(0))
        burn, left = disk._burn, [at]

        def fused(what: str) -> None:
            if what.startswith(("create metadata/journal-0000000000000003.log",)) or left[0] < at:
                if left[0] == 0:
                    left[0] = -1
                    disk.kill()
                    raise OSError(errno.EIO, "killed")
                left[0] -= 1
            burn(what)

        disk._burn = fused  # type: ignore[method-assign]
        await first.propose(topic(1))
        for _ in range(100):
            await asyncio.sleep(0.01)
        disk._burn = burn  # type: ignore[method-assign]
        disk.kill()
        second = store(loop, disk, fatal)
        await second.open()
        await second.propose(topic(2))
        disk.crash(Loss.ALL)
        third = store(loop, disk, fatal)
        await third.open()
        return list(third.state.topics)

    assert simulate(main, 0, limit_seconds=600) == ["default/t0", "default/t1", "default/t2"]
