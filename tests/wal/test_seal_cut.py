"""A log is cut at its segment's sealed end, for good, and never below what is known to be committed (F3)."""

from __future__ import annotations

import asyncio
import errno

import pytest
from tests.open_files import OpenedFiles
from wal_helpers import IDENTITY, new_disk, open_bench, reopen, values_in, written_log

from ister.errors import CorruptSegment, InvariantBroken
from ister.frame import HEADER_SIZE
from ister.io.disk import Disk
from ister.testing import Loss, SimDisk
from ister.testing.faults import DeadProcess
from ister.wal.opening import create
from ister.wal.seal_cut import SealCut, cut_at_seal

LOG = IDENTITY.path + ".log"
FRAME = HEADER_SIZE + 24


def written(seed: int = 0, *, checkpoint_at: int = 0, frames: int = 6) -> SimDisk:
    """Frames of two records each, and a checkpoint behind some."""
    pairs = [(b"a-%d" % number, b"b-%d" % number) for number in range(frames)]
    return written_log(new_disk(seed), pairs, checkpoint_at=checkpoint_at, producer_id=3)


def cut(disk: Disk, end: int, known_commit: int = 100) -> SealCut:
    return cut_at_seal(disk, IDENTITY, end, known_commit=known_commit)


@pytest.mark.parametrize("checkpoint_at", [0, 2, 4, 6])
def test_what_lies_past_the_sealed_end_is_gone_for_good(checkpoint_at: int) -> None:
    disk = written(checkpoint_at=checkpoint_at)
    done = cut(disk.mount(), 108, known_commit=108)
    assert (done.end_offset, done.end_position, done.is_complete) == (108, 4 * FRAME, True)
    assert (done.cut_records, done.cut_bytes > FRAME) == (4, True)
    disk.crash(Loss.ALL)
    assert len(disk.durable_bytes(LOG)) == 4 * FRAME
    assert values_in(reopen(disk.mount(), sealed_end=108))[-1] == b"b-3"
    assert reopen(disk.mount()).end_offset == 108


@pytest.mark.parametrize("checkpoint_at", [0, 5])
def test_doing_it_again_changes_nothing(checkpoint_at: int) -> None:
    disk = written(checkpoint_at=checkpoint_at)
    cut(disk.mount(), 108)
    before = disk.durable_bytes(LOG)
    assert cut(disk.mount(), 108) == SealCut(108, 4 * FRAME, True, 0, 0)
    assert disk.durable_bytes(LOG) == before


def test_a_log_that_ends_at_the_seal_only_gives_reserved_space_back() -> None:
    disk = written()
    assert len(disk.durable_bytes(LOG)) > 6 * FRAME
    assert cut(disk.mount(), 112) == SealCut(112, 6 * FRAME, True, 0, 0)
    assert len(disk.durable_bytes(LOG)) == 6 * FRAME


def test_a_torn_frame_past_the_end_is_cut_and_counts_as_no_record() -> None:
    disk = written()
    disk.rot(LOG, 5 * FRAME + 70)
    done = cut(disk.mount(), 108)
    assert (done.cut_records, done.cut_bytes > FRAME) == (2, True)


def test_nothing_is_cut_below_what_is_known_to_be_committed() -> None:
    disk = written()
    before = disk.durable_bytes(LOG)
    with pytest.raises(InvariantBroken, match="sealed at 108, but offsets below 110") as told:
        cut(disk.mount(), 108, known_commit=110)
    assert disk.durable_bytes(LOG) == before
    assert "Keep this data directory" in told.value.hint


def test_a_log_that_ends_short_is_said_to_and_is_left_as_it_is() -> None:
    disk = written()
    before = disk.durable_bytes(LOG)
    assert cut(disk.mount(), 120, known_commit=118) == SealCut(112, 6 * FRAME, False)
    assert disk.durable_bytes(LOG) == before


def test_damage_before_the_sealed_end_is_an_end_that_is_short_unless_a_checkpoint_knows_better() -> None:
    disk = written()
    disk.rot(LOG, 2 * FRAME + 70)
    assert cut(disk.mount(), 108) == SealCut(104, 2 * FRAME, False, has_frames_behind=True)
    known = written(checkpoint_at=5)
    known.rot(LOG, 2 * FRAME + 70)
    with pytest.raises(CorruptSegment, match="offset 104 cannot be read"):
        cut(known.mount(), 108)


def test_a_log_that_is_not_there_is_short_unless_the_segment_is_empty() -> None:
    disk = new_disk()
    assert cut(disk.mount(), 108) == SealCut(100, 0, False)
    assert cut(disk.mount(), 100) == SealCut(100, 0, True)


def test_a_segment_that_was_sealed_empty_is_cut_to_nothing() -> None:
    disk = written(checkpoint_at=3)
    done = cut(disk.mount(), 100)
    assert (done.end_position, done.cut_records, done.is_complete) == (0, 12, True)
    disk.crash(Loss.ALL)
    assert disk.durable_bytes(LOG) == b""
    assert reopen(disk.mount()).end_offset == 100


def test_a_seal_within_a_frame_is_an_error_and_cuts_nothing() -> None:
    disk = written()
    before = disk.durable_bytes(LOG)
    with pytest.raises(CorruptSegment, match="reaches across it, to 108"):
        cut(disk.mount(), 107)
    assert disk.durable_bytes(LOG) == before


@pytest.mark.parametrize("checkpoint_at", [0, 2, 5])
@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_at_any_step_leaves_all_that_is_sealed(seed: int, checkpoint_at: int) -> None:
    step = 0
    while True:
        disk = written(seed, checkpoint_at=checkpoint_at)
        disk.crash_after(step)
        try:
            cut(disk.mount(), 108)
        except DeadProcess:
            assert values_in(reopen(disk.mount(), sealed_end=108))[-1] == b"b-3"
            assert cut(disk.mount(), 108).is_complete
            disk.crash(Loss.ALL)
            assert len(disk.durable_bytes(LOG)) == 4 * FRAME
            step += 1
            continue
        disk.crash(Loss.ALL)
        assert len(disk.durable_bytes(LOG)) == 4 * FRAME
        assert step >= 3
        return


def test_p2_what_was_only_in_the_page_cache_is_durable_when_it_is_called_complete() -> None:
    """The old leader was killed after a failed sync; a survivor had the frame, and sealed behind it."""
    disk = new_disk()

    async def main() -> None:
        bench = open_bench(disk.mount())
        disk.faults.add("sync", suffix=".log", error=errno.EIO)
        bench.append(b"never synced here")
        await bench.settle()

    asyncio.run(main())
    disk.faults.clear()
    disk.kill()
    assert cut(disk.mount(), 101, known_commit=101).is_complete
    disk.crash(Loss.ALL)
    assert values_in(reopen(disk.mount(), sealed_end=101)) == [b"never synced here"]


def test_a_cut_log_is_quick_to_open_where_its_producers_are_known() -> None:
    disk = written()
    cut(disk.mount(), 108)
    assert reopen(disk.mount(), sealed_end=108).source == "scan"
    carried = [(9, [(0, 1, 50, 7)])]
    cut_at_seal(disk.mount(), IDENTITY, 108, known_commit=100, carried=carried, last_append_time_us=1)
    opened = reopen(disk.mount(), sealed_end=108)
    assert (opened.source, opened.scanned_bytes) == ("checkpoint", 0)
    assert [producer for producer, _ in opened.producers.rows()] == [3, 9]


def test_a_failed_disk_is_an_error_and_the_next_attempt_does_it() -> None:
    disk = written(checkpoint_at=5)
    for operation in ("truncate", "sync"):
        rule = disk.faults.add(operation, prefix=IDENTITY.path, count=1)
        with pytest.raises(OSError, match="Input/output"):
            cut(disk.mount(), 108)
        assert rule.struck == 1
    assert cut(disk.mount(), 108).is_complete
    disk.crash(Loss.ALL)
    assert len(disk.durable_bytes(LOG)) == 4 * FRAME


def test_no_file_stays_open_however_it_ends() -> None:
    disk = new_disk()
    create(disk, IDENTITY, [], 0)
    opened = OpenedFiles(disk)
    cut(disk, 100)
    cut(disk, 108)
    disk.faults.add("read")
    with pytest.raises(OSError, match="Input/output"):
        cut(disk, 108)
    assert len(opened) and not opened.still_open
