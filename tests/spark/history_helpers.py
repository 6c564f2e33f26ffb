"""Topics with a history, planned and read without Spark: what tests of both tiers share."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from ister import sync
from ister.spark.options import parse_table_options
from ister.spark.ranges import Loss, OffsetRange
from ister.spark.source.planning import plan
from ister.spark.source.reading import read_range

SCHEMA = pa.schema([("offset", pa.int64()), ("value", pa.binary())])


def filled(log: sync.Log, topic: str, segments: int, open_records: int = 5, **settings: int) -> None:
    """Segments of ten records, in two frames, that are in the history; and some records more."""
    log.create_topic(topic, segment_records=10, **settings)
    for number in range(segments):
        for half in (0, 5):
            log.append(topic, [b"%d" % (10 * number + half + place) for place in range(5)])
    for place in range(open_records):
        log.append(topic, [b"%d" % (10 * segments + place)])
    until_exported(log, topic, segments)


def until_exported(log: sync.Log, topic: str, segments: int) -> None:
    deadline = time.monotonic() + 30
    while sum(entry.state == "published" for entry in log.history(topic).entries) < segments:
        assert time.monotonic() < deadline, log.history(topic)
        time.sleep(0.05)


def planned(address: str, topic: str, **options: str) -> list[OffsetRange]:
    given = {"bootstrap.servers": address, "subscribe": topic, **options}
    return plan(parse_table_options({name.lower(): value for name, value in given.items()}), cores=2)


def rows(
    address: str, parts: list[OffsetRange], *, fails: bool = True, **how: Any
) -> list[tuple[int, bytes]]:
    return [
        row
        for part in parts
        for batch in read_range(address, part, SCHEMA, Loss(fails), **how)
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]


def numbered(start: int, end: int) -> list[tuple[int, bytes]]:
    return [(offset, b"%d" % offset) for offset in range(start, end)]


def objects_of(log: sync.Log, topic: str) -> list[Path]:
    listed = log.history(topic)
    root = Path(listed.location.removeprefix("file://"))
    return [root / entry.name for entry in listed.entries if entry.name]


def until_released(log: sync.Log, topic: str, segments: int) -> None:
    """Of a topic whose `local_retention_ms` is small."""
    deadline = time.monotonic() + 60
    while sum(bool(one.name) and not one.replicas for one in log.history(topic).entries) < segments:
        assert time.monotonic() < deadline, log.history(topic)
        time.sleep(0.2)
