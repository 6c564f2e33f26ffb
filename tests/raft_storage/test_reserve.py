"""A full disk can still take what makes room (P5): the Raft journal always has space reserved ahead."""

from __future__ import annotations

import errno
import random

import pytest

from ister.errors import StorageFailed
from ister.raft.durable import RESERVE_BYTES, DurableStorage
from ister.raft.messages import Entry, EntryKind, Membership, SnapshotMetadata
from ister.raft.storage import HardState
from ister.testing import Loss, SimDisk


def loaded(disk: SimDisk) -> DurableStorage:
    storage = DurableStorage(disk.mount())
    storage.load()
    return storage


def journal_of(disk: SimDisk) -> str:
    (name,) = [name for name in disk.mount().list("raft") if name.endswith(".log")]
    return f"raft/{name}"


def reserved(disk: SimDisk) -> int:
    """Bytes that the journal has ahead of what is in it."""
    data = disk.durable_bytes(journal_of(disk))
    return len(data) - len(data.rstrip(b"\0"))


def fill(disk: SimDisk) -> None:
    """Not a byte is free any more."""
    disk.capacity -= disk.free_bytes()


def write(storage: DurableStorage, index: int, size: int = 1000) -> None:
    data = random.Random(index).randbytes(size).replace(b"\0", b"1")
    storage.append(HardState(1, 1, index), [Entry(1, index, EntryKind.COMMAND, data)])
    storage.sync()


def test_at_least_half_of_the_reserve_is_there_at_any_time() -> None:
    disk = SimDisk(random.Random(1))
    storage = loaded(disk)
    for index in range(1, 2500):
        write(storage, index)
        if index % 50 == 0:
            assert reserved(disk) > RESERVE_BYTES // 2 - 10_000


def test_the_reserve_is_there_again_after_a_start() -> None:
    disk = SimDisk(random.Random(1))
    storage = loaded(disk)
    write(storage, 1)
    disk.crash(Loss.ALL)
    disk.tear(journal_of(disk), storage._position)  # as a copy of the file may be that somebody restored
    storage = loaded(disk)
    fill(disk)
    for index in range(2, 500):
        write(storage, index)
    disk.crash(Loss.ALL)
    assert len(DurableStorage(disk.mount()).load().entries) == 499


@pytest.mark.parametrize("seed", range(20))
def test_a_torn_tail_on_a_full_disk_does_not_cost_the_reserve(seed: int) -> None:
    """The tail is cut together with what is reserved behind it; that space is taken again at once."""
    disk = SimDisk(random.Random(seed))
    storage = loaded(disk)
    for index in range(1, 400):
        write(storage, index)
    fill(disk)
    storage.append(None, [Entry(1, 400, EntryKind.COMMAND, b"x" * 9000)])
    disk.faults.add("sync", prefix="raft/journal", count=1)
    with pytest.raises(StorageFailed):
        storage.sync()
    disk.crash()
    storage = loaded(disk)
    for index in range(400, 500):
        write(storage, index)
    assert reserved(disk) > 64 * 1024


def test_a_journal_is_not_given_up_for_one_without_a_reserve() -> None:
    disk = SimDisk(random.Random(1))
    storage = loaded(disk)
    for index in range(1, 11):
        write(storage, index)
    storage.save_snapshot(SnapshotMetadata(10, 1, Membership((1,))), b"state")
    disk.capacity = disk.capacity - disk.free_bytes() + RESERVE_BYTES // 2
    with pytest.raises(OSError, match="No space") as failure:
        storage.compact(10)
    assert failure.value.errno == errno.ENOSPC
    fill(disk)
    for index in range(11, 200):
        write(storage, index)
    disk.capacity = 1 << 40
    storage.compact(10)
    disk.crash(Loss.ALL)
    state = DurableStorage(disk.mount()).load()
    assert [entry.index for entry in state.entries] == list(range(11, 200))


def test_a_start_on_a_full_disk_needs_no_room_even_behind_a_snapshot() -> None:
    disk = SimDisk(random.Random(1))
    storage = loaded(disk)
    for index in range(1, 11):
        write(storage, index)
    storage.save_snapshot(SnapshotMetadata(8, 1, Membership((1,))), b"state")
    storage.compact(3)  # some entries stay behind it, for peers that are a little late
    fill(disk)
    for last in (20, 30):
        disk.crash(Loss.ALL)
        storage = DurableStorage(disk.mount())
        indexes = [entry.index for entry in storage.load().entries]
        assert indexes == list(range(9, last - 9))
        for index in range(last - 9, last + 1):
            write(storage, index)
