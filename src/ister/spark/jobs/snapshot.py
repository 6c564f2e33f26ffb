"""A topic as a job finds it, and its line cut into shares: one for each task.

The ends are decided once, here; what is appended later is the next run's. The share carries the topic's uid,
and its reading checks that (I3). It carries no records: of those in the history it has the descriptors, and
whoever reads it takes them from the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from ister import sync
from ister.errors import UnknownTopic
from ister.protocol.history import HistoryEntry
from ister.protocol.messages import SegmentDescription, TopicDescription
from ister.spark.locating import bad_objects, mean_sizes, pieces_of
from ister.spark.ranges import OffsetRange, Piece, pieces_between


@dataclass(frozen=True)
class Share:
    """Offsets for one task."""

    range: OffsetRange
    size: int
    """About how many bytes they have in the log."""
    segment: int = 0
    """Which one all of them are in; 0 where nobody has to know."""
    segment_uid: int = 0
    nodes: tuple[int, ...] = ()
    """Those that have copies of it; none if only the history has it."""


@dataclass(frozen=True)
class Snapshot:
    """A topic at one moment."""

    cluster: str
    there: TopicDescription
    end: int
    """Where it ended then: a record that was acknowledged before lies before this."""
    lives: tuple[Piece, ...] = ()
    """Where its offsets are, in their order."""
    location: str = ""
    """The store of the history; empty where there is none."""
    revision: int = 0
    """Of the catalog that says so."""
    bad_objects: tuple[HistoryEntry, ...] = ()
    """Those that the metadata calls damaged, and that nobody reads: nodes have copies."""

    @property
    def topic(self) -> str:
        return self.there.topic

    @property
    def uid(self) -> int:
        return self.there.uid

    @property
    def start(self) -> int:
        return self.there.start_offset

    def segments(self) -> Iterator[tuple[SegmentDescription, int]]:
        """Each segment, and where it ends: the open one where the snapshot does."""
        parts = self.there.segments
        for place, part in enumerate(parts):
            end = parts[place + 1].base_offset if place + 1 < len(parts) else max(self.end, part.base_offset)
            yield part, end

    def range(self, start: int, end: int) -> OffsetRange:
        return OffsetRange(self.topic, self.uid, start, end, pieces_between(self.lives, start, end))

    def size_between(self, start: int, end: int) -> int:
        """About how many bytes of the log lie there."""
        return sum(share.size for share in shares(self, start, end, 1 << 62))


def take_snapshot(log: sync.Log, topic: str) -> Snapshot:
    there = log.describe_topic(topic)
    # Asked after the description: the last segment in it may have been sealed since, and another one opened.
    end = log.offsets_at(topic, "latest")
    if there.segments and end > there.end_offset:
        there = log.describe_topic(topic)
    listed = log.history(topic, there.start_offset, end)
    if listed.topic_uid != there.uid:
        raise UnknownTopic(f"{there.topic} was deleted and made again at this moment", hint="Try again.")
    lives = pieces_of(listed, log.cluster_id, there.start_offset, end, mean_sizes(there))
    return Snapshot(
        log.cluster_id, there, end, tuple(lives), listed.location, listed.index, bad_objects(listed)
    )


def shares(snapshot: Snapshot, start: int, end: int, share_bytes: int) -> Iterator[Share]:
    """Offsets from `start` to before `end`, in order, none across two segments, about `share_bytes` each."""
    for part, part_end in snapshot.segments():
        first, behind = max(part.base_offset, start), min(part_end, end)
        if first >= behind:
            continue
        per_record = part.bytes / max(1, part_end - part.base_offset)
        count = behind - first
        pieces = max(1, min(count, round(count * per_record / share_bytes)))
        for piece in range(pieces):
            low, high = first + count * piece // pieces, first + count * (piece + 1) // pieces
            wanted = snapshot.range(low, high)
            yield Share(wanted, int((high - low) * per_record), part.segment, part.uid, _nodes(part, wanted))


def _nodes(part: SegmentDescription, wanted: OffsetRange) -> tuple[int, ...]:
    if any(piece.descriptor is not None for piece in wanted.lives):
        return wanted.lives[0].nodes
    return tuple(part.replicas or [part.leader])


def reach(snapshot: Snapshot, start: int, end: int, size: int) -> Share:
    """From `start` on, across segments, until there are about `size` bytes; `end` at the latest."""
    taken, at = 0.0, start
    for part, part_end in snapshot.segments():
        first, behind = max(part.base_offset, start), min(part_end, end)
        if first >= behind:
            continue
        per_record = part.bytes / max(1, part_end - part.base_offset)
        fitting = behind - first if not per_record else ceil((size - taken) / per_record)
        at = min(behind, first + max(1, fitting))
        taken += (at - first) * per_record
        if at < behind or taken >= size:
            break
    return Share(snapshot.range(start, at), int(taken))
