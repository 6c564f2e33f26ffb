"""Reading segments out of the history: ranges of objects, read ahead, kept for a while, checked each time.

A footer tells where an offset is; a chunk is a range of an object between two frames that its index knows. A
reader that goes on from one chunk to the next has the one after it fetched meanwhile.

Fault model: that of the object store. A store that is down is a retriable error of that read, and nothing
else waits for it. What comes out was checked frame by frame, from the one that holds the offset, without a
gap: anything else is `CorruptSegment`, and never an end (promise 5). An object that is not there is that too:
its descriptor is published. So is one whose end does not say what the descriptor says (`open_published`).
Whoever puts another object of the very same segment under its name is found out when it is opened, and within
`LOOK_AGAIN_SECONDS` where it was open already.

Memory: `cache_bytes` of chunks, `MAX_FETCHES` of those under way, `INDEX_BYTES` of footers.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeVar

from ister.errors import CorruptSegment, IsterError
from ister.frame import FRAME_LIMIT, FrameHeader, decode_header
from ister.history.format import Exported
from ister.history.objects import open_published, seen_in
from ister.io.clock import monotonic
from ister.io.disk import Disk
from ister.io.object_store import ObjectStore
from ister.metadata.topics import HistoryObject
from ister.metrics import Counter, Gauge
from ister.wal.checking import check_frames
from ister.wal.marks import uid_of
from ister.wal.reader import Found, first_offset_at_or_after, plan_read, plan_search
from ister.wal.side_file import SparseIndex

K = TypeVar("K")
T = TypeVar("T")

Where = tuple[str, int]
"""A segment's bytes: the name of an object, and where they begin in it."""

CHUNK_BYTES = 4 << 20
"""A frame that is larger comes whole."""
MAX_FETCHES = 8
"""Ranges that are asked for at once."""
MAX_CHUNKS = 64
INDEX_BYTES = 16 << 20
LOOK_AGAIN_SECONDS = 60.0
"""So long an object that was opened is taken for the same one: before a range of it is fetched later than
that, its end is looked at once more."""
_ENTRY_BYTES = 24


class Wanted(NamedTuple):
    """A segment that is read from its object."""

    key: str
    """Of the segment, for people."""
    segment: Exported
    object: HistoryObject

    @property
    def where(self) -> Where:
        return self.object.name, self.object.position


class _Opened(NamedTuple):
    places: SparseIndex
    frames_size: int
    looked_at: float


class _Chunk:
    """A range of an object that begins and ends with a frame; serves as the file that a read plan reads."""

    def __init__(self, start: int, end: int, data: bytes, *, is_good: bool) -> None:
        self.start, self.end = start, end
        self.is_good = is_good
        """All of it was checked, once for all who read it; else each read looks how far it is good."""
        self._data = memoryview(data)

    def read(self, length: int, position: int) -> memoryview:
        first = position - self.start
        return self._data[first : first + length] if first >= 0 else self._data[:0]


class HistoryReader:
    def __init__(self, store: ObjectStore, disk: Disk, cache_bytes: int) -> None:
        """`disk` lends its threads to check what was read."""
        self._store = store
        self._disk = disk
        self._cache_bytes = cache_bytes
        self._opened: OrderedDict[Where, _Opened] = OrderedDict()
        self._chunks: OrderedDict[tuple[Where, int], _Chunk] = OrderedDict()
        self._cached = 0
        self._fetching: dict[tuple[Where, int], asyncio.Task[_Chunk]] = {}
        self._opening: dict[Where, asyncio.Task[_Opened]] = {}
        self._turns = asyncio.Semaphore(MAX_FETCHES)
        self.reads = Counter("history_reads_total", "Fetches that were answered from the history.")
        self.bytes = Counter("history_read_bytes_total", "Bytes that were read from the store for readers.")
        self.hits = Counter("history_cache_hits_total", "Fetches whose bytes had been read before.")
        self.cached = Gauge(
            "history_cache_bytes", "Bytes of the history in memory, for readers.", lambda: self._cached
        )

    async def read(self, wanted: Wanted, offset: int, max_bytes: int) -> Found:
        """Whole frames from the one that holds `offset`."""
        opened = await self._open(wanted)
        chunk = await self._chunk_at(wanted, opened, opened.places.position_for(offset))
        end_offset = opened.places.offset_at(chunk.end)
        plan = plan_read(
            f"{wanted.key} (object {wanted.object.name})",
            chunk,  # type: ignore[arg-type]  # a plan only reads
            opened.places,
            chunk.end,
            wanted.segment.end_offset if end_offset is None else end_offset,
            offset,
            max_bytes,
        )
        found = await self._disk.run(plan.run if chunk.is_good else plan.run_checked)
        self.reads.add()
        return found

    async def offset_at(self, wanted: Wanted, time_us: int) -> int | None:
        """The base of the first frame appended at or after a time; None if none is."""
        opened = await self._open(wanted)
        position = opened.places.position_for_time(time_us)
        while position < opened.frames_size:
            chunk = await self._chunk_at(wanted, opened, position)
            found = await self._disk.run(_search(wanted, opened, chunk, time_us))
            if found is not None:
                return found
            position = chunk.end
        return None

    async def check_is_there(self, wanted: Wanted) -> None:
        """Raise unless the object is in the store, of the size and with the end that it should have."""
        store, found = seen_in(self._store, wanted.object), wanted.object
        size = (await store.head(found.name)).size
        if size != found.size:
            where = f"object {found.name} in {self._store.location}"
            raise CorruptSegment(f"{where} has {size} bytes, its descriptor says {found.size}")
        await open_published(store, found, wanted.segment)

    # Footers.

    async def _open(self, wanted: Wanted) -> _Opened:
        where = wanted.where
        found = self._opened.get(where)
        if found is not None:
            self._opened.move_to_end(where)
            return found
        task = self._opening.get(where)
        if task is None:
            task = self._opening[where] = asyncio.ensure_future(self._load(wanted))
            task.add_done_callback(lambda done: _over(self._opening, where, done))
        return await _shared(task)

    async def _load(self, wanted: Wanted) -> _Opened:
        async with self._turns:
            looked_at = monotonic()
            seen = seen_in(self._store, wanted.object)
            footer = await open_published(seen, wanted.object, wanted.segment)
        opened = _Opened(footer.index(), footer.frames_size, looked_at)
        self._opened[wanted.where] = opened
        while len(self._opened) > 1 and self._index_bytes() > INDEX_BYTES:
            self._opened.popitem(last=False)
        return opened

    def _index_bytes(self) -> int:
        return sum(len(opened.places) for opened in self._opened.values()) * _ENTRY_BYTES

    # Chunks.

    async def _chunk_at(self, wanted: Wanted, opened: _Opened, position: int) -> _Chunk:
        """One that has the frame there; what follows it is fetched where this reader seems to go on."""
        where = wanted.where
        for (of, first), chunk in self._chunks.items():
            if of == where and chunk.start <= position < chunk.end:
                self._chunks.move_to_end((of, first))
                self.hits.add()
                self._read_ahead(wanted, opened, chunk)
                return chunk
        start = next(
            (
                first
                for of, first in self._fetching
                if of == where and first <= position < self._end_of(opened, first)
            ),
            None,
        )
        is_first = start is None
        task = self._fetch(wanted, opened, position) if start is None else self._fetching[where, start]
        chunk = await _shared(task)
        if not is_first or position == 0 or self._has_before(where, chunk.start):
            self._read_ahead(wanted, opened, chunk)
        return chunk

    def _has_before(self, where: Where, position: int) -> bool:
        """Whether somebody has just read what lies before that."""
        return any(of == where and position == chunk.end for (of, _), chunk in self._chunks.items())

    def _read_ahead(self, wanted: Wanted, opened: _Opened, chunk: _Chunk) -> None:
        key = (wanted.where, chunk.end)
        is_there = chunk.end >= opened.frames_size or key in self._chunks or key in self._fetching
        if not is_there and len(self._fetching) < MAX_FETCHES // 2 and self._cache_bytes >= 2 * CHUNK_BYTES:
            self._fetch(wanted, opened, chunk.end)

    def _end_of(self, opened: _Opened, start: int) -> int:
        """Where a chunk ends that begins there."""
        if opened.frames_size - start <= CHUNK_BYTES:
            return opened.frames_size
        end, _ = opened.places.last_place_up_to(start + CHUNK_BYTES)
        if end > start:
            return end
        behind = opened.places.place_behind(start)
        return opened.frames_size if behind is None else behind

    def _fetch(self, wanted: Wanted, opened: _Opened, start: int) -> asyncio.Task[_Chunk]:
        key = (wanted.where, start)
        task = self._fetching[key] = asyncio.ensure_future(self._get(wanted, opened, start))
        task.add_done_callback(lambda done: _over(self._fetching, key, done))
        return task

    async def _get(self, wanted: Wanted, opened: _Opened, start: int) -> _Chunk:
        name, end = wanted.object.name, self._end_of(opened, start)
        if monotonic() - opened.looked_at > LOOK_AGAIN_SECONDS:
            await self._load(wanted)
        async with self._turns:
            data = await seen_in(self._store, wanted.object).get(name, start, end - start)
        if len(data) != end - start:
            raise CorruptSegment(
                f"object {name} in {self._store.location} ends {end - start - len(data)} bytes early"
            )
        self.bytes.add(len(data))
        first = decode_header(data, limit=FRAME_LIMIT)
        if isinstance(first, FrameHeader) and uid_of(first) != wanted.segment.segment_uid:
            raise CorruptSegment(
                f"object {name} in {self._store.location} has a frame of segment {uid_of(first)} "
                f"at byte {start}"
            )
        # While the one before is still on its way to the reader: who comes for this finds it checked.
        base_offset = opened.places.offset_at(start)
        is_good = base_offset is not None and await self._disk.run(lambda: _is_good(data, base_offset))
        chunk = _Chunk(start, end, data, is_good=is_good)
        self._chunks[wanted.where, start] = chunk
        self._cached += end - start
        while self._chunks and (self._cached > self._cache_bytes or len(self._chunks) > MAX_CHUNKS):
            _, old = self._chunks.popitem(last=False)
            self._cached -= old.end - old.start
        return chunk


def _is_good(data: bytes, base_offset: int) -> bool:
    _, _, wrong = check_frames(data, base_offset)
    return not wrong


def _search(wanted: Wanted, opened: _Opened, chunk: _Chunk, time_us: int) -> Callable[[], int | None]:
    """The work of looking through a chunk for the first frame appended at or after a time."""
    plan = plan_search(
        f"{wanted.key} (object {wanted.object.name})",
        chunk,  # type: ignore[arg-type]
        opened.places,
        chunk.end,
        wanted.segment.end_offset,
        time_us,
    )
    plan = replace(plan, start=max(plan.start, chunk.start))
    return lambda: first_offset_at_or_after(plan, time_us)


def _over(running: dict[K, asyncio.Task[T]], key: K, done: asyncio.Task[T]) -> None:
    running.pop(key, None)
    if not done.cancelled():
        done.exception()  # those who wait are told; of what was read ahead nobody needs to be


async def _shared(task: asyncio.Task[T]) -> T:
    """What several wait for: each may give up without the others, and each has an error of its own."""
    await asyncio.wait([task])
    error = task.exception()
    if isinstance(error, IsterError):
        raise error.again() from error
    return task.result()
