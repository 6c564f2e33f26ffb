"""Raft's disk: what was synced is there, one call is never seen in part, nothing is consumed by loading."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from ister.errors import CorruptSegment, StorageFailed
from ister.io.disk import LocalDisk
from ister.raft.durable import DurableStorage
from ister.raft.messages import Entry, EntryKind, Membership, SnapshotMetadata
from ister.raft.storage import HardState, StoredState, bootstrap_state
from ister.testing import Loss, SimDisk

MEMBERS = Membership((1, 2, 3))


def entries(term: int, *indexes: int) -> list[Entry]:
    return [Entry(term, index, EntryKind.COMMAND, b"%d-%d" % (term, index)) for index in indexes]


def opened(disk: SimDisk) -> tuple[DurableStorage, StoredState]:
    storage = DurableStorage(disk.mount())
    return storage, storage.load()


def new(seed: int = 1) -> tuple[SimDisk, DurableStorage]:
    disk = SimDisk(random.Random(seed))
    storage, state = opened(disk)
    assert state == StoredState(HardState(), (), None)
    return disk, storage


def test_r1_what_was_synced_is_there_after_a_power_cut_any_number_of_times() -> None:
    """W8, W10: recovery consumes the log; votes and entries are acknowledged before fsync."""
    disk, storage = new()
    storage.append(HardState(3, 2, 0), entries(3, 1, 2, 3))
    storage.sync()
    storage.append(HardState(4, 1, 2), [])
    storage.sync()
    for _ in range(3):
        disk.crash(Loss.ALL)
        _, state = opened(disk)
        assert state.hard_state == HardState(4, 1, 2)
        assert list(state.entries) == entries(3, 1, 2, 3)


def test_entries_replace_everything_from_the_first_ones_index_on() -> None:
    disk, storage = new()
    storage.append(None, entries(1, 1, 2, 3, 4))
    storage.append(HardState(2, 0, 0), entries(2, 3))
    storage.sync()
    disk.crash(Loss.ALL)
    assert list(opened(disk)[1].entries) == [*entries(1, 1, 2), *entries(2, 3)]


@pytest.mark.parametrize("seed", range(60))
def test_one_call_is_never_seen_in_part(seed: int) -> None:
    """A crash with un-synced writes leaves a prefix of the calls, and all that was synced."""
    disk, storage = new(seed)
    rng = random.Random(seed)
    calls: list[tuple[HardState, list[Entry]]] = []
    synced = 0
    for number in range(rng.randrange(1, 25)):
        call = (HardState(number + 1, 0, 0), entries(number + 1, *range(3 * number + 1, 3 * number + 4)))
        storage.append(*call)
        calls.append(call)
        if rng.random() < 0.3:
            storage.sync()
            synced = len(calls)
    disk.crash()
    state = opened(disk)[1]
    kept = state.hard_state.term
    assert synced <= kept <= len(calls)
    assert list(state.entries) == [entry for call in calls[:kept] for entry in call[1]]


def snapshot(index: int, term: int = 1) -> SnapshotMetadata:
    return SnapshotMetadata(index, term, MEMBERS)


@pytest.mark.parametrize("seed", range(40))
def test_w9_a_snapshot_and_the_log_behind_it_survive_a_crash_at_any_step(seed: int) -> None:
    """W9: snapshots are empty and can't be sent; after enough entries the state is gone."""
    disk, storage = new(seed)
    storage.append(HardState(1, 1, 8), entries(1, *range(1, 11)))
    storage.sync()
    disk.crash_after(random.Random(seed).randrange(1, 30))
    try:
        storage.save_snapshot(snapshot(8), b"state" * 100)
        storage.compact(8)
        storage.append(None, entries(1, 11))
        storage.sync()
    except (OSError, StorageFailed):
        pass
    disk.crash()
    state = opened(disk)[1]
    assert state.hard_state == HardState(1, 1, 8)
    covered = state.snapshot.metadata.index if state.snapshot else 0
    if state.snapshot:
        assert state.snapshot.metadata.membership == MEMBERS
        assert state.snapshot.read(0, state.snapshot.size) == b"state" * 100
    indexes = [entry.index for entry in state.entries]
    assert indexes == list(range(indexes[0], indexes[-1] + 1))
    assert indexes[0] <= covered + 1 and indexes[-1] >= 10


def test_chunks_become_a_snapshot_that_replaces_the_log() -> None:
    disk, storage = new()
    storage.append(HardState(5, 0, 2), entries(1, 1, 2, 3))
    storage.sync()
    data = random.Random(1).randbytes(10_000)
    for position in range(0, len(data), 3000):
        storage.write_chunk(snapshot(90, 4), position, data[position : position + 3000])
    handle = storage.install_snapshot(snapshot(90, 4))
    assert handle.read(500, 100) == data[500:600]
    storage.append(None, entries(5, 91))
    storage.sync()
    disk.crash(Loss.ALL)
    state = opened(disk)[1]
    assert state.snapshot is not None
    assert state.snapshot.metadata == snapshot(90, 4)
    assert state.snapshot.read(0, state.snapshot.size) == data
    assert (state.hard_state, [e.index for e in state.entries]) == (HardState(5, 0, 2), [91])


@pytest.mark.parametrize("step", range(1, 40))
def test_what_follows_an_installed_snapshot_survives_whichever_step_a_crash_came_at(step: int) -> None:
    """A stop between the snapshot's rename and the journal behind it left the old entries in the journal."""
    disk, storage = new(step)
    storage.append(HardState(5, 0, 2), entries(1, 1, 2, 3))
    storage.sync()
    disk.crash_after(step)
    try:
        storage.write_chunk(snapshot(90, 4), 0, b"state")
        storage.install_snapshot(snapshot(90, 4))
    except (OSError, StorageFailed):
        pass
    disk.crash(Loss.NONE)
    storage, state = opened(disk)
    first = 91 if state.snapshot is not None else 4
    storage.append(HardState(6, 0, 2), entries(6, first, first + 1))
    storage.sync()
    disk.crash(Loss.ALL)
    state = opened(disk)[1]
    assert [e.index for e in state.entries if e.term == 6] == [first, first + 1]
    assert state.hard_state == HardState(6, 0, 2)


def test_a_snapshot_written_aside_counts_for_nothing_until_it_is_adopted() -> None:
    disk, storage = new()
    storage.append(HardState(1, 1, 8), entries(1, *range(1, 11)))
    storage.sync()
    storage.write_snapshot(snapshot(8), b"state")
    disk.crash(Loss.NONE)
    storage, state = opened(disk)
    assert (state.snapshot, len(state.entries)) == (None, 10)
    storage.save_snapshot(snapshot(9), b"newer")  # what the crash left behind is in nobody's way
    disk.crash(Loss.ALL)
    found = opened(disk)[1].snapshot
    assert found is not None
    assert (found.metadata, found.read(0, found.size)) == (snapshot(9), b"newer")


def test_the_journal_goes_on_while_a_snapshot_is_written_aside() -> None:
    disk, storage = new()
    storage.append(HardState(1, 1, 8), entries(1, *range(1, 11)))
    storage.sync()
    written = storage.write_snapshot(snapshot(8), b"state")
    storage.append(HardState(2, 1, 10), entries(2, 11))
    storage.sync()
    assert storage.adopt_snapshot(written) is not None
    storage.compact(8)
    disk.crash(Loss.ALL)
    state = opened(disk)[1]
    assert state.snapshot is not None
    assert (state.snapshot.metadata.index, state.hard_state) == (8, HardState(2, 1, 10))
    assert list(state.entries) == [*entries(1, 9, 10), *entries(2, 11)]


def test_an_own_snapshot_never_replaces_a_newer_one_that_was_installed_meanwhile() -> None:
    disk, storage = new()
    storage.append(HardState(5, 0, 3), entries(1, 1, 2, 3))
    storage.sync()
    written = storage.write_snapshot(snapshot(3), b"own")
    storage.write_chunk(snapshot(90, 4), 0, b"the leader's")
    storage.install_snapshot(snapshot(90, 4))
    assert storage.adopt_snapshot(written) is None
    disk.crash(Loss.ALL)
    state = opened(disk)[1]
    assert state.snapshot is not None
    assert (state.snapshot.metadata, state.entries) == (snapshot(90, 4), ())
    assert state.snapshot.read(0, state.snapshot.size) == b"the leader's"


def test_a_snapshot_stays_readable_while_it_is_held_and_its_file_is_closed_afterwards(tmp_path: Path) -> None:
    def open_files() -> int:
        links = [fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
        return sum(f"{tmp_path}/raft/snapshot" in str(link) for link in links)

    storage = DurableStorage(LocalDisk(tmp_path))
    storage.load()
    held = storage.save_snapshot(snapshot(1), b"first")
    for index in range(2, 10):
        storage.save_snapshot(snapshot(index), b"later")
    assert held.read(0, held.size) == b"first"
    assert open_files() == 2, "the one that is held, and the newest"
    del held
    assert open_files() == 1
    storage.close()


def test_p1_after_a_failed_sync_nothing_more_is_taken() -> None:
    disk, storage = new()
    disk.faults.add("sync", prefix="raft/journal", count=1, error=errno.EIO)
    storage.append(HardState(1, 1, 0), [])
    with pytest.raises(StorageFailed, match="cannot be written"):
        storage.sync()
    with pytest.raises(StorageFailed, match="not trusted"):
        storage.sync()


def test_i1_a_disk_that_has_a_state_is_never_bootstrapped() -> None:
    disk, storage = new()
    assert storage.is_empty
    storage.seed(bootstrap_state([7]))
    disk.crash(Loss.ALL)
    again, state = opened(disk)
    assert [entry.kind for entry in state.entries] == [EntryKind.MEMBERSHIP]
    with pytest.raises(Exception, match="never bootstrapped"):
        again.seed(bootstrap_state([7]))


@pytest.mark.parametrize("what", ["journal", "snapshot"])
def test_damage_is_an_error_never_a_forgotten_vote(what: str) -> None:
    disk, storage = new()
    for term in range(1, 6):
        storage.append(HardState(term, 1, 0), entries(term, term))
        storage.sync()
    storage.save_snapshot(snapshot(2), b"x" * 100)
    name = next(n for n in disk.mount().list("raft") if n.startswith(what) and not n.endswith(".side"))
    disk.rot(f"raft/{name}", 75, bit=1)
    with pytest.raises(CorruptSegment):
        opened(disk)


def test_damage_in_what_an_earlier_start_has_checked_is_an_error_too() -> None:
    disk, storage = new()
    for term in range(1, 6):
        storage.append(HardState(term, 1, 0), entries(term, term))
        storage.sync()
    disk.kill()
    opened(disk)  # leaves a checkpoint: the next one does not scan what is before it
    disk.kill()
    disk.rot("raft/journal-0000000000000001.log", 75, bit=1)
    with pytest.raises(CorruptSegment, match="metadata journal") as caught:
        opened(disk)
    assert "Restore" in caught.value.hint


def test_a_journal_under_anothers_name_is_an_error_and_stays_as_it_is() -> None:
    disk, storage = new()
    storage.append(HardState(1, 1, 0), entries(1, 1))
    storage.sync()
    disk.kill()
    mount, name = disk.mount(), "raft/journal-0000000000000009.log"
    mount.rename("raft/journal-0000000000000001.log", name)
    before = read(disk, name)
    with pytest.raises(CorruptSegment, match="under another name"):
        opened(disk)
    assert read(disk, name) == before


def read(disk: SimDisk, path: str) -> bytes:
    file = disk.mount().open(path)
    return file.read(file.size(), 0)


@pytest.mark.parametrize("index", [2, 5])
def test_a_journal_whose_snapshot_is_gone_is_an_error(index: int) -> None:
    disk, storage = new()
    storage.append(HardState(1, 1, 5), entries(1, *range(1, 6)))
    storage.sync()
    storage.save_snapshot(snapshot(index), b"x")
    storage.compact(index)
    disk.kill()
    disk.mount().remove("raft/snapshot")
    with pytest.raises(CorruptSegment, match="snapshot"):
        opened(disk)


def test_i2_a_node_that_is_not_new_does_not_begin_with_nothing() -> None:
    disk = SimDisk(random.Random(1))
    with pytest.raises(CorruptSegment, match="no journal"):
        DurableStorage(disk.mount()).load(may_be_new=False)
    assert DurableStorage(disk.mount()).load() == StoredState(HardState(), (), None)


def test_what_is_kept_may_be_larger_than_a_client_may_send() -> None:
    """A compacted journal is one frame, and a client's limit on frames is not the log's."""
    disk, storage = new()
    large = [Entry(1, index, EntryKind.COMMAND, bytes(8 << 20)) for index in range(1, 10)]
    storage.append(HardState(1, 1, 9), large)
    storage.save_snapshot(snapshot(1), b"x")
    storage.compact(0)
    disk.kill()
    assert len(opened(disk)[1].entries) == 8
