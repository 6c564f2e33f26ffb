"""Every byte of a sealed log is looked at: damage is found wherever it is, and nothing else is."""

from __future__ import annotations

import asyncio
import errno

import pytest

from ister.errors import StorageFailed
from ister.frame import HEADER_SIZE
from ister.replication.copies import scrub
from ister.replication.copies.scrub import Finding, scrub_log
from ister.testing import SimDisk, VirtualLoop, simulate
from tests.open_files import OpenedFiles
from tests.replication.log_helpers import (
    DATA,
    END,
    FRAME,
    FRAMES,
    IDENTITY,
    LOG,
    SIDE,
    clock_of,
    end_of,
    foreign,
    new_disk,
    put_checkpointed,
    put_log,
    run,
)


@pytest.fixture(autouse=True, params=[FRAME - 10, 3 * FRAME + 70, 1024 * 1024])
def chunk_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks smaller than a frame, of a few and a half, and of all."""
    monkeypatch.setattr(scrub, "CHUNK_BYTES", request.param)


def found_in(disk: SimDisk, end: int = END) -> Finding | None:
    return run(lambda clock: scrub_log(disk.mount(), clock, IDENTITY, end, bytes_per_second=0))


def disk_with(data: bytes) -> SimDisk:
    disk = new_disk()
    put_log(disk, data)
    return disk


def test_a_whole_log_has_no_finding() -> None:
    assert found_in(disk_with(DATA)) is None


def test_what_lies_past_the_sealed_end_is_not_looked_at() -> None:
    disk = disk_with(DATA + b"torn" + bytes(4096))
    disk.rot(LOG, 35 * FRAME + 5)
    assert found_in(disk, end_of(FRAMES[:35])) is None


def test_an_empty_segment_is_whole_with_a_log_and_without() -> None:
    assert found_in(disk_with(b""), IDENTITY.base_offset) is None
    assert found_in(new_disk(), IDENTITY.base_offset) is None


@pytest.mark.parametrize("frame", [0, 17, 39])
@pytest.mark.parametrize("at", [0, 20, 61, HEADER_SIZE, HEADER_SIZE + 100, FRAME - 1])
def test_a_single_rotten_bit_is_found_where_it_is(frame: int, at: int) -> None:
    disk = new_disk()
    put_checkpointed(disk, DATA)
    disk.rot(LOG, frame * FRAME + at, bit=at % 8)
    finding = found_in(disk)
    assert finding is not None
    assert (finding.offset, finding.position) == (100 + 3 * frame, frame * FRAME)
    assert finding.reason


def test_a_rotten_side_file_is_no_loss() -> None:
    disk = new_disk()
    put_checkpointed(disk, DATA)
    disk.rot(SIDE, 20)
    assert found_in(disk) is None


@pytest.mark.parametrize("size", [0, 10 * FRAME, 10 * FRAME + 30, 10 * FRAME + FRAME - 1])
def test_a_log_that_ends_early_is_found(size: int) -> None:
    finding = found_in(disk_with(DATA[:size]))
    assert finding is not None and (("early" in finding.reason) if size else True)
    assert finding.offset == 100 + 3 * (size // FRAME)


def test_a_log_of_zeros_behind_its_frames_is_found_to_end_early() -> None:
    finding = found_in(disk_with(DATA[: 10 * FRAME] + bytes(30 * FRAME)))
    assert finding is not None and finding.offset == 130


def test_a_missing_log_is_found() -> None:
    assert found_in(new_disk()) == Finding(100, 0, "there is no log")


def test_a_gap_and_a_foreign_frame_and_one_across_the_end_are_found() -> None:
    gap = found_in(disk_with(b"".join(FRAMES[:5] + FRAMES[6:])))
    assert gap == Finding(115, 5 * FRAME, "a frame at offset 118, 115 is next")
    strangers = foreign(FRAMES, 8)
    stranger = found_in(disk_with(b"".join([*FRAMES[:5], strangers[5], *FRAMES[6:]])))
    assert stranger == Finding(115, 5 * FRAME, "a frame of segment 8, and not of 7")
    across = found_in(disk_with(DATA), END - 1)
    assert across is not None and across.offset == END - 3 and f"past {END - 1}" in across.reason


def test_a_place_that_cannot_be_read_is_found() -> None:
    disk = disk_with(DATA)
    disk.faults.add("read", suffix=".log")
    finding = found_in(disk)
    assert finding is not None and "Input/output" in finding.reason


@pytest.mark.parametrize("error", [errno.ENOMEM, errno.EAGAIN])
def test_a_read_for_which_there_was_no_room_is_no_finding_but_an_error(error: int) -> None:
    disk = disk_with(DATA)
    disk.faults.add("read", suffix=".log", error=error)
    with pytest.raises(StorageFailed, match="cannot be read at offset 100"):
        found_in(disk)


def test_a_log_that_cannot_be_opened_is_no_finding_but_an_error() -> None:
    disk = disk_with(DATA)
    disk.faults.add("open", suffix=".log", error=errno.EMFILE)
    with pytest.raises(StorageFailed, match="cannot be opened"):
        found_in(disk)


def test_a_scrub_takes_as_long_as_its_rate_says() -> None:
    disk = disk_with(DATA)

    async def main(loop: VirtualLoop) -> float:
        await scrub_log(disk, clock_of(loop), IDENTITY, END, bytes_per_second=FRAME)
        return loop.time()

    assert 40.0 <= simulate(main, 0) < 40.5


def test_a_scrub_may_be_cancelled_between_chunks_and_closes_its_file() -> None:
    disk = disk_with(DATA)
    opened = OpenedFiles(disk)

    async def main(loop: VirtualLoop) -> None:
        work = scrub_log(disk, clock_of(loop), IDENTITY, END, bytes_per_second=FRAME)
        task = loop.create_task(work)
        await asyncio.sleep(0.5)  # in the wait after the first chunk
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert loop.time() < 1.0

    simulate(main, 0)
    assert len(opened) == 1 and not opened.still_open
