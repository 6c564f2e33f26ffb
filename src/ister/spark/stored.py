"""Frames of the history, straight from its store, in ranges, the next ones already on their way.

An object's end tells where an offset is in it, and what all of it is: that must be what the descriptor says,
or nothing of it is read. Then come the ranges that are wanted, in chunks between frames that the footer's
index knows.

Fault model: that of the object store. What comes out was checked frame by frame, without a gap, from the one
that has the first offset on; anything else is `CorruptSegment` with the offsets that cannot be read
(promise 5). An object that is not there is `ObjectNotFound`. A store that does not answer is asked again for
`PATIENCE_S`.

Memory: `AHEAD` + 1 chunks of `CHUNK_BYTES`, or of one frame where that is larger, and a window.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Final, NamedTuple, TypeVar

from ister.client.portal import Turns
from ister.errors import CorruptSegment, RequestTimeout, StoreUnavailable
from ister.frame import (
    FRAME_LIMIT,
    Corrupt,
    Frame,
    FrameHeader,
    Incomplete,
    decode,
    decode_header,
)
from ister.history.objects import Stored, open_published, seen_in
from ister.io.clock import monotonic
from ister.io.object_store import ObjectInfo, list_all
from ister.io.stores import open_for_reading
from ister.spark.ranges import Descriptor
from ister.spark.windows import SMALL_BYTES, Window
from ister.wal.marks import uid_of
from ister.wal.side_file import SparseIndex

T = TypeVar("T")

CHUNK_BYTES: Final = 4 << 20
AHEAD: Final = 2
PATIENCE_S: Final = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_HINT: Final = (
    "Each executor reads the history by itself: the store must be reached from there, with the credentials "
    "of its own environment. read.tier=hot asks the brokers instead."
)


class _Opened(NamedTuple):
    found: Descriptor
    where: str
    places: SparseIndex

    def damaged(
        self, position: int, first: int, reason: str, header: FrameHeader | None = None
    ) -> CorruptSegment:
        """At the frame that is to begin with `first`. Where it ends is known by its header, else by the next
        place in the index."""
        behind = self.places.offset_behind(position) or self.found.segment.end_offset
        if header is not None and header.base_offset == first:
            behind = header.end_offset
        return CorruptSegment(
            f"{self.where} is damaged at byte {position}: {reason}", offsets=(first, max(behind, first + 1))
        )


class StoredFrames:
    """The objects of one store, for one thread."""

    def __init__(self, url: str, *, verify: bool = True, patience_s: float = PATIENCE_S) -> None:
        """Without `verify`, the checksums of bodies are not looked at; those of headers are."""
        self._store = open_for_reading(url, "reader")
        self._turns = Turns()
        self._read = decode if verify else _trusted
        self._patience_s = patience_s
        self._window = Window(self._store)
        self._opened: dict[tuple[str, int], _Opened] = {}

    def close(self) -> None:
        self._turns.stop()
        self._store.close()

    def frames(self, found: Descriptor, start: int, end: int) -> Iterator[Frame]:
        """Whole frames, in order, that have all records from `start` to before `end`. What was good before
        any damage has come out before the error does."""
        try:
            opened = self._open(found)
        except CorruptSegment as error:
            raise CorruptSegment(error.message, offsets=(start, end)) from error
        expected = -1
        for position, data in self._chunks(opened, start, end):
            if expected < 0:
                expected = opened.places.offset_at(position) or found.segment.start_offset
            at, expected = _skip(data, expected, start)
            expected = yield from self._frames_in(opened, data, position, at, expected, end)
            if expected >= end:
                return
        raise opened.damaged(found.segment.frames_size, max(expected, start), "its frames end before that")

    def _frames_in(
        self, opened: _Opened, data: bytes, position: int, at: int, expected: int, end: int
    ) -> Generator[Frame, None, int]:
        """Those before `end`; returns where the last one ends."""
        uid, read = opened.found.segment.segment_uid, self._read
        while at < len(data) and expected < end:
            frame = read(data, at, limit=FRAME_LIMIT)
            if not isinstance(frame, Frame):
                raise _broken(opened, data, position, at, expected, frame)
            header = frame.header
            if header.base_offset != expected or uid_of(header) != uid:
                what = f"a frame of segment {uid_of(header)} at offset {header.base_offset} is there"
                raise opened.damaged(position + at, expected, what)
            yield frame
            at += header.size
            expected += header.count
        return expected

    def ending(self, found: Descriptor) -> bytes:
        """All that is behind the frames of an object; longer than it should be where there is too much."""
        size = found.size - found.segment.frames_size
        store = self._seen(found)
        ask = self._patiently(lambda: store.get(found.name, found.segment.frames_size, size + 1))
        return self._turns.run(ask)

    def names(self, prefix: str) -> list[ObjectInfo]:
        """All objects below that, whoever made them."""

        async def gather() -> list[ObjectInfo]:
            return [each async for each in list_all(self._store, prefix)]

        return self._turns.run(self._patiently(gather))

    # The store.

    def _open(self, found: Descriptor) -> _Opened:
        opened = self._opened.get((found.name, found.position))
        if opened is None:
            where = f"object {found.name} in {self._store.location}"
            footer = self._turns.run(
                self._patiently(lambda: open_published(self._seen(found), found, found.segment))
            )
            opened = _Opened(found, where, footer.index())
            self._opened = {(found.name, found.position): opened}
        return opened

    def _seen(self, found: Descriptor) -> Stored:
        """Small parts of a merged object come with their neighbours, which are wanted next."""
        if not found.stored_size or found.size > SMALL_BYTES:
            return seen_in(self._store, found)
        self._window.start = found.position
        return seen_in(self._window, found)

    def _chunks(self, opened: _Opened, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Where each begins, and its bytes. Those under way are read by the store's own threads, also while
        nobody waits for them."""
        under_way: deque[tuple[int, asyncio.Task[bytes]]] = deque()
        bounds = _bounds(opened, start, end)
        loop, name, store = self._turns.loop, opened.found.name, self._seen(opened.found)
        try:
            while True:
                while len(under_way) <= AHEAD and (bound := next(bounds, None)) is not None:
                    first, behind = bound
                    get = self._patiently(lambda at=first, to=behind: store.get(name, at, to - at))  # type: ignore[misc]
                    under_way.append((first, loop.create_task(get)))
                if not under_way:
                    return
                first, task = under_way.popleft()
                yield first, loop.run_until_complete(task)
        finally:
            for _, task in under_way:
                task.cancel()

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        give_up_at, pause = monotonic() + self._patience_s, _FIRST_PAUSE_S
        while True:
            try:
                return await ask()
            except (StoreUnavailable, RequestTimeout) as error:
                if monotonic() + pause > give_up_at:
                    raise StoreUnavailable(error.message, hint=_HINT) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


def _bounds(opened: _Opened, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The bytes of these offsets, in chunks that begin and end with a frame."""
    places = opened.places
    position = places.position_for(start)
    stop = places.position_behind(end)
    if stop is None:
        stop = opened.found.segment.frames_size
    while position < stop:
        behind = stop
        if stop - position > CHUNK_BYTES:
            behind, _ = places.last_place_up_to(position + CHUNK_BYTES)
            if behind <= position:
                behind = min(places.place_behind(position) or stop, stop)
        yield position, behind
        position = behind


def _skip(data: bytes, expected: int, start: int) -> tuple[int, int]:
    """Behind the frames that end before `start`: nobody wants their bodies, whatever those are like."""
    at = 0
    while at < len(data) and expected < start:
        header = decode_header(data, at, limit=FRAME_LIMIT)
        if not isinstance(header, FrameHeader) or header.base_offset != expected:
            return at, start  # what is there is no frame that could have `start`, which is then said
        if header.end_offset > start:
            break
        at, expected = at + header.size, header.end_offset
    return at, expected


def _trusted(data: bytes, position: int, *, limit: int) -> Frame | Incomplete | Corrupt:
    header = decode_header(data, position, limit=limit)
    if not isinstance(header, FrameHeader):
        return header
    missing = position + header.size - len(data)
    return Incomplete(missing) if missing > 0 else Frame(header, data, position)


def _broken(
    opened: _Opened, data: bytes, position: int, at: int, expected: int, what: Incomplete | Corrupt
) -> CorruptSegment:
    header = decode_header(data, at, limit=FRAME_LIMIT)
    reason = what.reason if isinstance(what, Corrupt) else f"{what.missing} bytes of a frame are missing"
    return opened.damaged(
        position + at, expected, reason, header if isinstance(header, FrameHeader) else None
    )
