"""A replica's log after a stop: where it ends, and what it must admit that it may have lost (P3)."""

from __future__ import annotations

import asyncio

import pytest
from wal_helpers import IDENTITY, new_disk, open_bench, reopen, values_in, written_log

from ister.errors import CorruptSegment
from ister.frame import HEADER_SIZE
from ister.io.disk import Disk
from ister.testing import Loss, SimDisk
from ister.testing.faults import DeadProcess
from ister.wal.opening import OpenedLog, measure, recover

LOG = IDENTITY.path + ".log"
SIDE = IDENTITY.path + ".side"
DOUBT = IDENTITY.path + ".doubt"
FRAME = HEADER_SIZE + 16


def written(seed: int = 0, *, checkpoint_at: int = 0, frames: int = 6) -> SimDisk:
    """A log of frames of one record each, every one in a cycle of its own; and a checkpoint behind some."""
    values = [(b"value-%d" % number,) for number in range(frames)]
    return written_log(new_disk(seed), values, checkpoint_at=checkpoint_at)


def follow(disk: Disk, **how: int) -> OpenedLog:
    return recover(disk, IDENTITY, [], 0, is_follower=True, **how)


def test_in_a_followers_log_damage_is_where_it_ends_whatever_follows() -> None:
    disk = written()
    disk.rot(LOG, 2 * FRAME + 70)
    with pytest.raises(CorruptSegment, match="offset 103 and later can"):
        reopen(disk.mount())
    recovered = follow(disk.mount())
    assert (recovered.end_offset, recovered.position) == (102, 2 * FRAME)
    assert recovered.in_doubt and recovered.cut_reason
    assert 3 * FRAME < recovered.cut_bytes <= 4 * FRAME
    disk.crash(Loss.ALL)
    assert len(disk.durable_bytes(LOG)) == 2 * FRAME
    assert values_in(follow(disk.mount())) == [b"value-0", b"value-1"]


def test_a_clean_log_is_not_in_doubt_and_says_nothing_about_it() -> None:
    disk = written()
    disk.mount().open(LOG).allocate(1 << 16)
    recovered = follow(disk.mount())
    assert (recovered.end_offset, recovered.in_doubt, recovered.cut_bytes) == (106, False, 0)
    assert not disk.exists(DOUBT)


def test_damage_below_the_last_checkpoint_is_never_an_end() -> None:
    disk = written(checkpoint_at=5)
    disk.rot(LOG, 2 * FRAME + 70)
    for how in ({"cut_at": 104}, {"sealed_end": 104}):
        with pytest.raises(CorruptSegment, match=r"offset 102 cannot be read .* were durable"):
            follow(disk.mount(), **how)
    disk.tear(LOG, 4 * FRAME)
    with pytest.raises(CorruptSegment, match="were durable"):
        follow(disk.mount())


def test_zeros_below_the_last_checkpoint_are_never_an_end() -> None:
    disk = written(checkpoint_at=6)
    file = disk.mount().open(LOG)
    file.write([bytes(4 * FRAME)], 2 * FRAME)
    file.sync()
    with pytest.raises(CorruptSegment, match="offset 102 cannot be read"):
        follow(disk.mount(), cut_at=104)


def test_a_leader_that_cuts_a_torn_tail_is_in_doubt_and_one_that_cuts_what_it_refused_is_not() -> None:
    disk = written()
    disk.rot(LOG, 5 * FRAME + 70)
    torn = reopen(disk.mount())
    assert (torn.end_offset, torn.in_doubt) == (105, True)
    refused = reopen(disk.mount(), cut_at=103)
    assert (refused.end_offset, refused.in_doubt) == (103, False)
    assert not disk.exists(DOUBT), "with one replica there is nobody to tell"


@pytest.mark.parametrize("how", [{"is_follower": True}, {"is_replicated": True}])
def test_a_replica_is_in_doubt_at_every_start_after_it_cut(how: dict[str, bool]) -> None:
    disk = written()
    disk.rot(LOG, 5 * FRAME + 70)
    for _ in range(3):
        recovered = recover(disk.mount(), IDENTITY, [], 0, **how)
        assert (recovered.end_offset, recovered.in_doubt) == (105, True)
        disk.crash(Loss.ALL)


@pytest.mark.parametrize("seed", range(10))
def test_a_power_cut_at_any_step_of_a_recovery_never_makes_a_replica_forget_its_doubt(seed: int) -> None:
    step = 0
    while True:
        disk = written(seed, checkpoint_at=2)
        disk.rot(LOG, 4 * FRAME + 70)
        disk.crash_after(step)
        try:
            follow(disk.mount())
        except DeadProcess:
            again = follow(disk.mount())
            assert (again.end_offset, again.in_doubt) == (104, True)
            step += 1
            continue
        assert step > 6
        return


def test_a_doubt_ends_when_the_log_has_again_what_it_had() -> None:
    disk = written()
    whole = disk.durable_bytes(LOG)[: 6 * FRAME]
    disk.rot(LOG, 4 * FRAME + 70)
    assert follow(disk.mount()).in_doubt

    def append(frame: int) -> OpenedLog:
        file = disk.mount().open(LOG)
        file.write([whole[frame * FRAME : (frame + 1) * FRAME]], frame * FRAME)
        file.sync()
        return follow(disk.mount())

    assert append(4).in_doubt
    last = append(5)
    assert (last.end_offset, last.in_doubt) == (106, False)
    assert last.position >= last.doubtful_until > 5 * FRAME


def test_a_doubt_that_cannot_be_read_is_a_doubt() -> None:
    disk = written()
    disk.rot(LOG, 5 * FRAME + 70)
    follow(disk.mount())
    disk.rot(DOUBT, 6)
    assert follow(disk.mount()).in_doubt


def test_a_tail_is_not_cut_if_the_doubt_cannot_be_written() -> None:
    disk = written()
    disk.rot(LOG, 5 * FRAME + 70)
    before = disk.durable_bytes(LOG)
    disk.faults.add("write", suffix=".doubt.new")
    with pytest.raises(OSError, match="Input/output"):
        follow(disk.mount())
    assert disk.durable_bytes(LOG) == before


# Ends that lie below a checkpoint: of several replicas, one may have written more than was committed.


def test_a_sealed_segment_is_clipped_below_its_checkpoint() -> None:
    disk = written(checkpoint_at=5)
    recovered = reopen(disk.mount(), sealed_end=103)
    assert (recovered.end_offset, recovered.position) == (103, 3 * FRAME)
    assert values_in(recovered) == [b"value-0", b"value-1", b"value-2"]


@pytest.mark.parametrize("seed", range(10))
def test_a_log_that_is_cut_below_its_checkpoint_opens_after_a_power_cut_at_any_step(seed: int) -> None:
    step = 0
    while True:
        disk = written(seed, checkpoint_at=5)
        disk.crash_after(step)
        try:
            reopen(disk.mount(), cut_at=103)
        except DeadProcess:
            assert reopen(disk.mount()).end_offset in (103, 106)
            again = reopen(disk.mount(), cut_at=103)
            assert (again.end_offset, values_in(again)[-1]) == (103, b"value-2")
            step += 1
            continue
        disk.crash(Loss.ALL)
        assert reopen(disk.mount()).end_offset == 103
        assert step > 4
        return


def test_an_end_within_a_frame_is_an_error() -> None:
    disk = new_disk()

    async def main() -> None:
        bench = open_bench(disk.mount())
        bench.append(b"a", b"b", b"c")
        await bench.settle()

    asyncio.run(main())
    with pytest.raises(CorruptSegment, match="reaches across it, to 103"):
        reopen(disk.mount(), sealed_end=101)


def test_measuring_a_log_cuts_nothing_of_what_lies_behind_damage() -> None:
    disk = written()
    disk.rot(LOG, 2 * FRAME + 70)
    before = disk.durable_bytes(LOG)
    found = measure(disk.mount(), IDENTITY, [], 0)
    assert (found.end_offset, found.position) == (102, 2 * FRAME)
    found.close()
    disk.crash(Loss.ALL)
    assert disk.durable_bytes(LOG) == before
