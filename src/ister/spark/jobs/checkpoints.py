"""What a stream query has left in its checkpoint: how far it is, and how it got there.

Spark writes a file for each batch before it runs, `offsets/N`, and one when it is done, `commits/N`. The
query is where its last finished batch ended; one that was begun and not finished is done again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ister.errors import BadRequest, ConfigError
from ister.spark.source.offsets import StreamOffset, stream_offset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class CheckpointTopic:
    """One topic that the query reads."""

    topic: str
    uid: int
    offset: int
    """Where the next batch begins."""
    steps: list[tuple[int, int]] = field(default_factory=list)
    """When each batch that is still known began, in milliseconds, and where it ends."""


@dataclass
class Checkpoint:
    path: str
    reader: str
    cluster: str
    batch: int | None
    """The last one that is done."""
    topics: dict[str, CheckpointTopic]


def is_local(path: str) -> bool:
    return urlsplit(path).scheme in ("", "file")


def read_checkpoint(path: str, spark: SparkSession | None = None) -> Checkpoint:
    """By a session, of whatever that can read; without one, of a directory of this machine."""
    offsets, commits = _files(path, "offsets", spark), _files(path, "commits", spark)
    if not offsets:
        raise BadRequest(
            f"{path} has no offsets of a stream query", hint="Name the checkpointLocation of the query."
        )
    done = max((batch for batch in commits if batch in offsets), default=None)
    found = Checkpoint(path, "", "", done, {})
    for batch in sorted(offsets):
        begun_ms, sources = _parse(offsets[batch])
        for source in sources:
            _add(found, source, begun_ms, is_done=done is not None and batch <= done)
    if not found.topics:
        raise BadRequest(f"the query of {path} reads nothing of Ister", hint="Name another checkpoint.")
    return found


def _add(found: Checkpoint, source: StreamOffset, begun_ms: int, *, is_done: bool) -> None:
    found.reader, found.cluster = source.reader or found.reader, source.cluster or found.cluster
    for name, place in source.topics.items():
        known = found.topics.get(name)
        if known is None or known.uid != place.uid:
            known = found.topics[name] = CheckpointTopic(name, place.uid, place.began)
        known.steps.append((begun_ms, place.offset))
        if is_done:
            known.offset = place.offset


def _parse(text: str) -> tuple[int, list[StreamOffset]]:
    """When a batch began, and where its sources end; sources that are not ours are passed over."""
    begun_ms, sources = 0, []
    for line in text.splitlines()[1:]:
        try:
            told = json.loads(line)
        except ValueError:
            continue  # a source that has not said anything yet
        if isinstance(told, dict) and "batchTimestampMs" in told:
            begun_ms = int(told["batchTimestampMs"])
        elif isinstance(told, dict) and "topics" in told and "version" in told:
            sources.append(stream_offset(told))
    return begun_ms, sources


def _files(path: str, kind: str, spark: SparkSession | None) -> Mapping[int, str]:
    """By the number of the batch."""
    if spark is not None:
        from pyspark.sql.functions import input_file_name

        rows = spark.read.text(f"{path.rstrip('/')}/{kind}", wholetext=True)
        told = rows.select(input_file_name().alias("name"), "value").collect()
        named = ((row["name"].rpartition("/")[2], row["value"]) for row in told)
        return {int(name): text for name, text in named if name.isdecimal()}
    if not is_local(path):
        raise ConfigError(f"{path} is not on this machine", hint="Give a session: Spark reads it.")
    found: dict[int, str] = {}
    for file in (Path(urlsplit(path).path) / kind).glob("[0-9]*"):
        if file.name.isdecimal():
            # A query that runs drops its oldest ones at any moment.
            with suppress(FileNotFoundError):
                found[int(file.name)] = file.read_text()
    return found
