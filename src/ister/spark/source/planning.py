"""Which offsets a table holds, and who reads which of them. Decided once, where the query is planned.

A table is a snapshot: its ends are resolved here to offsets, and every task reads just what it was told.
"""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

import msgspec

from ister import sync
from ister.errors import ConfigError
from ister.protocol.messages import TopicDescription
from ister.spark.options import TableOptions
from ister.spark.ranges import HOT, Loss, OffsetRange, Piece
from ister.spark.source.places import Moment, Place
from ister.spark.source.subscription import Subscription

MAX_RECORDS: Final = 5_000_000
"""What one task reads at most when nobody says otherwise: to begin and end one costs as much as to read
a hundred thousand."""
WORTH_A_TASK: Final = 50_000
"""Below this many records each, more tasks cost more than they bring."""


def plan(options: TableOptions, cores: int) -> list[OffsetRange]:
    """Ask the broker where each topic begins and ends, and divide what lies between."""
    read = options.read
    with sync.connect(read.bootstrap) as found:
        topics = topics_now(found, read.subscription)
        read.start.check(topics)
        options.end.check(topics)
        whole = [resolve(found, options, topic) for topic in topics]
    return divide(whole, cores, read.min_partitions, read.max_records_per_partition)


def topics_now(found: sync.Log, subscription: Subscription) -> tuple[str, ...]:
    """The topics that are read: for a pattern, those that match it now."""
    if subscription.pattern is None:
        return subscription.topics
    return subscription.among(there.topic for there in found.list_topics())


def resolve(found: sync.Log, options: TableOptions, topic: str) -> OffsetRange:
    there = described(found, topic)
    start = offset_at(found, there, options.read.start.of(topic))
    end = offset_at(found, there, options.end.of(topic))
    if start > end:
        raise ConfigError(
            f"the range of {topic} starts at offset {start} and ends before it, at {end}",
            hint="Give a start that is not after the end.",
        )
    first, last = clip(there, start, end, Loss(options.read.fail_on_data_loss))
    return OffsetRange(topic, there.uid, first, last, pieces_of(there, first, last))


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


def clip(there: TopicDescription, start: int, end: int, loss: Loss) -> tuple[int, int]:
    """The part of the range that the topic has; the rest is reported as missing."""
    first, last = max(start, there.start_offset), min(end, there.end_offset)
    if start < min(first, end):
        loss.report(there.topic, start, min(first, end), f"the topic begins at {there.start_offset}")
    if max(last, start) < end:
        loss.report(there.topic, max(last, start), end, f"the topic ends at {there.end_offset}")
    return first, max(first, last)


def pieces_of(there: TopicDescription, start: int, end: int) -> tuple[Piece, ...]:
    """Where the offsets from `start` to before `end` live, by this description."""
    ends = [part.base_offset for part in there.segments[1:]] + [max(end, there.end_offset)]
    return tuple(
        Piece(
            part.segment,
            max(part.base_offset, start),
            min(behind, end),
            HOT,
            tuple(part.replicas or [part.leader]),
            part.sealed,
        )
        for part, behind in zip(there.segments, ends, strict=True)
        if part.base_offset < end and behind > start
    )


def divide(
    whole: list[OffsetRange], cores: int, min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """Into ranges of about the same size, each within one topic; empty topics have none."""
    total = sum(part.count for part in whole)
    wanted = min_partitions or min(cores, total // WORTH_A_TASK)
    pieces: list[OffsetRange] = []
    for part in whole:
        if part.count:
            share = -(-part.count * wanted // total)
            pieces += _cut(part, max(share, -(-part.count // (max_records or MAX_RECORDS)), 1))
    return pieces


def _cut(whole: OffsetRange, pieces: int) -> list[OffsetRange]:
    pieces = min(pieces, whole.count)
    marks = [whole.start + whole.count * piece // pieces for piece in range(pieces + 1)]
    return [_part(whole, start, end) for start, end in pairwise(marks)]


def _part(whole: OffsetRange, start: int, end: int) -> OffsetRange:
    lives = tuple(
        piece._replace(start=max(piece.start, start), end=min(piece.end, end))
        for piece in whole.lives
        if piece.start < end and piece.end > start
    )
    return OffsetRange(whole.topic, whole.uid, start, end, lives)
