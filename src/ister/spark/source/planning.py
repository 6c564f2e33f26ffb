"""Which offsets a table holds, and who reads which of them. Decided once, where the query is planned.

A table is a snapshot: its ends are resolved here to offsets, and every task reads just what it was told.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from typing import Final

import msgspec

from ister import sync
from ister.errors import ConfigError, UnknownTopic
from ister.protocol.messages import TopicDescription
from ister.spark.locating import history_end, hot_start, locate
from ister.spark.options import TableOptions
from ister.spark.ranges import HOT, UNION, Loss, OffsetRange, pieces_between
from ister.spark.source.places import Moment, Place
from ister.spark.source.snapshots import Snapshot
from ister.spark.source.subscription import Subscription

MAX_RECORDS: Final = 5_000_000
"""What one task reads at most when nobody says otherwise: to begin and end one costs as much as to read
a hundred thousand."""
MAX_BYTES: Final = 1 << 30
"""The same for what is large: about so much of the log."""
WORTH_A_TASK: Final = 50_000
"""Below this many records each, more tasks cost more than they bring."""
OBJECTS_WORTH_A_TASK: Final = 100
"""Each object of the history costs two requests, however few records it has."""


def plan(options: TableOptions, cores: int) -> list[OffsetRange]:
    """Ask the broker where each topic begins and ends, and divide what lies between."""
    read = options.read
    with sync.connect(read.bootstrap) as found:
        if options.snapshot is None:
            topics = topics_now(found, read.subscription)
        else:
            topics = topics_of(options.snapshot, found.cluster_id, read.subscription)
        read.start.check(topics)
        options.end.check(topics)
        whole = [resolve(found, options, topic) for topic in topics]
    return divide(whole, cores, read.min_partitions, read.max_records_per_partition)


def topics_now(found: sync.Log, subscription: Subscription) -> tuple[str, ...]:
    """The topics that are read: for a pattern, those that match it now."""
    if subscription.pattern is None:
        return subscription.topics
    return subscription.among(there.topic for there in found.list_topics())


def topics_of(snapshot: Snapshot, cluster: str, subscription: Subscription) -> tuple[str, ...]:
    """Those of a snapshot that are subscribed to; none beside them."""
    snapshot.check_cluster(cluster)
    topics = subscription.among(snapshot.topics)
    strangers = [topic for topic in topics if topic not in snapshot.topics]
    if strangers:
        raise ConfigError(
            f"snapshot.offsets says nothing of {', '.join(strangers)}",
            hint=f"It has {', '.join(snapshot.topics)}. Take one of all topics that are read.",
        )
    return topics


def resolve(found: sync.Log, options: TableOptions, topic: str) -> OffsetRange:
    tier, place = options.read.tier, options.read.start.of(topic)
    now = described(found, topic)
    there, what = in_tier(found, now, tier)
    if options.snapshot is None:
        start, end = offset_at(found, there, place), offset_at(found, there, options.end.of(topic))
    else:
        then = options.snapshot.of(now)
        start = then.start if place == "earliest" else offset_at(found, there, place)
        end = then.end
    if start > end:
        raise ConfigError(
            f"the range of {topic} starts at offset {start} and ends before it, at {end}",
            hint="Give a start that is not after the end.",
        )
    first, last = clip(there, start, end, Loss(options.read.fail_on_data_loss), what)
    lives = () if tier == HOT else locate(found, topic, there.uid, first, last, there)
    return OffsetRange(topic, there.uid, first, last, lives)


def in_tier(found: sync.Log, there: TopicDescription, tier: str) -> tuple[TopicDescription, str]:
    """The topic as far as it is in that tier, and what that is called."""
    if tier == UNION:
        return there, "the topic"
    listed = found.history(there.topic)
    if listed.topic_uid != there.uid:
        raise UnknownTopic(f"{there.topic} was deleted and made again while the table was planned")
    if tier == HOT:
        start = max(there.start_offset, min(hot_start(listed), there.end_offset))
        return msgspec.structs.replace(there, start_offset=start), "what nodes have of the topic"
    end = max(there.start_offset, history_end(listed, there.end_offset))
    return msgspec.structs.replace(there, end_offset=end), "what the history has of the topic"


def described(found: sync.Log, topic: str) -> TopicDescription:
    """The topic as it is now. A description may be of an earlier moment if the node that leads is down; the
    end must not."""
    there = found.describe_topic(topic)
    return msgspec.structs.replace(there, end_offset=found.offsets_at(topic, "latest", uid=there.uid))


def offset_at(found: sync.Log, there: TopicDescription, place: Place) -> int:
    """A place as an offset. What was appended after the topic was described is not there yet."""
    if isinstance(place, int):
        return place
    if not isinstance(place, Moment):
        return there.start_offset if place == "earliest" else there.end_offset
    at = found.offsets_at(there.topic, place.time_us, uid=there.uid)
    if at >= there.end_offset and place.must_be_there:
        when = datetime.fromtimestamp(place.time_us / 1e6, UTC).isoformat()
        raise ConfigError(
            f"nothing was appended to {there.topic} at or after {place.time_us // 1000} ({when})",
            hint="Give an earlier time, or startingOffsetsByTimestampStrategy=latest to begin at the end.",
        )
    return min(at, there.end_offset)


def clip(
    there: TopicDescription, start: int, end: int, loss: Loss, what: str = "the topic"
) -> tuple[int, int]:
    """The part of the range that the topic has; the rest is reported as missing."""
    first, last = max(start, there.start_offset), min(end, there.end_offset)
    if start < min(first, end):
        loss.report(there.topic, start, min(first, end), f"{what} begins at {there.start_offset}")
    if max(last, start) < end:
        loss.report(there.topic, max(last, start), end, f"{what} ends at {there.end_offset}")
    return first, max(first, last)


def divide(
    whole: list[OffsetRange], cores: int, min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """Into ranges of about the same size, each within one topic; empty topics have none. Where the sizes of
    segments are known, these are bytes, else records."""
    total = sum(part.count for part in whole)
    objects = sum(piece.descriptor is not None for part in whole for piece in part.lives)
    wanted = min_partitions or min(cores, total // WORTH_A_TASK + objects // OBJECTS_WORTH_A_TASK)
    most = max_records or MAX_RECORDS
    ranges: list[OffsetRange] = []
    for part in whole:
        if part.count:
            share = -(-part.count * wanted // total)
            ranges += _cut(part, max(share, -(-part.count // most), -(-part.size // MAX_BYTES), 1), most)
    return ranges


def _cut(whole: OffsetRange, parts: int, most: int) -> list[OffsetRange]:
    parts = min(parts, whole.count)
    marks = [whole.start]
    for mark in _marks(whole, parts):
        before = marks[-1]
        steps = -(-(mark - before) // most)  # where records are small, so many bytes may be too many of them
        marks += [before + (mark - before) * step // steps for step in range(1, steps + 1)]
    return _parts(whole, marks)


def _marks(whole: OffsetRange, parts: int) -> list[int]:
    """Where each part ends: all of about the same size, none of them empty."""
    if not whole.size:
        return [whole.start + whole.count * part // parts for part in range(1, parts + 1)]
    sizes = list(accumulate((piece.size for piece in whole.lives), initial=0))
    found: list[int] = []
    for part in range(1, parts):
        size = whole.size * part / parts
        place = min(bisect_right(sizes, size) - 1, len(whole.lives) - 1)
        piece = whole.lives[place]
        at = piece.start + round((piece.end - piece.start) * (size - sizes[place]) / max(1, piece.size))
        least = (found[-1] if found else whole.start) + 1
        found.append(max(least, min(at, whole.end - (parts - part))))
    return [*found, whole.end]


def _parts(whole: OffsetRange, marks: list[int]) -> list[OffsetRange]:
    """The range, cut there. Each has the pieces that it overlaps, of thousands perhaps."""
    return [
        OffsetRange(whole.topic, whole.uid, start, end, pieces_between(whole.lives, start, end))
        for start, end in pairwise(marks)
    ]
