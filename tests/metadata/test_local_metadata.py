"""One node's metadata: durable before it is answered, the same after any number of restarts."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable

import pytest

from ister.errors import CorruptSegment, IsterError
from ister.io.clock import SystemClock
from ister.metadata.commands import CreateTopic, Result, SealSegment
from ister.metadata.local import LocalMetadata
from ister.protocol.messages import TopicSettings
from ister.testing import Loss, SimDisk
from ister.wal.group_commit import GroupCommit


def create(number: int) -> CreateTopic:
    return CreateTopic(f"default/t{number}", TopicSettings(), 1, [1], number)


Story = Callable[[LocalMetadata], Awaitable[None]]


def run(disk: SimDisk, story: Story, *, snapshot_every: int = 10_000) -> list[IsterError]:
    fatal: list[IsterError] = []

    async def main() -> None:
        mount, clock = disk.mount(), SystemClock()
        commits = GroupCommit(mount, clock)
        store = LocalMetadata(mount, clock, commits, on_fatal=fatal.append, snapshot_every=snapshot_every)
        await store.open()
        await story(store)
        await commits.stop()

    asyncio.run(main())
    return fatal


async def look(store: LocalMetadata) -> None:
    """Open and go, as a restart does."""


def names(disk: SimDisk) -> list[str]:
    found: list[str] = []

    async def story(store: LocalMetadata) -> None:
        found.extend(store.state.topics)

    run(disk, story)
    return found


def test_what_was_answered_is_there_after_a_power_cut() -> None:
    disk = SimDisk(random.Random(1))

    async def story(store: LocalMetadata) -> None:
        for number in range(20):
            assert (await store.propose(create(number))).result is Result.CREATED

    run(disk, story)
    disk.crash(Loss.ALL)
    assert names(disk) == [f"default/t{n}" for n in range(20)]


def test_w8_any_number_of_restarts_see_the_same() -> None:
    """W8: recovery consumes the log, so that the second restart sees only later entries."""
    disk = SimDisk(random.Random(1))

    async def story(store: LocalMetadata) -> None:
        await asyncio.gather(*(store.propose(create(n)) for n in range(30)))

    run(disk, story)
    for _ in range(4):
        disk.crash(Loss.ALL)
        run(disk, look)
        assert len(names(disk)) == 30


@pytest.mark.parametrize("seed", range(30))
def test_w9_d17_snapshots_are_real_and_the_log_behind_them_too(seed: int) -> None:
    """W9, D17: snapshots are empty or never persisted, and the state is gone after enough entries."""
    disk = SimDisk(random.Random(seed))
    rng = random.Random(seed)
    answered = 0
    for _ in range(6):
        steps = rng.randrange(1, 40)

        async def story(store: LocalMetadata, steps: int = steps) -> None:
            nonlocal answered
            assert len(store.state.topics) >= answered
            for _ in range(steps):
                await store.propose(create(len(store.state.topics)))
                answered = len(store.state.topics)

        run(disk, story, snapshot_every=7)
        disk.crash()
    assert len(names(disk)) == answered
    logs = [name for name in disk.mount().list("metadata") if name.endswith(".log")]
    assert len(logs) == 1, "journals that a snapshot covers are removed"


def test_p1_a_failed_sync_of_the_journal_stops_the_node_and_is_not_answered() -> None:
    disk = SimDisk(random.Random(1))

    async def story(store: LocalMetadata) -> None:
        await store.propose(create(1))
        disk.faults.add("sync", prefix="metadata/journal", count=1, error=errno.EIO)
        with pytest.raises(IsterError, match="journal"):
            await store.propose(create(2))
        with pytest.raises(IsterError):
            await store.propose(create(3))

    fatal = run(disk, story)
    assert len(fatal) == 1
    assert "cannot be written" in fatal[0].message


def test_p5_a_full_disk_can_still_seal_and_trim() -> None:
    disk = SimDisk(random.Random(1))

    async def story(store: LocalMetadata) -> None:
        uid = (await store.propose(create(1))).topic_uid
        disk.capacity = 0
        for segment in range(1, 200):
            command = SealSegment(uid, segment, segment * 10, 0, 1, [1], [], 0, 1, 0)
            assert (await store.propose(command)).result is Result.APPLIED

    assert run(disk, story) == []


@pytest.mark.parametrize("name", ["snapshot", "journal"])
def test_damaged_metadata_is_an_error_never_an_empty_state(name: str) -> None:
    disk = SimDisk(random.Random(1))

    async def story(store: LocalMetadata) -> None:
        for number in range(25):
            await store.propose(create(number))

    run(disk, story, snapshot_every=10)
    path = next(
        f"metadata/{found}"
        for found in disk.mount().list("metadata")
        if found.startswith(name) and not found.endswith(".side")
    )
    disk.rot(path, 70, bit=2)
    with pytest.raises(CorruptSegment):
        run(disk, look)


def test_a_missing_journal_behind_a_snapshot_is_an_error() -> None:
    disk = SimDisk(random.Random(1))

    async def story(store: LocalMetadata) -> None:
        for number in range(25):
            await store.propose(create(number))

    run(disk, story, snapshot_every=10)
    mount = disk.mount()
    for found in mount.list("metadata"):
        if found.endswith(".log"):
            mount.remove(f"metadata/{found}")
    with pytest.raises(CorruptSegment, match="missing"):
        run(disk, look)


def test_watchers_hear_every_command_in_order_with_its_index() -> None:
    disk = SimDisk(random.Random(1))
    heard: list[int] = []

    async def story(store: LocalMetadata) -> None:
        store.watch(lambda command, outcome: heard.append(outcome.index))
        await asyncio.gather(*(store.propose(create(n % 5)) for n in range(20)))

    run(disk, story)
    assert heard == list(range(1, 21))
