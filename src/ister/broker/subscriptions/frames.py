"""Frames of a topic as they were read last: what is handed out is cut from them."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Final, NamedTuple

from ister.broker.subscriptions.key_ranges import hash_of
from ister.errors import CorruptSegment
from ister.frame import DEFAULT_LIMIT, Frame, FrameHeader, decode_header

KEPT: Final = 4
"""Reads, of some 1 MiB: consumers of a key-shared subscription are not all at the same place."""


class ReadFrame(NamedTuple):
    header: FrameHeader
    data: memoryview

    @property
    def base(self) -> int:
        return self.header.base_offset

    @property
    def end(self) -> int:
        return self.header.end_offset

    def key_hashes(self) -> list[int | None]:
        """Of its records, in order; None for one without a key."""
        keys = Frame(self.header, self.data, 0).columns().keys
        if keys is None:
            return [None] * self.header.count
        return [None if key is None else hash_of(key) for key in keys.to_list()]


class Run:
    """The frames of one read: they follow each other without a gap."""

    def __init__(self, topic: str, data: bytes) -> None:
        view, position = memoryview(data), 0
        self.frames: list[ReadFrame] = []
        while position < len(data):
            header = decode_header(view, position, limit=max(DEFAULT_LIMIT, len(data)))
            if not isinstance(header, FrameHeader):
                raise CorruptSegment(f"what was read of {topic} is no frame: {header}")
            self.frames.append(ReadFrame(header, view[position : position + header.size]))
            position += header.size
        self._bases = [frame.base for frame in self.frames]

    @property
    def end(self) -> int:
        return self.frames[-1].end

    @property
    def count(self) -> int:
        """Of records."""
        return self.end - self.frames[0].base

    def place_of(self, offset: int) -> int | None:
        place = bisect_right(self._bases, offset) - 1
        return place if place >= 0 and offset < self.frames[place].end else None


class Spot(NamedTuple):
    """Where an offset is: the frame at `place` of a run."""

    run: Run
    place: int

    @property
    def frame(self) -> ReadFrame:
        return self.run.frames[self.place]


class ReadFrames:
    def __init__(self, *, is_one_place: bool) -> None:
        self._runs: deque[Run] = deque(maxlen=1 if is_one_place else KEPT)

    def find(self, offset: int) -> Spot | None:
        for run in reversed(self._runs):
            place = run.place_of(offset)
            if place is not None:
                return Spot(run, place)
        return None

    def keep(self, topic: str, data: bytes) -> None:
        run = Run(topic, data)
        if run.frames:
            self._runs.append(run)
