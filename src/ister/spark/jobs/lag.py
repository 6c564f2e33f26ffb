"""`lag`: how far each query and each table is behind its topics, in records and in time.

A query that runs is known by its pin, one that does not by the checkpoint that it has left; a table by its
own last commit. Nothing runs on executors; a session is asked only for checkpoints that are not on this
machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import ister
from ister.client.lag import Lag, lag_of
from ister.client.log import Log
from ister.errors import UnknownTopic
from ister.io.clock import SystemClock, monotonic
from ister.protocol.messages import PinDescription
from ister.spark.jobs.checkpoints import Checkpoint, CheckpointTopic, read_checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ister.spark.jobs.lake.table import LakeTable

QUERY: Final = "query"
TABLE: Final = "table"
READER: Final = "reader"
_AT_ONCE: Final = 16


@dataclass
class Follower:
    """Whoever follows a topic."""

    kind: str
    """`query` of a checkpoint, `table`, or `reader`: somebody with a pin."""
    name: str
    """The checkpoint, the table, or the pin."""
    topic: str
    uid: int
    offset: int
    is_running: bool | None
    """By its pin; None of a table."""
    rate: float = 0.0
    lag: Lag | None = None
    """None if the topic is not there any more, or is another one."""
    note: str = ""
    steps: list[tuple[int, int]] = field(default_factory=list)
    """Of a checkpoint: when batches began, in milliseconds, and where they ended."""


@dataclass
class LagReport:
    followers: list[Follower]
    at_us: int
    seconds: float = 0.0


def lag(
    spark: SparkSession | None = None,
    *,
    bootstrap: str = "127.0.0.1:9091",
    checkpoints: Sequence[str] = (),
    tables: Sequence[str] = (),
) -> LagReport:
    """All readers with a pin, and the queries and tables that are named."""
    began, clock = monotonic(), SystemClock()
    known = [read_checkpoint(path, spark) for path in checkpoints]
    found = [follower for path in tables for follower in _of_table(path)]
    report = LagReport([], clock.now_us())
    report.followers = asyncio.run(_look(bootstrap, known, found, report.at_us))
    report.seconds = monotonic() - began
    return report


async def _look(
    bootstrap: str, known: Sequence[Checkpoint], tables: Sequence[Follower], now_us: int
) -> list[Follower]:
    async with ister.connect(bootstrap) as log:
        pins = {(pin.name, pin.topic): pin for pin in await log.pins()}
        followers = [_of_topic(one, topic, pins) for one in known for topic in one.topics.values()]
        named = {(one.reader, topic) for one in known for topic in one.topics}
        followers += [_of_pin(pin) for key, pin in pins.items() if key not in named]
        followers += tables
        turns = asyncio.Semaphore(_AT_ONCE)
        await asyncio.gather(*(_measure(log, one, now_us, turns) for one in followers))
    return followers


async def _measure(log: Log, follower: Follower, now_us: int, turns: asyncio.Semaphore) -> None:
    async with turns:
        try:
            there = await log.describe_topic(follower.topic)
            if there.uid != follower.uid:
                follower.note = f"the topic was made again: it has uid {there.uid} now, not {follower.uid}"
                return
            follower.lag = await lag_of(log, follower.topic, follower.offset, now_us)
        except UnknownTopic:
            follower.note = "the topic was deleted"


def _of_topic(
    checkpoint: Checkpoint, topic: CheckpointTopic, pins: dict[tuple[str, str], PinDescription]
) -> Follower:
    pin = pins.get((checkpoint.reader, topic.topic))
    running = pin is not None and pin.is_live
    made = Follower(QUERY, checkpoint.path, topic.topic, topic.uid, topic.offset, running)
    made.steps = topic.steps
    made.rate = pin.rate if pin is not None and running else 0.0
    made.note = "" if checkpoint.batch is not None else "no batch is done yet"
    return made


def _of_pin(pin: PinDescription) -> Follower:
    made = Follower(READER, pin.name, pin.topic, pin.topic_uid, pin.offset, pin.is_live, pin.rate)
    made.note = pin.about
    return made


def _of_table(path: str) -> list[Follower]:
    found = []
    for name, table in _tables_at(path):
        origin, covered = table.origin(), table.coverage()
        offset = 0 if covered is None else covered.next
        found.append(Follower(TABLE, name, origin.topic, origin.uid, offset, None))
    return found


def _tables_at(path: str) -> list[tuple[str, LakeTable]]:
    from ister.spark.jobs.lake.opening import Target, find_table, format_at

    kind = format_at(path)
    if kind != "iceberg":
        return [(path, find_table(Target(kind, path), ""))]
    return _iceberg_tables(path)


def _iceberg_tables(path: str) -> list[tuple[str, Any]]:
    """Of the catalog below a path: all that a tier job has made."""
    from ister.spark.jobs.lake.iceberg import IcebergTable, open_catalog

    catalog = open_catalog(path, None, {})
    names = [".".join(name) for space in catalog.list_namespaces() for name in catalog.list_tables(space)]
    opened = [(f"{path} {name}", IcebergTable.open(catalog, name)) for name in sorted(names)]
    return [(name, table) for name, table in opened if table is not None]
