"""Making an object of a sealed segment's log, and reading one back: in pieces, of a bounded size.

Fault model: that of the object store (`ister.io.object_store`), and of a log on a disk. What is uploaded was
checked frame by frame on its way, so a rotten log makes no object. What is verified was read back to its last
byte: a store that kept other bytes than it was given is found out before anybody relies on it (E1).

Memory: one piece of `CHUNK_BYTES`, or one frame where that is larger; and the index, which is bounded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple, Protocol, TypeVar

from ister.errors import CorruptSegment
from ister.history.format import (
    TRAILER_SIZE,
    Exported,
    Footer,
    FramesOf,
    Trailer,
    object_crc,
    read_footer,
    read_trailer,
)
from ister.io.disk import Disk, File
from ister.io.object_store import ObjectInfo

T = TypeVar("T")

CHUNK_BYTES = 2 << 20
TAIL_BYTES = 128 << 10
"""So much of an object's end is read at first: most footers are in it."""

Read = Callable[[int, int], Awaitable[bytes]]
"""Up to so many bytes from a position on."""


class Pace(Protocol):
    async def passed(self, size: int) -> None:
        """So many bytes went by: wait as long as they are to take."""


class Stored(Protocol):
    """What reading an object takes of a store."""

    @property
    def location(self) -> str: ...

    async def get(self, name: str, start: int, length: int) -> bytes: ...

    async def head(self, name: str) -> ObjectInfo: ...


class PartOf:
    """One segment's bytes in a merged object, which read like an object of its own."""

    def __init__(self, store: Stored, position: int, size: int, stored_size: int) -> None:
        self._store = store
        self._position = position
        self._size = size
        self._stored_size = stored_size

    @property
    def location(self) -> str:
        return self._store.location

    async def get(self, name: str, start: int, length: int) -> bytes:
        return await self._store.get(name, self._position + start, max(0, min(length, self._size - start)))

    async def head(self, name: str) -> ObjectInfo:
        size = (await self._store.head(name)).size
        if size != self._stored_size:
            raise CorruptSegment(
                f"object {name} in {self.location} has {size} bytes, its descriptors say {self._stored_size}"
            )
        return ObjectInfo(name, self._size)


class Published(Protocol):
    """What a descriptor says of a segment's object. In a merged one `size` and `crc` are of the part that
    begins at `position`, and `stored_size` is of all of it; else both are 0."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def crc(self) -> int: ...

    @property
    def position(self) -> int: ...

    @property
    def stored_size(self) -> int: ...


def seen_in(store: Stored, found: Published) -> Stored:
    """A segment's bytes, where its descriptor says that they are."""
    return PartOf(store, found.position, found.size, found.stored_size) if found.stored_size else store


class Verified(NamedTuple):
    """An object that was read to its end."""

    size: int
    crc: int
    footer: Footer


class Making:
    """An object in the making: its pieces, once, and what was made when they have ended."""

    def __init__(self, segment: Exported, disk: Disk, file: File, where: str, pace: Pace) -> None:
        self._frames = FramesOf(segment, where)
        self._disk = disk
        self._file = file
        self._pace = pace
        self._ending = b""

    async def pieces(self) -> AsyncIterator[bytes]:
        async def read(position: int, length: int) -> bytes:
            return await self._disk.run(lambda: self._file.read(length, position))

        async for piece in _pass_frames(self._frames, read, self._disk, self._pace):
            yield piece
        self._ending = self._frames.ending()
        yield self._ending

    @property
    def made(self) -> Verified:
        size = self._frames.position + len(self._ending)
        return Verified(size, object_crc(self._ending), self._frames.footer())


async def verify_object(store: Stored, name: str, segment: Exported, disk: Disk, pace: Pace) -> Verified:
    """Read it to its end. `CorruptSegment` if it is not all of this segment; `ObjectNotFound`.

    `disk` lends its threads: checksums are made there, not on the loop.
    """
    size = (await store.head(name)).size
    where = f"object {name} in {store.location}"
    footer = await load_footer(store, name, size)
    check_is_of(footer, segment, where)

    async def read(position: int, length: int) -> bytes:
        return await store.get(name, position, length)

    frames = FramesOf(segment, where)
    async for _ in _pass_frames(frames, read, disk, pace):
        pass
    ending = frames.ending()
    stored = await store.get(name, footer.frames_size, len(ending) + 1)
    if stored != ending:
        raise frames.damaged("its footer is not that of its frames")
    return Verified(size, object_crc(ending), footer)


def check_is_of(footer: Footer, segment: Exported, where: str) -> None:
    """Raise unless an object that says this of itself is of that segment, all of it (I3)."""
    told = Exported(
        footer.cluster_id,
        footer.topic,
        footer.topic_uid,
        footer.segment,
        footer.segment_uid,
        footer.start_offset,
        footer.end_offset,
        footer.frames_size,
    )
    if told != segment:
        raise CorruptSegment(f"{where} is {told}, and should be {segment}")


async def open_published(seen: Stored, found: Published, segment: Exported) -> Footer:
    """What the end of an object says, if that is what its descriptor says: its size, whose it is, which
    offsets and how many bytes of frames it has, and the checksum of all of it. So what somebody else has put
    under the name is not read, however well it is made.

    For all who read what is published, brokers and Spark alike (`seen` is `seen_in` the store). It is a look
    at the end: what has rotted before it, the frames' own checksums tell, to who reads them."""
    trailer, footer = await load_ending(seen, found.name, found.size)
    where = f"object {found.name} in {seen.location}"
    check_is_of(footer, segment, where)
    if trailer.object_crc != found.crc:
        raise CorruptSegment(
            f"{where} is not the one that was published: its checksum is {trailer.object_crc:08x}, and by "
            f"its descriptor {found.crc:08x}"
        )
    return footer


async def load_footer(store: Stored, name: str, size: int) -> Footer:
    """With one request, or two where it is large."""
    return (await load_ending(store, name, size))[1]


async def load_ending(store: Stored, name: str, size: int) -> tuple[Trailer, Footer]:
    """The same, with the trailer, which has the checksum of the whole object."""
    where = f"object {name} in {store.location}"
    length = min(size, TAIL_BYTES)
    tail = await store.get(name, size - length, length)
    trailer = read_trailer(tail, where)
    needed = trailer.footer_size + TRAILER_SIZE
    if len(tail) < needed <= size:
        tail = await store.get(name, size - needed, needed)
    return trailer, read_footer(tail, size, where)


async def _pass_frames(frames: FramesOf, read: Read, disk: Disk, pace: Pace) -> AsyncIterator[bytes]:
    """A segment's frames, taken by `frames` one piece after the other."""
    size = frames.segment.frames_size
    while frames.position < size:
        position = frames.position
        data = await read(position, min(CHUNK_BYTES, size - position))
        taken = await disk.run(lambda data=data: frames.take(data))  # type: ignore[misc]
        while not taken:
            longer = await read(position, min(len(data) + frames.missing, size - position))
            if len(longer) <= len(data):
                raise frames.damaged(f"it ends {frames.missing} bytes early")
            data = longer
            taken = await disk.run(lambda data=data: frames.take(data))  # type: ignore[misc]
        yield data if taken == len(data) else data[:taken]
        await pace.passed(taken)
