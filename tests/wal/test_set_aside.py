"""What comes back of records that were given up is kept under another name, byte for byte (F6)."""

from __future__ import annotations

import errno

import pytest
from wal_helpers import IDENTITY, new_disk, reopen, values_in, written_log

from ister.frame import HEADER_SIZE, frames_in
from ister.testing import Loss, SimDisk
from ister.testing.faults import DeadProcess
from ister.wal.seal_cut import cut_at_seal
from ister.wal.set_aside import TailAside, find_aside, set_aside

LOG = IDENTITY.path + ".log"
FRAME = HEADER_SIZE + 24


def written(*, checkpoint_at: int = 0, frames: int = 6) -> SimDisk:
    """Frames of two records each from offset 100 on, and a checkpoint behind some."""
    pairs = [(b"a-%d" % number, b"b-%d" % number) for number in range(frames)]
    return written_log(new_disk(), pairs, checkpoint_at=checkpoint_at)


def name(start: int, end: int) -> str:
    return f"{IDENTITY.path}.lost-{start}-{end}.log"


@pytest.mark.parametrize("checkpoint_at", [0, 3, 4, 6])
def test_the_tail_is_kept_byte_for_byte_and_the_log_can_be_cut_then(checkpoint_at: int) -> None:
    disk = written(checkpoint_at=checkpoint_at)
    before = disk.durable_bytes(LOG)
    assert set_aside(disk.mount(), IDENTITY, 106) == [TailAside(106, 112, name(106, 112), is_new=True)]
    disk.crash(Loss.ALL)
    assert disk.durable_bytes(LOG) == before, "it is not cut here"
    kept = disk.durable_bytes(name(106, 112))
    assert kept == before[3 * FRAME :]
    assert [frame.header.base_offset for frame in frames_in(kept[: 3 * FRAME])] == [106, 108, 110]
    assert cut_at_seal(disk.mount(), IDENTITY, 106, known_commit=0).is_complete
    assert values_in(reopen(disk.mount(), sealed_end=106))[-1] == b"b-2"
    assert set_aside(disk.mount(), IDENTITY, 106) == [TailAside(106, 112, name(106, 112))], "once"


@pytest.mark.parametrize("checkpoint_at", [0, 4])
def test_a_log_of_which_nothing_is_kept_is_renamed_as_it_is(checkpoint_at: int) -> None:
    disk = written(checkpoint_at=checkpoint_at)
    before = disk.durable_bytes(LOG)
    assert set_aside(disk.mount(), IDENTITY, 100) == [TailAside(100, 112, name(100, 112), is_new=True)]
    disk.crash(Loss.ALL)
    assert disk.durable_bytes(name(100, 112)) == before
    assert not disk.exists(LOG) and not disk.exists(IDENTITY.path + ".side")
    assert disk.exists(IDENTITY.path + ".lost-100-112.side") is bool(checkpoint_at)


@pytest.mark.parametrize("end", [112, 113, 5000])
def test_a_log_that_has_nothing_of_it_stays_where_it_is(end: int) -> None:
    disk = written()
    assert set_aside(disk.mount(), IDENTITY, end) == []
    assert disk.list("segments/1") == ["1-7.log", "1-7.side"]


def test_no_log_is_nothing_to_keep() -> None:
    assert set_aside(new_disk().mount(), IDENTITY, 100) == []


def test_damage_in_the_tail_costs_nothing_of_it() -> None:
    disk = written()
    disk.rot(LOG, 4 * FRAME + 70)
    before = disk.durable_bytes(LOG)
    (tail,) = set_aside(disk.mount(), IDENTITY, 106)
    assert (tail.from_offset, tail.end_offset) == (106, 108), "as far as it can be read"
    assert disk.durable_bytes(tail.file) == before[3 * FRAME :], "and what lies behind the damage"


@pytest.mark.parametrize("checkpoint_at", [0, 6])
def test_damage_in_what_is_to_be_kept_sets_all_aside_that_cannot_be_told_apart(checkpoint_at: int) -> None:
    disk = written(checkpoint_at=checkpoint_at)
    disk.rot(LOG, FRAME + 70)
    before = disk.durable_bytes(LOG)
    (tail,) = set_aside(disk.mount(), IDENTITY, 106)
    kept = disk.durable_bytes(tail.file).rstrip(b"\0")
    if checkpoint_at:  # it is known that more was durable: the log is damaged, and goes as a whole
        assert (tail.from_offset, kept) == (100, before.rstrip(b"\0")) and not disk.exists(LOG)
    else:
        assert (tail.from_offset, kept) == (102, before[FRAME:].rstrip(b"\0")) and disk.exists(LOG)


@pytest.mark.parametrize("lost_from", [100, 106])
def test_a_crash_at_any_step_loses_nothing_and_doing_it_again_ends_it(lost_from: int) -> None:
    steps = 0
    while True:
        disk = written(checkpoint_at=2)
        before = disk.durable_bytes(LOG).rstrip(b"\0")
        wanted = before if lost_from == 100 else before[3 * FRAME :]
        assert len(wanted) > 2 * FRAME
        disk.crash_after(steps)
        try:
            set_aside(disk.mount(), IDENTITY, lost_from)
            finished = True
        except (DeadProcess, OSError):
            finished = False
        disk.crash(Loss.ALL)
        where = [path for path in (LOG, name(lost_from, 112)) if disk.exists(path)]
        assert any(disk.durable_bytes(path).rstrip(b"\0").endswith(wanted) for path in where), steps
        assert set_aside(disk.mount(), IDENTITY, lost_from)[0].file == name(lost_from, 112)
        assert disk.durable_bytes(name(lost_from, 112)).rstrip(b"\0") == wanted
        if finished:
            return
        steps += 1


def test_a_full_disk_leaves_no_half_of_it_behind() -> None:
    disk = written()
    mounted = disk.mount()
    disk.faults.add("write", suffix=".new", error=errno.ENOSPC)
    with pytest.raises(OSError, match="lost-106-112"):
        set_aside(mounted, IDENTITY, 106)
    assert disk.list("segments/1") == ["1-7.log", "1-7.side"]


def test_only_what_is_named_so_is_taken_for_a_tail() -> None:
    disk = new_disk()
    for file in ("1-7.log", "1-7.lost-1-2.log", "1-7.lost-1-2.side", "1-7.lost-x-2.log", "1-77.lost-3-4.log"):
        disk.mount().open(f"segments/1/{file}", create=True).close()
    assert find_aside(disk.mount(), IDENTITY.path) == [TailAside(1, 2, name(1, 2))]
