"""Which offsets a table holds, and who reads which of them. Decided once, where the query is planned.

A table is a snapshot: its ends are resolved here to offsets, and every task reads just what it was told.
The range carries the topic's uid, because a topic that was deleted and made again has the same name and
other records (I3).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec
from pyspark.sql.datasource import InputPartition

from ister import sync
from ister.errors import ConfigError, IsterError, OffsetOutOfRange
from ister.protocol.messages import TopicDescription
from ister.spark.options import Moment, Place, ReadOptions

log = logging.getLogger("ister.spark")

MAX_RECORDS: Final = 1_000_000
"""What one task reads when nobody says otherwise."""
WORTH_A_TASK: Final = 50_000
"""Below this many records each, more tasks cost more than they bring."""


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """Offsets `start` to before `end` of one topic: the share of one task."""

    topic: str
    uid: int
    start: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.start


class Loss(NamedTuple):
    """What happens where offsets that were asked for are not there (promise 5)."""

    fails: bool

    def report(
        self, topic: str, start: int, end: int, why: str, kind: type[IsterError] = OffsetOutOfRange
    ) -> None:
        """Raise, or say loudly, that offsets `start` to before `end` are missing."""
        what = f"offsets {start} to {end - 1} of {topic} are not there: {why}"
        if self.fails:
            raise kind(what, hint=f"{kind.default_hint} failOnDataLoss=false reads the table without them.")
        log.warning("DATA LOSS, reading on because failOnDataLoss is false: %s", what)


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
    return OffsetRange(topic, there.uid, first, max(first, last))


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
    return [OffsetRange(whole.topic, whole.uid, start, end) for start, end in pairwise(marks)]
