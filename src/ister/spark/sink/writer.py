"""The batch writer: tasks stage their rows, and the driver commits them as one job, all or nothing.

A job has a random name of its own: run again, it is another job, and its rows are appended again, unless
`txnAppId` and `txnVersion` say that they are the same. With `delivery=at-least-once` tasks append directly:
rows are in the log as soon as their task has them acknowledged, also if the job fails later.

The ids of a stream query, which are there inside foreachBatch, are not used: two writes of one batch to one
topic are two jobs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ister.errors import BadRequest
from ister.logs import fields
from ister.spark.hints import hints_shown
from ister.spark.options import AT_LEAST_ONCE, WriteOptions
from ister.spark.schema import check_write_schema
from ister.spark.sink.job import Job
from ister.spark.sink.staging import Staged, stage_rows

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("ister.spark")


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """How many records one task appended to each topic."""

    counts: dict[str, int]


@dataclass(frozen=True)
class StagedTask(WriterCommitMessage):
    staged: Staged


def check_columns(options: WriteOptions, schema: StructType) -> None:
    left_out = check_write_schema(schema, options.topic is not None)
    if left_out:
        log.warning("columns that are not written, since the log sets them: %s", ", ".join(left_out))
    if options.delivery == AT_LEAST_ONCE:
        log.warning("delivery=at-least-once: a task that Spark runs again appends its rows again")


class IsterWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise BadRequest("a log can't be overwritten", hint="Say .mode('append').")
        check_columns(options, schema)
        self._options = options
        self._job: Job | None = None
        if options.delivery != AT_LEAST_ONCE:
            self._job = Job.begin(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        options, job = self._options, self._job
        with hints_shown():
            if job is None:
                from ister.spark.sink.appending import append_rows

                return Written(dict(append_rows(options.bootstrap, options.topic, iterator)))
            stage = job.origin.stage
            if job.is_done:
                return StagedTask(Staged(stage, 0, ()))
            return StagedTask(asyncio.run(stage_rows(options.bootstrap, stage, options.topic, iterator)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._job is None:
            counts: dict[str, int] = added_up(messages)
        else:
            with hints_shown():
                counts = self._job.commit(
                    [message.staged for message in messages if isinstance(message, StagedTask)]
                )
        log.info("appended", extra=fields(records=sum(counts.values()), **counts))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._job is not None:
            with hints_shown():
                self._job.abort(was_committing=bool(messages) and None not in messages)
            return
        # Nothing can be taken back: say what is there. Tasks that failed did not tell what they appended.
        counts = added_up(messages)
        log.warning(
            "the write failed; %d records of its finished tasks stay in the log, perhaps more of others: %s",
            sum(counts.values()),
            ", ".join(f"{topic} {count}" for topic, count in sorted(counts.items())) or "none known",
        )


def added_up(messages: list[WriterCommitMessage | None]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for message in messages:
        if isinstance(message, Written):
            counts.update(message.counts)
    return counts
