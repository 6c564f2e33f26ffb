"""Where the offsets of a topic are: which of them in the history, by its descriptors, and which on nodes.

Asked on the driver, when a query is planned, and again in a task for what was on nodes then: it may have been
exported since, and its copies released.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final

from ister import sync
from ister.errors import UnknownTopic
from ister.history.format import Exported
from ister.protocol.history import HistoryEntry, HistoryList
from ister.protocol.messages import TopicDescription
from ister.spark.ranges import HISTORY, HOT, Descriptor, Piece

PUBLISHED: Final = "published"
DAMAGED: Final = "damaged"
_IN_HISTORY: Final = (PUBLISHED, DAMAGED)


def locate(
    log: sync.Log, topic: str, uid: int, start: int, end: int, there: TopicDescription | None = None
) -> tuple[Piece, ...]:
    """The offsets from `start` to before `end`, in their order; nothing if the topic is another one by now.
    By a description of it the sizes of pieces are known."""
    if start >= end:
        return ()
    try:
        listed = log.history(topic, start, end)
    except UnknownTopic:
        return ()
    if listed.topic_uid != uid:
        return ()
    means = {} if there is None else mean_sizes(there)
    return tuple(pieces_of(listed, log.cluster_id, start, end, means))


def mean_sizes(there: TopicDescription) -> dict[int, float]:
    """Bytes of a record of each segment, by its number."""
    counts = {part.segment: part.end_offset - part.lost - part.base_offset for part in there.segments}
    return {part.segment: part.bytes / max(1, counts[part.segment]) for part in there.segments}


def pieces_of(
    listed: HistoryList, cluster: str, start: int, end: int, means: Mapping[int, float] | None = None
) -> Iterator[Piece]:
    """All of these offsets, in their order: also those that were trimmed since somebody saw them, which
    brokers report to who asks. Nothing if there are no segments at all."""
    begins = listed.entries[0].start_offset if listed.entries else start
    if start < min(begins, end):
        yield Piece(0, start, min(begins, end), HOT, (), True)
    for entry, behind in _with_ends(listed.entries, end):
        first, last = max(entry.start_offset, start), min(behind, end)
        found = descriptor_of(listed, entry, cluster)
        if found is not None:
            # What was given up of it is in no object; brokers say so to who asks.
            data_end = min(found.segment.end_offset, last)
            if first < data_end:
                yield _piece(entry, first, data_end, means, found)
            first = max(first, data_end)
        if first < last:
            yield _piece(entry, first, last, means)


def _with_ends(entries: list[HistoryEntry], end: int) -> Iterable[tuple[HistoryEntry, int]]:
    yield from ((entry, behind.start_offset) for entry, behind in pairwise(entries))
    if entries:
        yield entries[-1], max(end, entries[-1].end_offset)


def _piece(
    entry: HistoryEntry,
    first: int,
    last: int,
    means: Mapping[int, float] | None,
    found: Descriptor | None = None,
) -> Piece:
    mean = (means or {}).get(entry.segment, 0.0)
    tier = HOT if found is None else HISTORY
    size = round(mean * (last - first))
    return Piece(entry.segment, first, last, tier, tuple(entry.replicas), entry.state != "open", size, found)


def descriptor_of(listed: HistoryList, entry: HistoryEntry, cluster: str) -> Descriptor | None:
    """None of what is not in the history, and of what was found damaged there while nodes have it."""
    if entry.state not in _IN_HISTORY or not entry.frames_size or not listed.location:
        return None
    if _is_spared(entry):
        return None
    return Descriptor(
        listed.location,
        entry.name,
        entry.size,
        entry.crc,
        Exported(
            cluster,
            listed.topic,
            listed.topic_uid,
            entry.segment,
            entry.uid,
            entry.start_offset,
            entry.end_offset,
            entry.frames_size,
        ),
        entry.position,
        entry.stored_size,
    )


def bad_objects(listed: HistoryList) -> tuple[HistoryEntry, ...]:
    """Found damaged, and not read, since nodes have copies."""
    return tuple(entry for entry in listed.entries if _is_spared(entry))


def _is_spared(entry: HistoryEntry) -> bool:
    return entry.state == DAMAGED and bool(entry.replicas)


def history_end(listed: HistoryList, end: int) -> int:
    """Up to where all of a topic is in the history, from its first record on; `end` is where it ends."""
    for entry, behind in _with_ends(listed.entries, end):
        if entry.state not in (*_IN_HISTORY, "empty"):
            return min(entry.start_offset, end)
        end_of_it = min(behind, end)
    return end_of_it if listed.entries else end


def hot_start(listed: HistoryList) -> int:
    """From where on nodes have all of a topic."""
    released = [
        behind
        for entry, behind in _with_ends(listed.entries, 0)
        if entry.state in _IN_HISTORY and not entry.replicas
    ]
    return max([listed.start_offset, *released])
