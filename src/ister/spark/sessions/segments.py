"""The catalog of segments as a table: which pieces a topic is made of, where they are, of which time.

It is no snapshot: each query over it asks the brokers anew, in one task. A query that names it twice asks
twice, and may be told two things; `.cache()` or `.collect()` holds on to one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ister.client.log import Log
from ister.errors import UnknownTopic
from ister.protocol.history import HistoryEntry, HistoryList
from ister.protocol.messages import SegmentDescription, TopicDescription
from ister.spark.hints import hints_shown
from ister.spark.sessions.opening import DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SCHEMA: Final = (
    "topic string, segment long, start long, end long, leader int, replicas array<int>, tier string, "
    "size long, first_time timestamp, last_time timestamp, state string, object string, object_size long, "
    "checksum string, revision long"
)
ASKED_AT_ONCE: Final = 32
"""Topics that are described at the same time."""


def segments(spark: SparkSession, bootstrap: str = DEFAULT_BOOTSTRAP) -> DataFrame:
    """The segments of all topics, a row each: offsets `start` to before `end`, led by `leader`, held by
    `replicas`, of `size` bytes. `first_time` is when it was opened, just before its first record, `last_time`
    that of its last; both are null where there is no record. The `tier` is where `read.tier=union` has it
    from: `history`, then by an `object` of `object_size` bytes with this `checksum`, or `hot`. All rows of a
    topic are of one `revision` of the metadata."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        with hints_shown():
            yield segment_rows(asyncio.run(describe_all(bootstrap)))

    return spark.range(0, 1, 1, 1).mapInArrow(rows, SCHEMA)


class Catalogued(NamedTuple):
    """A topic, with its segments, and what of them is in the history."""

    there: TopicDescription
    listed: HistoryList


async def describe_all(bootstrap: str) -> list[Catalogued]:
    """Every topic that people are shown, but those that are deleted meanwhile."""
    import ister

    async with ister.connect(bootstrap) as log:
        turns = asyncio.Semaphore(ASKED_AT_ONCE)
        names = [found.topic for found in await log.list_topics()]
        found = await asyncio.gather(*(_describe(log, name, turns) for name in names))
    return [topic for topic in found if topic is not None]


async def _describe(log: Log, topic: str, turns: asyncio.Semaphore) -> Catalogued | None:
    async with turns:
        try:
            there = await log.describe_topic(topic)
            listed = await log.history(topic)
        except UnknownTopic:
            return None
        return Catalogued(there, listed) if there.uid == listed.topic_uid else None


def segment_rows(topics: Sequence[Catalogued]) -> pa.RecordBatch:
    import pyarrow as pa

    time = pa.timestamp("us", "UTC")
    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("segment", pa.int64()),
            ("start", pa.int64()),
            ("end", pa.int64()),
            ("leader", pa.int32()),
            ("replicas", pa.list_(pa.int32())),
            ("tier", pa.string()),
            ("size", pa.int64()),
            ("first_time", time),
            ("last_time", time),
            ("state", pa.string()),
            ("object", pa.string()),
            ("object_size", pa.int64()),
            ("checksum", pa.string()),
            ("revision", pa.int64()),
        ]
    )
    return pa.RecordBatch.from_pylist([row for topic in topics for row in _rows(topic)], schema=schema)


def _rows(topic: Catalogued) -> Iterator[dict[str, Any]]:
    entries = {entry.uid: entry for entry in topic.listed.entries}
    for part in topic.there.segments:
        entry = entries.get(part.uid)
        yield {
            **_row(topic.there, part),
            **({} if entry is None else _stored(topic.listed, entry)),
            "revision": topic.listed.index,
        }


def _stored(listed: HistoryList, entry: HistoryEntry) -> dict[str, Any]:
    from ister.spark.locating import descriptor_of
    from ister.spark.ranges import HISTORY, HOT

    is_read_there = descriptor_of(listed, entry, "") is not None
    where: dict[str, Any] = {"replicas": entry.replicas, "tier": HISTORY if is_read_there else HOT}
    if entry.name:
        where |= {"object": entry.name, "object_size": entry.size, "checksum": f"{entry.crc:08x}"}
    return where


def _row(topic: TopicDescription, part: SegmentDescription) -> dict[str, Any]:
    has_records = part.end_offset > part.base_offset
    return {
        "topic": topic.topic,
        "segment": part.segment,
        "start": part.base_offset,
        "end": part.end_offset,
        "leader": part.leader,
        "replicas": part.replicas,
        "size": part.bytes,
        "first_time": part.first_append_time_us if has_records else None,
        "last_time": part.last_append_time_us if has_records else None,
        "state": part.state,
    }
