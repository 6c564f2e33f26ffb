"""Shares of a topic, copied on executors and handed to whoever commits them, in their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from ister.spark.jobs.copying.staging import Part, Route, copy_share
from ister.spark.jobs.running import Stop, parallelism, run_tasks
from ister.spark.jobs.snapshot import Share
from ister.spark.jobs.watching import Watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHARE_BYTES: Final = 64 * 1024 * 1024
BATCH_BYTES: Final = 1024 * 1024 * 1024
"""So much is staged before it is committed."""


def copy_shares(
    spark: SparkSession, route: Route, cut: Sequence[Share], watch: Watch, stop: Stop
) -> list[Part] | None:
    """All of them, in their order; None if it was stopped before the last one."""
    parts: dict[int, Part] = {}
    work = partial(copy_share, route)
    at_once = min(parallelism(spark), max(1, len(cut)))
    for number, part in run_tasks(spark, work, [share.range for share in cut], at_once=at_once, stop=stop):
        parts[number] = part
        watch.advances(part.records, part.size)
    return [parts[number] for number in range(len(cut))] if len(parts) == len(cut) else None


def in_batches(cut: Sequence[Share], size: int) -> Iterator[list[Share]]:
    """Neighbours, of about so many bytes together."""
    gathered: list[Share] = []
    for share in cut:
        if gathered and sum(one.size for one in gathered) + share.size > size:
            yield gathered
            gathered = []
        gathered.append(share)
    if gathered:
        yield gathered
