"""What a replica sends to one that copies from it: whole frames that it has checked, or an error."""

from __future__ import annotations

import pytest

from ister.errors import CorruptSegment
from ister.replication.copies.copying import read_frames
from tests.replication.log_helpers import (
    DATA,
    END,
    FRAME,
    FRAMES,
    LOG,
    Replica,
    copy_in_small_steps,
    new_disk,
    put_log,
)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    copy_in_small_steps(monkeypatch)


def served(replica: Replica, offset: int, max_bytes: int = 1 << 20) -> bytes:
    return replica.read_now(offset, max_bytes)


def test_serving_gives_whole_frames_within_the_bytes_asked_for_and_at_least_one() -> None:
    replica = Replica(FRAMES)
    assert served(replica, 100, 2 * FRAME + 5) == b"".join(FRAMES[:2])
    assert served(replica, 103, 1) == FRAMES[1]
    assert served(replica, 100) == DATA
    assert served(replica, END) == b""


def test_serving_stops_at_the_limit() -> None:
    log = Replica(FRAMES).log
    data = read_frames(log.file, log.index, "t", 10 * FRAME, 130, 121, 1 << 20)
    assert data == b"".join(FRAMES[7:10])


def test_serving_notices_a_frame_that_was_lost_from_the_middle() -> None:
    disk = new_disk()
    put_log(disk, b"".join(FRAMES[:5] + FRAMES[6:]))
    file, index = disk.open(LOG), Replica(FRAMES[:1]).log.index
    with pytest.raises(CorruptSegment, match=r"offsets 115 to 117 cannot be read.*offset 118 follows"):
        read_frames(file, index, "t", 39 * FRAME, END, 100, 1 << 20)


def test_a_source_that_cannot_be_read_says_so() -> None:
    replica = Replica(FRAMES)
    replica.disk.faults.add("read")
    with pytest.raises(OSError, match="Input/output error"):
        served(replica, 100)
