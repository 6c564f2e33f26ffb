"""Reading a log in which bytes have changed: what is good is found, and what is not is named."""

from __future__ import annotations

import random

import pytest

from ister.columns import Codec
from ister.errors import CorruptSegment
from ister.frame import HEADER_SIZE, Frame, decode, encode, frames_in, stamp
from ister.io.disk import File
from ister.testing import SimDisk
from ister.wal.checking import check_frames, check_run
from ister.wal.reader import Found, first_offset_at_or_after, plan_read, plan_search
from ister.wal.side_file import SparseIndex

BASE = 100
LARGE = 1 << 20


def stamped(frame: bytes, offset: int, time_us: int = 1) -> bytes:
    written = bytearray(frame)
    stamp(written, offset, 7, time_us)
    return bytes(written)


def frames_of_all_kinds() -> list[bytes]:
    made = [
        encode([b"lone"]),
        encode([b"a", b"", None, b"d"]),
        encode([b"v", b"w"], keys=[b"k", None], timestamps_us=[1, 2], headers=[[("h", b"x")], []]),
        encode([b"same"] * 200, codec=Codec.LZ4),
        encode([b"same"] * 200, codec=Codec.ZSTD),
    ]
    offset, found = BASE, []
    for frame in made:
        found.append(stamped(frame, offset))
        good = decode(found[-1])
        assert isinstance(good, Frame)
        offset = good.header.end_offset
    return found


class Log:
    """Frames of three records each, with an index, on a simulated disk."""

    def __init__(self, frames: int, value_bytes: int = 1000) -> None:
        self.disk = SimDisk(random.Random(1))
        self.file: File = self.disk.mount().open("log", create=True)
        self.index = SparseIndex()
        self.places: list[int] = []
        self.position, self.end = 0, BASE
        for number in range(frames):
            frame = stamped(encode([b"%06d" % number + b"." * value_bytes] * 3), self.end, number)
            self.file.write([frame], self.position)
            self.index.add(self.end, self.position, number)
            self.places.append(self.position)
            self.position, self.end = self.position + len(frame), self.end + 3
        self.file.sync()

    def read(self, offset: int, max_bytes: int = LARGE) -> Found:
        plan = plan_read("t", self.file, self.index, self.position, self.end, offset, max_bytes)
        return plan.run_checked()

    def rot(self, frame: int, byte: int) -> None:
        self.disk.rot("log", self.places[frame] + byte)


def test_every_flipped_bit_is_found_in_the_frame_that_has_it() -> None:
    frames = frames_of_all_kinds()
    data = b"".join(frames)
    starts = [sum(map(len, frames[:number])) for number in range(len(frames))]
    assert check_frames(data, BASE)[0] == len(data) and check_frames(data, BASE)[2] == ""
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        position, offset, reason = check_frames(flipped, BASE)
        assert position == max(start for start in starts if start <= at) and reason
        assert offset == (frames_in(data[:position])[-1].header.end_offset if position else BASE)


@pytest.mark.parametrize("cut", [1, HEADER_SIZE - 1, HEADER_SIZE, HEADER_SIZE + 5])
def test_a_frame_that_is_not_there_in_full_is_no_frame(cut: int) -> None:
    frames = frames_of_all_kinds()
    position, _, reason = check_frames(frames[0] + frames[1][:cut], BASE)
    assert position == len(frames[0]) and "missing" in reason


def test_what_lies_before_a_damaged_body_is_served_and_the_rest_can_be_read() -> None:
    log = Log(20)
    log.rot(5, HEADER_SIZE + 100)
    found = log.read(BASE)
    assert found.records == 15 and len(frames_in(found.buffers[0])) == 5
    assert found.damage is not None and found.damage.offsets == (BASE + 15, BASE + 18)
    for offset in range(BASE + 15, BASE + 18):
        with pytest.raises(CorruptSegment) as caught:
            log.read(offset)
        assert caught.value.offsets == (BASE + 15, BASE + 18)
        assert f"offset {BASE + 18}" in caught.value.hint
    assert log.read(BASE + 18).records == 42


def test_behind_a_damaged_header_reading_goes_on_at_the_next_place_that_is_known() -> None:
    log = Log(100)
    known = [offset for place in log.places if (offset := log.index.offset_at(place)) is not None]
    first, following = BASE + 15, next(offset for offset in known if offset > BASE)
    log.rot(5, 20)
    found = log.read(BASE)
    assert found.records == 15
    assert found.damage is not None and found.damage.offsets == (first, following)
    for offset in (first, first + 7, following - 1):
        with pytest.raises(CorruptSegment) as caught:
            log.read(offset)
        assert caught.value.offsets == (first, following)
        assert "header checksum does not match" in caught.value.message
        assert "Corrupt(" not in caught.value.message
    assert log.read(following).damage is None


def test_behind_the_last_place_that_is_known_it_goes_on_at_the_end() -> None:
    log = Log(4)
    log.rot(2, 20)
    with pytest.raises(CorruptSegment) as caught:
        log.read(BASE + 6)
    assert caught.value.offsets == (BASE + 6, log.end)


def test_a_good_frame_before_a_damaged_header_is_served_alone() -> None:
    log = Log(20)
    log.rot(5, 20)
    assert log.read(BASE + 12, max_bytes=1).records == 3


def test_a_search_by_time_names_what_it_could_not_read() -> None:
    log = Log(20)
    log.rot(5, 20)
    plan = plan_search("t", log.file, log.index, log.position, log.end, 3)
    assert first_offset_at_or_after(plan, 3) == BASE + 9
    with pytest.raises(CorruptSegment) as caught:
        first_offset_at_or_after(plan, 8)
    assert caught.value.offsets == (BASE + 15, log.end)


def test_a_run_is_of_one_segment_without_a_gap_within_its_limit_and_says_what_ends_it() -> None:
    frames = frames_of_all_kinds()
    data = b"".join(frames)
    end = check_run(data, 7, BASE).end_offset
    whole = check_run(data, 7, BASE, end)
    assert whole.size == len(data) and len(whole.headers) == len(frames) and not whole.ends_because

    rotten = bytearray(data)
    rotten[len(frames[0]) + HEADER_SIZE] ^= 1
    for run, size, why in (
        (check_run(data[:-1], 7, BASE), len(data) - len(frames[-1]), "1 bytes of a frame are missing"),
        (check_run(data, 8, BASE), 0, "a frame of segment 7, and not of 8"),
        (check_run(frames[0] + frames[2], 7, BASE), len(frames[0]), "a frame at offset 105, 101 is next"),
        (check_run(data, 7, BASE, end - 1), len(data) - len(frames[-1]), f"reaches to {end}, past {end - 1}"),
        (check_run(rotten, 7, BASE), len(frames[0]), "body checksum"),
    ):
        assert run.size == size and why in run.ends_because
