"""The audit's tasks over the history: each object from its store, past the brokers, to its last byte.

An object is good if it has the size and the checksum that its descriptor says, its end is that of its frames,
and each frame is whole, in its place and of its segment. What is not is named, with the object and the
offsets of the frames that cannot be had of it. Nodes that have copies serve these to other readers: so the
audit goes on with them there, and one bad object is not also a hole in the line.

An object that no descriptor names, an orphan, is no fault: an export was cut short or done twice, a merged
object has replaced it, or retention has trimmed the segment, and the sweeper comes by. It takes room, which a
person may want to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from ister import sync
from ister.errors import CorruptSegment, ObjectNotFound, UnknownTopic
from ister.frame import crc32c
from ister.history.format import whole_crc
from ister.history.names import parse_name
from ister.spark.frames import BrokerFrames
from ister.spark.jobs.auditing.findings import OBJECT
from ister.spark.ranges import Descriptor, OffsetRange, Piece
from ister.spark.stored import StoredFrames

if TYPE_CHECKING:
    from ister.spark.jobs.auditing.frames import OwnFrames


class Orphan(NamedTuple):
    name: str
    size: int


def is_object(wanted: OffsetRange) -> bool:
    """Whether all of a share is one object, or what the topic still has of it."""
    return len(wanted.lives) == 1 and wanted.lives[0].descriptor is not None


class ObjectChecks:
    """Checks objects of any store, one after the other; to be used in a `with`."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._brokers: BrokerFrames | None = None
        self._stores: dict[str, StoredFrames] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for store in self._stores.values():
            store.close()
        if self._brokers is not None:
            self._brokers.__exit__(kind, error, trace)

    def check(self, own: OwnFrames) -> None:
        wanted = own.share.range
        (piece,) = wanted.lives
        found = piece.descriptor
        assert found is not None
        at, crc, is_whole = piece.start, 0, _is_all_of_it(piece, found)
        while at < piece.end:
            try:
                for frame in self._store(found).frames(found, at, piece.end):
                    own.take(frame.header)
                    crc = crc32c(frame.data, crc) if is_whole else 0
                    at = frame.header.end_offset
            except (CorruptSegment, ObjectNotFound) as error:
                now = self._open_brokers().listed_now(wanted, found, at)
                newer = None if now is None else now[0]
                if newer is not None and newer.name != found.name:
                    found, is_whole = newer, False  # it was replaced: what is there now is checked instead
                    continue
                is_whole = False
                behind = min(error.offsets[1] if error.offsets else piece.end, piece.end)
                own.find(OBJECT, at, behind, error.message)
                self._pass(own, at, behind, [] if now is None else now[1])
                at = behind
        if is_whole:
            self._check_whole(own, piece, found, crc)

    def _check_whole(self, own: OwnFrames, piece: Piece, found: Descriptor, crc: int) -> None:
        ending = self._store(found).ending(found)
        size = found.segment.frames_size + len(ending)
        if size != found.size:
            what = "more bytes" if size > found.size else "fewer bytes"
            why = f"object {found.name} has {what} than the {found.size} of its descriptor"
            own.find(OBJECT, piece.start, piece.end, why)
        elif (whole := whole_crc(crc, ending)) != found.crc:
            what = f"object {found.name} has checksum {whole:08x}, its descriptor says {found.crc:08x}"
            own.find(OBJECT, piece.start, piece.end, what)

    def _pass(self, own: OwnFrames, start: int, end: int, nodes: Sequence[int]) -> None:
        """What the object does not have: from nodes, if they have copies; else it is missing."""
        if not nodes:
            own.checked.missing.append((start, end))
            return
        wanted = own.share.range
        own.take_from(self._open_brokers(), OffsetRange(wanted.topic, wanted.uid, start, end))

    def _open_brokers(self) -> BrokerFrames:
        if self._brokers is None:
            self._brokers = BrokerFrames(self._bootstrap).__enter__()
        return self._brokers

    def _store(self, found: Descriptor) -> StoredFrames:
        if found.store not in self._stores:
            self._stores[found.store] = StoredFrames(found.store)
        return self._stores[found.store]


def _is_all_of_it(piece: Piece, found: Descriptor) -> bool:
    """False where the topic begins within the segment: what is before is nobody's any more."""
    return (piece.start, piece.end) == (found.segment.start_offset, found.segment.end_offset)


class Place(NamedTuple):
    """Whose objects are looked for, and where."""

    store: str
    cluster: str
    topic: str


def find_orphans(bootstrap: str, place: Place) -> list[Orphan]:
    """Objects of a topic, and of those that had its name before, that no descriptor names. What is listed now
    and is published a moment later has a descriptor when the brokers are asked; one of a segment that is not
    published yet is in the making."""
    stored = StoredFrames(place.store)
    try:
        there = stored.names(f"{place.cluster}/{place.topic}-")
    finally:
        stored.close()
    with sync.connect(bootstrap) as log:
        try:
            listed = log.history(place.topic)
        except UnknownTopic:
            return []
    waiting = {entry.uid for entry in listed.entries if not entry.name}
    named = {entry.name for entry in listed.entries}
    found = []
    for info in there:
        name = parse_name(info.name)
        if name is None or name.topic != place.topic or name.cluster_id != place.cluster:
            continue
        # One that is not published has no name yet: what is there may become its object.
        if info.name not in named and not (
            name.topic_uid == listed.topic_uid and name.segment_uid in waiting
        ):
            found.append(Orphan(info.name, info.size))
    return found
