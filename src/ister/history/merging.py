"""Merging: many small objects of the history become few large ones (E5).

A merged object is the objects of neighbouring segments, end to end and unchanged, each with its footer. So a
reader of a segment needs nothing new but where its bytes begin, and what the descriptor says of them, size
and checksum, stays true. Frames are not made anew: their checksums are the leader's and the producer's (A7).

The steps, in this order only: upload under a name that no other content ever has, if there is none -> read it
back to its last byte -> have the descriptors replaced, all in one command (`ister.history.replacing`). What
was replaced stays for a while, and is then the sweeper's, as is an upload whose replacement came too late.

Fault model: whoever merges may die at any line; the store may fail, hang, or apply what it said had failed;
objects may be rotten or missing; several may merge the same segments at once, each with its own view.
What holds, and why:
- What comes to be named has the very bytes that were published: each part is compared with the checksum that
  its descriptor has, when it is read, and when it is read back.
- An upload that was cut short, or whose answer was lost, is found under its name, read to its end and
  adopted; if it is bad, the next attempt has another name (E2).
- Who comes second changes nothing: its command is refused, since the attempt that it has copied is not the
  published one any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import groupby
from typing import Final, NamedTuple

from ister.errors import CorruptSegment, ObjectExists, ObjectNotFound
from ister.history.format import WholeObject
from ister.history.names import ObjectName
from ister.history.replacing import MAX_PARTS
from ister.io.object_store import ObjectStore
from ister.protocol.history import HistoryEntry, HistoryList, ReplacedPart

PIECE_BYTES: Final = 4 << 20
MAX_ATTEMPTS: Final = 8
"""Names tried in one go. More bad objects than this is a store that keeps nothing."""


class Part(NamedTuple):
    """A segment, and where its bytes are now."""

    segment_uid: int
    start_offset: int
    end_offset: int
    attempt: int
    object: str
    position: int
    size: int
    crc: int


class Merge(NamedTuple):
    """Neighbouring segments that are to be in one object."""

    name: ObjectName
    """Of the first attempt."""
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def objects(self) -> int:
        """How many there are now."""
        return len({part.object for part in self.parts})

    def replaced(self) -> list[ReplacedPart]:
        return [ReplacedPart(part.segment_uid, part.attempt) for part in self.parts]


# Which.


def plan_merges(listed: HistoryList, cluster_id: str, object_bytes: int) -> Iterator[Merge]:
    """What is worth merging, in the order of offsets: runs of neighbours that have `object_bytes` together at
    most. An object that has half of that is large enough, and is left as it is."""
    gathered: list[HistoryEntry] = []
    size = 0
    for unit in _units(listed):
        unit_size = sum(entry.size for entry in unit)
        is_small = _may_be_merged(unit) and 2 * unit_size < object_bytes
        if not is_small or size + unit_size > object_bytes or len(gathered) + len(unit) > MAX_PARTS:
            yield from _merge_of(listed, cluster_id, gathered)
            gathered, size = [], 0
        if is_small:
            gathered += unit
            size += unit_size
    yield from _merge_of(listed, cluster_id, gathered)


def _units(listed: HistoryList) -> Iterator[list[HistoryEntry]]:
    """The segments of one object together: it is replaced as a whole. Empty ones are in none."""
    entries = (entry for entry in listed.entries if entry.state != "empty")
    for _, together in groupby(entries, lambda entry: entry.name or entry.uid):
        yield list(together)


def _may_be_merged(unit: list[HistoryEntry]) -> bool:
    return all(entry.state == "published" for entry in unit)


def _merge_of(listed: HistoryList, cluster_id: str, entries: list[HistoryEntry]) -> Iterator[Merge]:
    if len({entry.name for entry in entries}) < 2:
        return
    first, last = entries[0], entries[-1]
    name = ObjectName(
        cluster_id,
        listed.topic,
        listed.topic_uid,
        first.segment,
        first.uid,
        first.start_offset,
        last.end_offset,
        max(entry.next_attempt for entry in entries),
    )
    parts = [
        Part(
            entry.uid,
            entry.start_offset,
            entry.end_offset,
            entry.attempt,
            entry.name,
            entry.position,
            entry.size,
            entry.crc,
        )
        for entry in entries
    ]
    yield Merge(name, tuple(parts))


# How.


async def merge(store: ObjectStore, wanted: Merge) -> ObjectName:
    """Upload it and read it back to its end; under which name it is there now, of whichever attempt.

    `CorruptSegment` with the offsets of a part that is not what its descriptor says, or is not there.
    """
    for attempt in range(wanted.name.attempt, wanted.name.attempt + MAX_ATTEMPTS):
        name = wanted.name._replace(attempt=attempt)
        try:
            await store.put_if_absent(str(name), _copied(store, wanted))
        except ObjectExists:
            pass  # of one who died here, or is at it too: what counts is what is there (E2)
        try:
            await _read_back(store, str(name), wanted)
        except (CorruptSegment, ObjectNotFound):
            continue
        return name
    raise CorruptSegment(
        f"{MAX_ATTEMPTS} objects in {store.location} did not keep what was uploaded: offsets "
        f"{wanted.parts[0].start_offset} to {wanted.parts[-1].end_offset - 1} of {wanted.name.topic} stay in "
        f"the objects where they are",
        hint="Look at the store: what it returns is not what it was given.",
    )


async def _copied(store: ObjectStore, wanted: Merge) -> AsyncIterator[bytes]:
    for part in wanted.parts:
        try:
            async for piece in _checked(store, part.object, part.position, part):
                yield piece
        except (CorruptSegment, ObjectNotFound) as error:
            raise CorruptSegment(error.message, offsets=(part.start_offset, part.end_offset)) from error


async def _read_back(store: ObjectStore, name: str, wanted: Merge) -> None:
    """`ObjectNotFound`: another one's upload was in the way, and came to nothing."""
    size = (await store.head(name)).size
    if size != wanted.size:
        raise CorruptSegment(f"object {name} has {size} bytes, and should have {wanted.size}")
    position = 0
    for part in wanted.parts:
        async for _ in _checked(store, name, position, part):
            pass
        position += part.size


async def _checked(store: ObjectStore, name: str, position: int, part: Part) -> AsyncIterator[bytes]:
    """The bytes of a segment from there on, the next ones on their way; they are its own, or an error says
    so at their end."""
    end = position + part.size
    whole = WholeObject(part.size, part.crc, f"object {name} in {store.location}, from byte {position} on")
    coming: asyncio.Task[bytes] | None = None
    try:
        while position < end:
            piece = await (coming or _get(store, name, position, end))
            if not piece:
                break
            position += len(piece)
            coming = asyncio.ensure_future(_get(store, name, position, end)) if position < end else None
            whole.take(piece)
            yield piece
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.wait([coming])
    whole.end()


async def _get(store: ObjectStore, name: str, position: int, end: int) -> bytes:
    return await store.get(name, position, min(PIECE_BYTES, end - position))
