"""Which offsets a table holds, and who reads which of them. Decided once, where the query is planned.

A table is a snapshot: its ends are resolved here to offsets, and every task reads just what it was told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Final

import msgspec

from ister import sync
from ister.errors import ConfigError
from ister.protocol.messages import TopicDescription
from ister.spark.options import Moment, Place, ReadOptions
from ister.spark.ranges import HOT, Loss, OffsetRange, Piece

MAX_RECORDS: Final = 1_000_000
"""What one task reads when nobody says otherwise."""
WORTH_A_TASK: Final = 50_000
"""Below this many records each, more tasks cost more than they bring."""


def plan(options: ReadOptions, cores: int) -> list[OffsetRange]:
    """Ask the broker where each topic begins and ends, and divide what lies between."""
    with sync.connect(options.bootstrap) as found:
        whole = [resolve(found, options, topic) for topic in options.topics]
    return divide(whole, cores, options.min_partitions, options.max_records_per_partition)


def resolve(found: sync.Log, options: ReadOptions, topic: str) -> OffsetRange:
    # The times first: what is appended in between then lies before the end, never before the start.
    times = {
        place: found.offsets_at(topic, place.time_us)
        for place in (options.start[topic], options.end[topic])
        if isinstance(place, Moment)
    }
    there = found.describe_topic(topic)
    # A description may be of an earlier moment if the node that leads is down; the end must not.
    there = msgspec.structs.replace(there, end_offset=found.offsets_at(topic, "latest"))
    start = _offset_of(options.start[topic], there, times)
    end = _offset_of(options.end[topic], there, times)
    if start > end:
        raise ConfigError(
            f"the range of {topic} starts at offset {start} and ends before it, at {end}",
            hint="Give a start that is not after the end.",
        )
    loss = Loss(options.fail_on_data_loss)
    first, last = max(start, there.start_offset), min(end, there.end_offset)
    if start < min(first, end):
        loss.report(topic, start, min(first, end), f"the topic begins at {there.start_offset}")
    if max(last, start) < end:
        loss.report(topic, max(last, start), end, f"the topic ends at {there.end_offset}")
    whole = OffsetRange(topic, there.uid, first, max(first, last))
    return replace(whole, lives=pieces_of(there, whole.start, whole.end))


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


def _offset_of(place: Place, there: TopicDescription, times: Mapping[Moment, int]) -> int:
    if isinstance(place, Moment):
        return times[place]
    if isinstance(place, int):
        return place
    return there.start_offset if place == "earliest" else there.end_offset


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
