"""A log brought up to an offset from another replica: whole, checked, durable, or an error that names who."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from ister.errors import CorruptFrame, CorruptSegment, NodeUnreachable, StorageFailed
from ister.frame import HEADER_SIZE
from ister.io.disk import read_whole
from ister.replication.copies.copying import Copied, Source, copy_log, read_frames, replace_copy
from ister.testing import Loss, SimDisk, VirtualLoop, simulate
from ister.wal.producers import ProducerTable
from tests.open_files import OpenedFiles
from tests.replication.log_helpers import (
    DATA,
    END,
    FRAME,
    FRAMES,
    IDENTITY,
    LOG,
    PRODUCER,
    Replica,
    answering,
    clock_of,
    copy_in_small_steps,
    durable,
    end_of,
    foreign,
    new_disk,
    put_checkpointed,
    put_log,
    reopened,
    run,
    run_until_it_dies,
    wanted,
)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    copy_in_small_steps(monkeypatch)


def copy(disk: SimDisk, source: Source, end: int = END, rate: int = 0) -> Copied:
    return run(lambda clock: copy_log(disk.mount(), clock, wanted(end), source, bytes_per_second=rate))


def folded(frames: list[bytes]) -> ProducerTable:
    table = ProducerTable()
    for number in range(len(frames)):
        table.record(PRODUCER, 3 * number, 3, 100 + 3 * number, 1_000 + number)
    return table


# A copy.


def test_a_copy_is_the_source_byte_for_byte_and_durable() -> None:
    disk = new_disk()
    copied = copy(disk, Replica(FRAMES).source)
    disk.crash(Loss.ALL)
    assert durable(disk) == DATA
    assert (copied.end_offset, copied.end_position, copied.copied_bytes) == (END, len(DATA), len(DATA))


def test_a_copy_knows_what_the_seal_needs() -> None:
    copied = copy(new_disk(), Replica(FRAMES).source)
    assert copied.producers.rows() == folded(FRAMES).rows()
    assert copied.last_append_time_us == 1_000 + len(FRAMES) - 1


def test_what_the_seal_before_carried_is_in_the_table_of_the_copy() -> None:
    carried = [(99, [(0, 1, 50, 7)])]
    ask = replace(wanted(END), carried=carried, last_append_time_us=5_000_000)
    disk, source = new_disk(), Replica(FRAMES).source
    copied = run(lambda clock: copy_log(disk, clock, ask, source))
    assert copied.producers.rows() == [*folded(FRAMES).rows(), *carried]
    assert copied.last_append_time_us == 5_000_000


def test_a_copy_is_quick_to_open_and_reads_alike() -> None:
    disk = new_disk()
    copy(disk, Replica(FRAMES).source)
    opened = reopened(disk, sealed_end=END)
    assert (opened.source, opened.scanned_bytes, opened.position) == ("checkpoint", 0, len(DATA))
    assert len(opened.index) > 10
    found = read_frames(opened.file, opened.index, "t", opened.position, END, 160, 2 * FRAME)
    assert found == b"".join(FRAMES[20:22])


def test_only_what_is_missing_is_asked_for() -> None:
    disk, replica = new_disk(), Replica(FRAMES)
    put_log(disk, b"".join(FRAMES[:30]))
    copied = copy(disk, replica.source)
    assert replica.asked[0] == end_of(FRAMES[:30])
    assert copied.copied_bytes == 10 * FRAME
    assert copied.producers.rows() == folded(FRAMES).rows()
    disk.crash(Loss.ALL)
    assert durable(disk) == DATA


def test_a_log_that_is_complete_asks_for_nothing_and_gives_reserved_space_back() -> None:
    disk = new_disk()
    put_log(disk, DATA + bytes(4096))
    assert copy(disk, answering()).copied_bytes == 0
    disk.crash(Loss.ALL)
    assert durable(disk) == DATA


def test_a_longer_log_is_not_cut_and_answers_for_the_end_wanted() -> None:
    """Only a seal cuts. The table and the times are those of the end wanted, not of what lies past it."""
    disk = new_disk()
    put_log(disk, DATA)
    shorter = FRAMES[:25]
    copied = copy(disk, answering(), end_of(shorter))
    assert (copied.end_offset, copied.end_position) == (end_of(shorter), 25 * FRAME)
    assert copied.producers.rows() == folded(shorter).rows()
    assert copied.last_append_time_us == 1_024
    assert durable(disk) == DATA


def test_a_longer_log_with_checkpoints_past_the_end_wanted_answers_for_the_end_wanted() -> None:
    disk = new_disk()
    put_checkpointed(disk, DATA)
    copied = copy(disk, answering(), end_of(FRAMES[:25]))
    assert copied.producers.rows() == folded(FRAMES[:25]).rows()


def test_an_end_within_a_frame_that_is_here_is_an_error() -> None:
    disk = new_disk()
    put_log(disk, DATA)
    with pytest.raises(CorruptSegment, match="a frame reaches across it"):
        copy(disk, answering(), END - 1)


def test_an_empty_segment_is_copied_by_making_it() -> None:
    disk = new_disk()
    copied = copy(disk, answering(), IDENTITY.base_offset)
    assert (copied.end_offset, copied.end_position, copied.producers.rows()) == (100, 0, [])
    disk.crash(Loss.ALL)
    assert durable(disk) == b"\0", "its head"


def test_a_segment_whose_directory_is_not_there_is_copied() -> None:
    disk = SimDisk(random.Random(0))
    copy(disk, Replica(FRAMES).source)
    disk.crash(Loss.ALL)
    assert durable(disk) == DATA


def test_checkpoints_of_a_log_that_is_gone_do_not_speak_of_the_new_one() -> None:
    for step in range(8):
        disk = new_disk(step)
        put_checkpointed(disk, DATA)
        disk.mount().remove(LOG)
        disk.mount().sync_directory("segments/1")
        disk.crash_after(step)
        source = Replica(FRAMES).source
        run_until_it_dies(lambda clock, disk=disk, s=source: copy_log(disk.mount(), clock, wanted(END), s))
        copy(disk, source)
        assert durable(disk) == DATA


# Power cuts.


@pytest.mark.parametrize("here", [0, 7])
@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_at_any_step_leaves_a_prefix_and_the_next_attempt_ends_equal(
    seed: int, here: int
) -> None:
    replica, step = Replica(FRAMES), 0
    while True:
        disk = new_disk(seed * 1000 + step)
        if here:
            put_log(disk, b"".join(FRAMES[:here]))
        disk.crash_after(step)
        done = run_until_it_dies(
            lambda clock, disk=disk: copy_log(disk.mount(), clock, wanted(END), replica.source)
        )
        if done is not None:
            break
        if disk.exists(LOG):
            kept = reopened(disk.mount(), is_follower=True)
            assert kept.position >= here * FRAME, "what was durable before stays"
            assert kept.file.read(kept.position, 0) == DATA[: kept.position]
        copy(disk, replica.source)
        disk.crash(Loss.ALL)
        assert durable(disk) == DATA
        step += 1
    assert step > 15


# A source that is wrong.


def flipped(frame: bytes, at: int) -> bytes:
    return frame[:at] + bytes([frame[at] ^ 4]) + frame[at + 1 :]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "it sent nothing"),
        (b"x" * 500, "no frame starts with"),
        (b"".join(foreign(FRAMES[:4], 8)[3:]), "a frame of segment 8"),
        (b"".join(FRAMES[4:6]), "a frame at offset 112, 109 is next"),
        (b"".join(FRAMES[2:5]), "a frame at offset 106, 109 is next"),
        (FRAMES[3][:-1], "1 bytes of a frame are missing"),
        (FRAMES[3] + FRAMES[4][:50], "12: 14 bytes of a frame are missing"),
        (FRAMES[3] + FRAMES[5], "a frame at offset 115, 112 is next"),
        (flipped(FRAMES[3], 20), "header checksum"),
        (flipped(FRAMES[3], HEADER_SIZE + 30), "checksum"),
        (b"".join(FRAMES[3:11]), "reaches to 133, past 130"),
    ],
)
def test_what_is_wrong_from_the_source_names_it_and_is_not_kept(answer: bytes, reason: str) -> None:
    disk = new_disk()
    put_log(disk, b"".join(FRAMES[:3]))
    with pytest.raises(CorruptFrame, match=f"node 2 .*offset 1.*{reason}") as told:
        copy(disk, answering(answer), 130)
    assert "another replica" in told.value.hint
    assert read_whole(disk.mount(), LOG) == b"".join(FRAMES[:3])
    copy(disk, Replica(FRAMES[:10]).source, 130)
    assert durable(disk) == b"".join(FRAMES[:10])


def test_what_came_well_before_it_went_wrong_stays() -> None:
    disk = new_disk()
    with pytest.raises(CorruptFrame, match="for offset 112"):
        copy(disk, answering(b"".join(FRAMES[:4]), b"garbage" * 20))
    replica = Replica(FRAMES)
    copy(disk, replica.source)
    assert replica.asked[0] == 112
    assert durable(disk) == DATA


def test_a_source_that_goes_away_is_told_as_it_was() -> None:
    async def read(offset: int, max_bytes: int) -> bytes:
        raise NodeUnreachable("node 2 does not answer")

    with pytest.raises(NodeUnreachable, match="node 2"):
        copy(new_disk(), Source("node 2", read))


@pytest.mark.parametrize("place", ["header", "body"])
def test_a_corrupt_copy_is_never_a_source(place: str) -> None:
    replica, disk = Replica(FRAMES), new_disk()
    replica.disk.rot(LOG, 21 * FRAME + (20 if place == "header" else HEADER_SIZE + 40))
    with pytest.raises(CorruptSegment, match="default/t:1 is damaged"):
        copy(disk, replica.source)
    kept = reopened(disk.mount(), is_follower=True)
    assert kept.end_offset <= 100 + 3 * 21
    assert kept.file.read(kept.position, 0) == DATA[: kept.position]


# Damage and failures here.


def test_rot_here_past_the_last_checkpoint_is_cut_and_copied_again() -> None:
    disk, replica = new_disk(), Replica(FRAMES)
    put_log(disk, b"".join(FRAMES[:30]))
    disk.rot(LOG, 12 * FRAME + 90)
    copy(disk, replica.source)
    assert replica.asked[0] == 100 + 3 * 12
    disk.crash(Loss.ALL)
    assert durable(disk) == DATA


def test_a_log_here_that_lost_what_was_durable_is_damage_and_is_replaced() -> None:
    disk, replica = new_disk(), Replica(FRAMES)
    put_checkpointed(disk, DATA)
    disk.tear(LOG, 10 * FRAME)
    with pytest.raises(CorruptSegment, match="were durable"):
        copy(disk, replica.source)
    run(lambda clock: replace_copy(disk.mount(), clock, wanted(END), replica.source))
    disk.crash(Loss.ALL)
    assert durable(disk) == DATA


def test_a_full_disk_is_an_error_and_the_copy_goes_on_when_there_is_room() -> None:
    disk = new_disk()
    disk.capacity = 17 * FRAME + 60
    with pytest.raises(StorageFailed, match="No space left"):
        copy(disk, Replica(FRAMES).source)
    kept = reopened(disk.mount(), is_follower=True)
    assert (kept.cut_bytes, kept.in_doubt) == (0, False), "the part that fitted was taken back at once"
    disk.capacity = 1 << 30
    replica = Replica(FRAMES)
    copy(disk, replica.source)
    assert replica.asked[0] > 100 + 3 * 8
    disk.crash(Loss.ALL)
    assert durable(disk) == DATA


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("after", range(4))
def test_p1_what_a_failed_sync_was_to_keep_is_written_anew(seed: int, after: int) -> None:
    disk = new_disk(seed)
    disk.faults.add("sync", suffix=".log", count=1, after=after)
    with pytest.raises(StorageFailed, match="Input/output"):
        copy(disk, Replica(FRAMES).source)
    disk.faults.clear()
    copy(disk, Replica(FRAMES).source)
    disk.crash(Loss.ALL)
    assert durable(disk) == DATA


def test_a_checkpoint_that_cannot_be_written_costs_time_only() -> None:
    disk = new_disk()
    disk.faults.add("write", suffix=".side")
    assert copy(disk, Replica(FRAMES).source).end_offset == END
    disk.faults.clear()
    disk.crash(Loss.ALL)
    assert reopened(disk.mount(), sealed_end=END).position == len(DATA)


# The rate, and being stopped.


@pytest.mark.parametrize(("rate", "seconds"), [(0, 0.5), (FRAME, 36.0)])
def test_a_copy_takes_as_long_as_its_rate_says(rate: int, seconds: float) -> None:
    """40 frames at a frame a second, in chunks of 4: the last chunk is waited for by nobody."""
    disk, replica = new_disk(), Replica(FRAMES)

    async def main(loop: VirtualLoop) -> float:
        await copy_log(disk, clock_of(loop), wanted(END), replica.source, bytes_per_second=rate)
        return loop.time()

    took = simulate(main, 0)
    assert seconds <= took < seconds + 0.5 if rate else took < seconds


@pytest.mark.parametrize("turns", range(1, 40, 3))
def test_a_copy_that_is_cancelled_leaves_no_work_behind_and_no_file_open(turns: int) -> None:
    replica, disk = Replica(FRAMES), new_disk(turns)
    opened = OpenedFiles(disk)

    async def main(loop: VirtualLoop) -> bytes:
        task = loop.create_task(copy_log(disk, clock_of(loop), wanted(END), replica.source))
        for _ in range(turns):
            await asyncio.sleep(0.0005)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or task.done()
        after = read_whole(disk, LOG) if disk.exists(LOG) else b""
        assert not opened.still_open
        await asyncio.sleep(1)
        assert (read_whole(disk, LOG) if disk.exists(LOG) else b"") == after
        return after

    kept = simulate(main, turns)
    assert kept in (DATA[: len(kept)], b"\0")
