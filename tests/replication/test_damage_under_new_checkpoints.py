"""A crash while a mended copy is put in place: new checkpoints do not call the old log whole."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from ister.errors import CorruptSegment
from ister.frame import frames_in
from ister.io.disk import Disk
from ister.replication.copies import copying
from ister.replication.copies.copying import ASIDE
from ister.wal.opening import create
from ister.wal.seal_cut import cut_at_seal
from tests.replication.log_helpers import DATA, FRAME, FRAMES, IDENTITY, LOG, end_of, new_disk


def put(disk: Disk, data: bytes, path: str, checkpoints: tuple[int, ...]) -> None:
    made = create(disk, replace(IDENTITY, path=path), [], 0)
    made.file.write([data], 0)
    made.file.sync()
    for number, frame in enumerate(frames_in(data), 1):
        made.take(frame.header)
        if number in checkpoints:
            made.checkpoint()
    made.side.sync()
    made.close()


class Stopped(Exception):
    pass


class Until:
    """A disk whose process is killed after so many renames."""

    def __init__(self, disk: Disk, renames: int) -> None:
        self._disk, self._left = disk, renames

    def rename(self, old: str, new: str) -> None:
        if not self._left:
            raise Stopped
        self._left -= 1
        self._disk.rename(old, new)

    def remove(self, path: str) -> None:
        self._disk.remove(path)

    def sync_directory(self, path: str) -> None:
        self._disk.sync_directory(path)


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_log_that_is_damaged_is_not_taken_for_whole_after_a_crash(renames: int) -> None:
    disk, end = new_disk(), end_of(FRAMES[:20])
    put(disk, DATA, IDENTITY.path, (10, 40))  # a replica that went on past what is sealed now
    disk.rot(LOG, 15 * FRAME + FRAME - 3)
    with pytest.raises(CorruptSegment):  # so it is found at each start, and replaced
        cut_at_seal(disk, IDENTITY, end, known_commit=0)
    put(disk, DATA[: 20 * FRAME], IDENTITY.path + ASIDE, (20,))
    with contextlib.suppress(Stopped):
        copying._put_in_place(Until(disk, renames), IDENTITY.path + ASIDE, IDENTITY.path)  # type: ignore[arg-type]
    is_good = disk.cached_bytes(LOG)[: 20 * FRAME] == DATA[: 20 * FRAME]
    try:
        is_called_whole = cut_at_seal(disk, IDENTITY, end, known_commit=0).is_complete
    except CorruptSegment:
        is_called_whole = False
    assert is_good or not is_called_whole, "damage that every start had found is hidden by now"
