"""Opening a log after any kind of stop (P1-P3)."""

from __future__ import annotations

import asyncio
import errno
import random

import pytest
from wal_helpers import IDENTITY, new_disk, open_bench, reopen, values_in

from ister.errors import CorruptSegment
from ister.frame import encode
from ister.testing import Loss, SimDisk

LOG = IDENTITY.path + ".log"
SIDE = IDENTITY.path + ".side"


def written(frames: int = 5, seed: int = 0) -> tuple[SimDisk, int]:
    """A disk with this many durable frames of one record each; and the log's size."""
    disk = new_disk(seed)

    async def main() -> int:
        bench = open_bench(disk.mount())
        for number in range(frames):
            bench.append(b"value-%d" % number, producer_id=3, sequence=number)
            await bench.settle()
        return bench.segment.position

    return disk, asyncio.run(main())


def append_raw(disk: SimDisk, data: bytes, position: int) -> None:
    file = disk.mount().open(LOG)
    file.write([data], position)
    file.sync()


def test_everything_durable_is_there_after_a_power_cut() -> None:
    disk, position = written()
    disk.crash(Loss.ALL)
    recovered = reopen(disk.mount())
    assert values_in(recovered) == [b"value-%d" % n for n in range(5)]
    assert (recovered.end_offset, recovered.position, recovered.cut_bytes) == (105, position, 0)


def test_w5_counts_and_producers_come_from_the_log_not_from_memory() -> None:
    """W5: entry counts live in memory only and are wrong after a restart."""
    disk, _ = written()
    disk.crash(Loss.ALL)
    recovered = reopen(disk.mount())
    assert recovered.end_offset == 105
    assert recovered.producers.rows() == [
        (3, [(n, 1, 100 + n, frame[3]) for n, frame in enumerate(recovered.producers.rows()[0][1])])
    ]


@pytest.mark.parametrize("torn", [1, 10, 63, 64, 70])
def test_d3_a_torn_tail_is_cut_reported_and_does_not_poison_what_comes_later(torn: int) -> None:
    """D3: a torn tail is never truncated and poisons every later file."""
    disk, position = written()
    append_raw(disk, encode([b"never acknowledged"])[:torn], position)
    recovered = reopen(disk.mount())
    assert recovered.end_offset == 105
    assert torn - 8 < recovered.cut_bytes <= torn, "zeros at its end look like reserved space"
    assert recovered.cut_reason

    async def go_on() -> None:
        bench = open_bench(disk.mount(), reopen(disk.mount()))
        bench.append(b"later")
        await bench.settle()

    asyncio.run(go_on())
    disk.crash(Loss.ALL)
    again = reopen(disk.mount())
    assert (again.cut_bytes, values_in(again)[-1]) == (0, b"later")


def test_reserved_zeros_behind_the_log_are_no_torn_tail() -> None:
    disk, _ = written()
    disk.mount().open(LOG).allocate(1 << 20)
    recovered = reopen(disk.mount())
    assert (recovered.cut_bytes, recovered.end_offset) == (0, 105)


def frame_positions(disk: SimDisk) -> list[int]:
    data = disk.durable_bytes(LOG)
    found, at = [], data.find(b"ISTF")
    while at >= 0:
        found.append(at)
        at = data.find(b"ISTF", at + 1)
    return found


@pytest.mark.parametrize("place", ["magic", "header", "body"])
def test_p3_damage_before_the_tail_is_an_error_that_names_offsets_never_an_end(place: str) -> None:
    disk, _ = written()
    second = frame_positions(disk)[1]
    disk.rot(LOG, second + {"magic": 0, "header": 20, "body": 75}[place], bit=3)
    with pytest.raises(CorruptSegment, match="offsets 101 to 101 cannot be read"):
        reopen(disk.mount())


def test_w12_a_zeroed_block_in_the_middle_is_damage_not_the_end() -> None:
    """W12: recovery stops a file at the first zeroed block."""
    disk, _ = written()
    positions = frame_positions(disk)
    append_raw(disk, b"\0" * (positions[3] - positions[1]), positions[1])
    with pytest.raises(CorruptSegment, match="offsets 101 to 102"):
        reopen(disk.mount())


def test_w13_records_that_look_like_frames_are_not_taken_for_frames() -> None:
    """W13: blocks are rescanned at fixed strides, decoding payload as headers."""
    disk = new_disk()
    inner = encode([b"a frame inside a record"])

    async def main() -> int:
        bench = open_bench(disk.mount())
        bench.append(inner, inner)
        bench.append(b"after")
        await bench.settle()
        return bench.segment.position

    position = asyncio.run(main())
    append_raw(disk, encode([inner * 3])[:-5], position)
    recovered = reopen(disk.mount())
    assert values_in(recovered) == [inner, inner, b"after"]
    assert recovered.cut_bytes > 0


def test_frames_of_another_segment_are_never_taken_for_its_own() -> None:
    disk, position = written()
    foreign = bytearray(encode([b"foreign"]))
    append_raw(disk, bytes(foreign), position)
    assert reopen(disk.mount()).end_offset == 105


def test_p2_what_recovery_keeps_survives_a_power_cut_right_after() -> None:
    """kill -9 leaves frames in the page cache; recovery serves them; then the power fails."""
    disk = new_disk()

    async def main() -> None:
        bench = open_bench(disk.mount())
        disk.faults.add("sync", suffix=".log", error=errno.EIO)
        bench.append(b"never synced")
        await bench.settle()

    asyncio.run(main())
    disk.faults.clear()
    disk.kill()
    first = values_in(reopen(disk.mount()))
    disk.crash(Loss.ALL)
    assert values_in(reopen(disk.mount())) == first == [b"never synced"]


def test_refused_records_do_not_come_back_when_the_process_goes_on() -> None:
    disk, position = written()
    disk2 = disk.mount()
    recovered = reopen(disk2, cut_at=103)
    assert (recovered.end_offset, recovered.cut_bytes > 0) == (103, True)
    assert recovered.position < position
    disk.crash(Loss.ALL)
    assert len(values_in(reopen(disk.mount()))) == 3


def test_f3_a_sealed_segment_is_clipped_at_its_end_and_must_reach_it() -> None:
    disk, _ = written()
    assert values_in(reopen(disk.mount(), sealed_end=104)) == [b"value-%d" % n for n in range(4)]
    with pytest.raises(CorruptSegment, match="offsets 105 to 109 cannot be read"):
        reopen(disk.mount(), sealed_end=110)


def test_a_missing_log_is_an_error_never_an_empty_one() -> None:
    disk, _ = written()
    disk.mount().remove(LOG)
    with pytest.raises(CorruptSegment, match="has no log"):
        reopen(disk.mount())


@pytest.fixture
def small_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("ister.wal.segment", "ister.wal.side_file"):
        monkeypatch.setattr(f"{module}.CHECKPOINT_INTERVAL_BYTES", 1000)
        monkeypatch.setattr(f"{module}.INDEX_INTERVAL_BYTES", 200)


@pytest.mark.usefixtures("small_checkpoints")
def test_recovery_reads_only_what_came_after_the_last_checkpoint() -> None:
    disk, position = written(frames=100)
    recovered = reopen(disk.mount())
    assert recovered.source == "checkpoint + scan"
    assert recovered.scanned_bytes < 1200 < position
    assert (recovered.end_offset, len(recovered.index)) == (200, pytest.approx(100 * 80 / 240, abs=20))


@pytest.mark.usefixtures("small_checkpoints")
@pytest.mark.parametrize("seed", range(20))
def test_a_torn_or_missing_side_file_costs_time_and_no_record(seed: int) -> None:
    disk, _ = written(frames=60)
    rng = random.Random(seed)
    whole = len(disk.durable_bytes(SIDE))
    match seed % 3:
        case 0:
            disk.tear(SIDE, rng.randrange(whole))
        case 1:
            disk.rot(SIDE, rng.randrange(whole), bit=rng.randrange(8))
        case 2:
            disk.mount().remove(SIDE)
    recovered = reopen(disk.mount())
    assert values_in(recovered) == [b"value-%d" % n for n in range(60)]
    assert len(recovered.producers.rows()[0][1]) == 8


@pytest.mark.usefixtures("small_checkpoints")
def test_a_log_shorter_than_its_checkpoint_is_damage() -> None:
    disk, position = written(frames=60)
    disk.tear(LOG, position // 2)
    with pytest.raises(CorruptSegment, match="were durable"):
        reopen(disk.mount())


@pytest.mark.parametrize("seed", range(200))
def test_after_any_crash_a_prefix_with_all_acknowledged_records_is_there(seed: int) -> None:
    """A crash at a random moment with random loss: what was acknowledged is there, in order, once."""
    disk = new_disk(seed)
    rng = random.Random(seed)

    async def main() -> tuple[list[bytes], dict[int, bytes]]:
        bench = open_bench(disk.mount())
        sent: list[bytes] = []
        tokens: dict[int, bytes] = {}
        crash_after = rng.randrange(1, 40)
        for number in range(60):
            value = b"%d-" % number + rng.randbytes(rng.randrange(400))
            sent.append(value)
            tokens[bench.append(value)] = value
            if rng.random() < 0.4:
                await bench.settle()
            if number == crash_after:
                break
        return sent, {at: tokens[token] for token, at in bench.answers.appended_at.items()}

    sent, acknowledged = asyncio.run(main())
    disk.crash()
    values = values_in(reopen(disk.mount()))
    assert values == sent[: len(values)]
    assert all(values[at - IDENTITY.base_offset] == value for at, value in acknowledged.items())
