"""A replica's promise to a recovery is durable before it is answered, and is never forgotten (F1, F2)."""

from __future__ import annotations

import errno

import pytest

from ister.errors import CorruptSegment, InvariantBroken, SegmentFenced
from ister.replication.recovery.fences import read_fence, write_fence
from ister.testing import Loss
from ister.testing.faults import DeadProcess
from tests.replication.log_helpers import IDENTITY, new_disk

PATH = IDENTITY.path
FENCE = PATH + ".fence"


def test_without_a_fence_nothing_is_promised() -> None:
    assert read_fence(new_disk(), PATH) == 0


def test_a_fence_survives_a_power_cut_right_after_it_was_written() -> None:
    disk = new_disk()
    write_fence(disk.mount(), PATH, 5)
    disk.crash(Loss.ALL)
    assert read_fence(disk.mount(), PATH) == 5


def test_a_fence_needs_no_log_and_no_directory() -> None:
    disk = new_disk()
    write_fence(disk.mount(), "segments/2/1-9", 5)
    disk.crash(Loss.ALL)
    assert read_fence(disk.mount(), "segments/2/1-9") == 5


def test_a_higher_recovery_takes_over_and_a_lower_one_is_refused() -> None:
    disk = new_disk()
    write_fence(disk, PATH, 5)
    write_fence(disk, PATH, 9)
    with pytest.raises(SegmentFenced, match=r"recovery 7 .* recovery 9 has fenced it"):
        write_fence(disk, PATH, 7)
    assert read_fence(disk, PATH) == 9


def test_no_recovery_has_the_number_of_none() -> None:
    disk = new_disk()
    with pytest.raises(InvariantBroken):
        write_fence(disk, PATH, 0)


@pytest.mark.parametrize("standing", [0, 4])
@pytest.mark.parametrize("seed", range(10))
def test_a_power_cut_at_any_step_leaves_the_old_fence_or_the_new_one(seed: int, standing: int) -> None:
    step = 0
    while True:
        disk = new_disk(seed)
        if standing:
            write_fence(disk.mount(), PATH, standing)
        disk.crash_after(step)
        try:
            write_fence(disk.mount(), PATH, 5)
        except DeadProcess:
            assert read_fence(disk.mount(), PATH) in (standing, 5)
            step += 1
            continue
        disk.crash(Loss.ALL)
        assert read_fence(disk.mount(), PATH) == 5
        assert step >= 5, "it was cut at every step: made, written, synced, renamed, directory synced"
        return


@pytest.mark.parametrize("seed", range(10))
def test_a_fence_seen_after_a_kill_is_durable_once_it_is_promised_again(seed: int) -> None:
    """P2: the name was in the page cache when the process died, and is not on the platter."""
    disk = new_disk(seed)
    disk.faults.add("sync_directory", count=1)
    with pytest.raises(OSError, match="Input/output"):
        write_fence(disk.mount(), PATH, 5)
    disk.kill()
    assert read_fence(disk.mount(), PATH) == 5
    write_fence(disk.mount(), PATH, 5)
    disk.crash(Loss.ALL)
    assert read_fence(disk.mount(), PATH) == 5


@pytest.mark.parametrize("operation", ["open", "write", "sync", "rename", "sync_directory"])
def test_a_disk_that_fails_is_an_error_and_no_promise(operation: str) -> None:
    disk = new_disk()
    write_fence(disk, PATH, 4)
    # Reading the standing fence opens a file too; the rule is for the new one.
    disk.faults.add(operation, suffix="" if operation == "sync_directory" else ".new", error=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        write_fence(disk, PATH, 5)
    disk.faults.clear()
    disk.crash(Loss.ALL)
    assert read_fence(disk, PATH) == 4


@pytest.mark.parametrize("byte", range(16))
def test_a_rotten_fence_is_an_error_and_never_no_fence(byte: int) -> None:
    disk = new_disk()
    write_fence(disk, PATH, 5)
    disk.rot(FENCE, byte, bit=byte % 8)
    with pytest.raises(CorruptSegment, match=r"1-7\.fence is damaged") as told:
        read_fence(disk, PATH)
    assert "Do not remove it" in told.value.hint
    with pytest.raises(CorruptSegment):
        write_fence(disk, PATH, 9)


@pytest.mark.parametrize("size", [0, 1, 12, 15])
def test_a_fence_that_is_cut_short_is_an_error_and_never_no_fence(size: int) -> None:
    disk = new_disk()
    write_fence(disk, PATH, 5)
    disk.tear(FENCE, size)
    with pytest.raises(CorruptSegment):
        read_fence(disk, PATH)
