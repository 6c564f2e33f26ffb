"""A corrupt copy is replaced as a whole: at any moment there is the old log or the new one, no mixture."""

from __future__ import annotations

import pytest

from ister.errors import CorruptFrame, CorruptSegment, StorageFailed
from ister.replication.copies.copying import Copied, Source, replace_copy
from ister.testing import Loss, SimDisk
from tests.replication.log_helpers import (
    DATA,
    END,
    FRAME,
    FRAMES,
    LOG,
    SIDE,
    Replica,
    answering,
    copy_in_small_steps,
    durable,
    end_of,
    new_disk,
    put_checkpointed,
    reopened,
    run,
    run_until_it_dies,
    wanted,
)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    copy_in_small_steps(monkeypatch)


def replaced(disk: SimDisk, source: Source, end: int = END) -> Copied:
    return run(lambda clock: replace_copy(disk.mount(), clock, wanted(end), source))


def corrupt_copy(seed: int = 0) -> tuple[SimDisk, bytes]:
    disk = new_disk(seed)
    put_checkpointed(disk, DATA)
    disk.rot(LOG, 5 * FRAME + 100, bit=2)
    return disk, durable(disk)


def test_a_corrupt_copy_is_replaced_by_a_good_one() -> None:
    disk, _ = corrupt_copy()
    copied = replaced(disk, Replica(FRAMES).source)
    assert (copied.end_offset, copied.end_position) == (END, len(DATA))
    disk.crash(Loss.ALL)
    assert durable(disk) == DATA
    assert disk.list("segments/1") == ["1-7.log", "1-7.side"]
    assert reopened(disk.mount(), sealed_end=END).source == "checkpoint"


def test_a_copy_that_was_never_cut_at_the_seal_is_replaced_too() -> None:
    """Its checkpoints speak of more than the new log has."""
    disk, _ = corrupt_copy()
    replaced(disk, Replica(FRAMES[:20]).source, end_of(FRAMES[:20]))
    disk.crash(Loss.ALL)
    assert durable(disk) == b"".join(FRAMES[:20])
    assert reopened(disk.mount(), sealed_end=end_of(FRAMES[:20])).position == 20 * FRAME


@pytest.mark.parametrize("end", [20, 40])
def test_a_power_cut_at_any_step_of_a_replacement_leaves_the_old_log_or_the_new(end: int) -> None:
    replica, seen = Replica(FRAMES[:end]), set[bytes]()
    for seed in range(16):
        seen |= left_by_power_cuts(replica, FRAMES[:end], seed)
    assert seen == {corrupt_copy()[1], replica.data}


def left_by_power_cuts(replica: Replica, frames: list[bytes], seed: int) -> set[bytes]:
    """The logs that are found after a power cut at each step."""
    seen, step = set[bytes](), 0
    while True:
        disk, old = corrupt_copy(seed * 1000 + step)
        disk.crash_after(step)
        done = run_until_it_dies(
            lambda clock, disk=disk: replace_copy(disk.mount(), clock, wanted(end_of(frames)), replica.source)
        )
        if done is not None:
            return seen
        found = durable(disk)
        assert found in (old, replica.data)
        if found == replica.data:
            assert reopened(disk.mount(), sealed_end=end_of(frames)).position == len(found)
        seen.add(found)
        replaced(disk, replica.source, end_of(frames))
        disk.crash(Loss.ALL)
        assert durable(disk) == replica.data
        assert disk.list("segments/1") == ["1-7.log", "1-7.side"], "nothing is left over"
        step += 1


def test_a_replacement_that_fails_leaves_the_old_copy_and_nothing_aside() -> None:
    disk, old = corrupt_copy()
    with pytest.raises(CorruptFrame, match="node 2"):
        replaced(disk, answering(b"".join(FRAMES[:4]), FRAMES[5]))
    disk.capacity = disk.capacity - disk.free_bytes() + 10 * FRAME
    with pytest.raises(StorageFailed, match="No space left"):
        replaced(disk, Replica(FRAMES).source)
    disk.capacity = 1 << 30
    disk.faults.add("sync", suffix=".copy.log", count=1, after=1)
    with pytest.raises(StorageFailed, match="Input/output"):
        replaced(disk, Replica(FRAMES).source)
    assert durable(disk) == old
    assert disk.list("segments/1") == ["1-7.log", "1-7.side"]
    assert disk.durable_bytes(SIDE)


def test_a_replacement_from_a_corrupt_source_does_not_happen() -> None:
    disk, old = corrupt_copy()
    replica = Replica(FRAMES)
    replica.disk.rot(LOG, 33 * FRAME + 100)
    with pytest.raises(CorruptSegment):
        replaced(disk, replica.source)
    assert durable(disk) == old
