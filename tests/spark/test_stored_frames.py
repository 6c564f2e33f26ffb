"""Objects of the history read past the brokers: the range that is asked for, checked, or an exact error."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ister.errors import ConfigError, CorruptSegment, ObjectNotFound, StoreUnavailable
from ister.frame import HEADER_SIZE, encode, stamp
from ister.history.format import Exported, FramesOf, object_crc
from ister.io.file_store import FilesystemStore
from ister.spark import stored
from ister.spark.ranges import Descriptor
from ister.spark.stored import StoredFrames

UID, BASE, RECORDS = 77, 1_000, 10


def frame_bytes(base: int, uid: int = UID, filler: bytes = b"") -> bytes:
    made = bytearray(encode([b"%d" % offset + filler for offset in range(base, base + RECORDS)]))
    stamp(made, base, uid, 5_000 + base)
    return bytes(made)


class Kept:
    """A segment of `frames` frames as an object in a directory."""

    def __init__(self, root: Path, frames: int = 200, filler: bytes = b"." * 500) -> None:
        self.root = root
        self.data = [frame_bytes(BASE + RECORDS * number, filler=filler) for number in range(frames)]
        self.segment = Exported(
            "c1", "default/t", 5, 3, UID, BASE, BASE + RECORDS * frames, sum(map(len, self.data))
        )
        taking = FramesOf(self.segment, "a log")
        taking.take(b"".join(self.data))
        ending = taking.ending()
        whole = b"".join(self.data) + ending
        self.found = Descriptor(
            root.as_uri(), "c1/default/t/o.ister", len(whole), object_crc(ending), self.segment
        )
        self.put(whole)

    @property
    def path(self) -> Path:
        return self.root / self.found.name

    def put(self, whole: bytes) -> None:
        self.path.unlink(missing_ok=True)
        store = FilesystemStore(self.root, "t")
        asyncio.run(store.put_if_absent(self.found.name, whole))
        store.close()

    def read(self, start: int, end: int, *, verify: bool = True) -> list[int]:
        frames = StoredFrames(self.found.store, verify=verify, patience_s=0.2)
        try:
            return [frame.header.base_offset for frame in frames.frames(self.found, start, end)]
        finally:
            frames.close()


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    monkeypatch.setattr(stored, "CHUNK_BYTES", 100_000)
    return Kept(tmp_path)


@pytest.mark.parametrize(
    ("start", "end"), [(1000, 3000), (1000, 1001), (2999, 3000), (1995, 2005), (1010, 1020), (1500, 3000)]
)
def test_a_range_is_the_frames_that_have_its_records_and_no_others(kept: Kept, start: int, end: int) -> None:
    first = start - start % RECORDS
    assert kept.read(start, end) == list(range(first, end, RECORDS))


def test_any_two_ranges_that_meet_have_all_frames(kept: Kept) -> None:
    for middle in range(1_001, 3_000, 371):
        both = {*kept.read(1_000, middle), *kept.read(middle, 3_000)}
        assert sorted(both) == list(range(1_000, 3_000, RECORDS))


def test_only_what_is_near_the_range_is_read(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    get = FilesystemStore.get

    async def counted(self: FilesystemStore, name: str, start: int, length: int) -> bytes:
        asked.append((start, length))
        return await get(self, name, start, length)

    monkeypatch.setattr(FilesystemStore, "get", counted)
    kept.read(2_000, 2_010)
    _, *ranges = asked
    assert sum(length for _, length in ranges) <= 2 * 65_536 + len(kept.data[0])


@pytest.mark.parametrize("verify", [True, False])
def test_a_flipped_bit_is_an_error_with_the_frames_offsets_behind_what_is_good(
    kept: Kept, verify: bool
) -> None:
    frame = 150
    position = sum(map(len, kept.data[:frame]))
    whole = bytearray(kept.path.read_bytes())
    whole[position + (HEADER_SIZE + 9 if verify else 40)] ^= (
        1  # a body, or a header where only those are looked at
    )
    kept.put(bytes(whole))
    frames = StoredFrames(kept.found.store, verify=verify)
    good: list[int] = []
    with pytest.raises(CorruptSegment, match=f"o[.]ister in .* is damaged at byte {position}") as caught:
        good.extend(one.header.base_offset for one in frames.frames(kept.found, BASE, 3_000))
    frames.close()
    assert good == list(range(BASE, BASE + RECORDS * frame, RECORDS))
    assert caught.value.offsets is not None
    first, behind = caught.value.offsets
    assert first == BASE + RECORDS * frame
    if verify:
        assert behind == first + RECORDS
    assert kept.read(behind, 3_000)[-1] == 2_990


def test_without_checksums_a_body_is_taken_as_it_is(kept: Kept) -> None:
    whole = bytearray(kept.path.read_bytes())
    whole[HEADER_SIZE + 9] ^= 1
    kept.put(bytes(whole))
    assert kept.read(1_000, 1_020, verify=False) == [1_000, 1_010]


def test_an_object_that_is_cut_short_or_another_or_missing_is_an_error_that_names_it(
    kept: Kept, tmp_path: Path
) -> None:
    whole = kept.path.read_bytes()
    kept.put(whole[: len(whole) // 2])
    with pytest.raises(CorruptSegment, match=r"o\.ister"):
        kept.read(1_000, 3_000)
    # Another object of the same segment, whole by itself: not the one that was published.
    other = Kept(tmp_path / "other", filler=b"," * 500)
    kept.put(other.path.read_bytes())
    with pytest.raises(CorruptSegment, match="not the one that was published") as caught:
        kept.read(1_000, 3_000)
    assert caught.value.offsets == (1_000, 3_000)
    kept.path.unlink()
    with pytest.raises(ObjectNotFound, match=r"o\.ister"):
        kept.read(1_000, 3_000)


def test_a_store_that_does_not_answer_is_waited_for_and_then_an_error_that_says_where_it_is_read(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    get, failures = FilesystemStore.get, iter([True, False, True, False])

    async def failing(self: FilesystemStore, name: str, start: int, length: int) -> bytes:
        if next(failures, False):
            raise StoreUnavailable("away")
        return await get(self, name, start, length)

    monkeypatch.setattr(FilesystemStore, "get", failing)
    assert kept.read(1_000, 1_010) == [1_000]

    async def down(self: FilesystemStore, name: str, start: int, length: int) -> bytes:
        raise StoreUnavailable("away")

    monkeypatch.setattr(FilesystemStore, "get", down)
    with pytest.raises(StoreUnavailable) as caught:
        kept.read(1_000, 1_010)
    assert "credentials" in caught.value.hint


def test_a_directory_that_is_not_mounted_is_said_and_is_no_missing_object(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory here"):
        StoredFrames((tmp_path / "nowhere").as_uri())
