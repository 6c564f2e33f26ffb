"""Small segments of a merged object are read together: one request for many, and little of it twice."""

from __future__ import annotations

import asyncio

from ister.history.objects import PartOf
from ister.io.object_store import ObjectInfo
from ister.spark.windows import SMALL_BYTES, WINDOW_BYTES, Window


class Counted:
    """A store of one object, which notes what is read of it."""

    location = "counted"

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.asked: list[tuple[int, int]] = []

    async def get(self, name: str, start: int, length: int) -> bytes:
        self.asked.append((start, length))
        return self._data[start : start + length]

    async def head(self, name: str) -> ObjectInfo:
        return ObjectInfo(name, len(self._data))


def scan(part: int, count: int) -> Counted:
    """The end of each segment first, then all of it, as a reader does."""
    data = b"".join(bytes([number]) * part for number in range(count))
    store = Counted(data)
    window = Window(store)

    async def read() -> None:
        for number in range(count):
            window.start = number * part
            seen = PartOf(window, number * part, part, len(data))
            assert await seen.get("o", part - 24, 24) == bytes([number]) * 24
            assert await seen.get("o", 0, part) == bytes([number]) * part

    asyncio.run(read())
    return store


def test_small_segments_come_with_their_neighbours() -> None:
    assert len(scan(WINDOW_BYTES // 50, 50).asked) == 1


def test_of_larger_ones_a_part_of_each_window_at_most_is_read_again() -> None:
    part, count = SMALL_BYTES - 1000, 20
    store = scan(part, count)
    assert sum(length for _, length in store.asked) < 1.5 * part * count
