"""The stream writer: tasks stage, the driver commits, each record once.

The key of a commit is the query's id and the batch's, as Spark sets them for the tasks; never a partition.
Spark makes a new process with a new writer for each commit, so that nothing is kept here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import ister
from ister.errors import BadRequest, invariant
from ister.logs import fields
from ister.spark.hints import hints_shown
from ister.spark.options import AT_LEAST_ONCE, WriteOptions
from ister.spark.sink.committing import Committed, Committer
from ister.spark.sink.failpoints import reach_of_environment
from ister.spark.sink.ledger import check_begun
from ister.spark.sink.origin import Origin
from ister.spark.sink.staging import Staged, stage_rows
from ister.spark.sink.writer import Written, added_up, check_columns

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("ister.spark")

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class StagedBatch(WriterCommitMessage):
    """What one task staged, and for which batch of which query."""

    query_id: str
    batch: int
    staged: Staged


class IsterStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise BadRequest("a log can't be overwritten", hint="Use output mode append or update.")
        check_columns(options, schema)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        options = self._options
        with hints_shown():
            if options.delivery == AT_LEAST_ONCE:
                from ister.spark.sink.appending import append_rows

                return Written(dict(append_rows(options.bootstrap, options.topic, iterator)))
            query_id, batch = _key()
            stage = Origin.of_query(query_id).stage
            staged = asyncio.run(stage_rows(options.bootstrap, stage, options.topic, iterator))
            return StagedBatch(query_id, batch, staged)

    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        if self._options.delivery == AT_LEAST_ONCE:
            counts: dict[str, int] = added_up(messages)
            log.info("appended", extra=fields(batch=batch_id, **counts))
            return
        told = [message for message in messages if isinstance(message, StagedBatch)]
        staged = [message.staged for message in told if message.staged.runs]
        keys = {(message.query_id, message.batch) for message in told}
        invariant(len(keys) == 1, f"tasks of several batches, or of none, for batch {batch_id}: {keys}")
        ((query_id, batch),) = keys
        invariant(batch == batch_id, f"tasks of batch {batch} for batch {batch_id}")
        with hints_shown():
            done = asyncio.run(_commit(self._options.bootstrap, query_id, batch_id, staged))
        if done is None:
            return  # no rows, and nothing was ever decided
        if staged and done.is_repeated:
            log.warning(
                "batch %d was decided before; that holds, and what was staged now is dropped", batch_id
            )
        log.info("committed", extra=fields(query=query_id, batch=done.batch, **done.counts))

    def abort(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        """Nothing to do: what was staged and is not decided is trimmed with the next batch that is."""


def _key() -> tuple[str, int]:
    context = TaskContext.get()
    found = [context.getLocalProperty(name) if context else None for name in (_QUERY_ID, _BATCH_ID)]
    query_id, batch = found
    if query_id is None or batch is None:
        raise BadRequest(
            f"this task has no {_QUERY_ID} or no {_BATCH_ID}: it belongs to no stream query",
            hint="Write a table with df.write, a stream with df.writeStream.",
        )
    return query_id, int(batch)


async def _commit(bootstrap: str, query_id: str, batch: int, staged: Sequence[Staged]) -> Committed | None:
    """A batch without rows has nothing to decide, the same whenever it is run. What was decided before it,
    and perhaps not carried out, is finished all the same: the next rows may be a month away."""
    reach = reach_of_environment()
    async with ister.connect(bootstrap) as found:
        committer = Committer(found, Origin.of_query(query_id), reach)
        if batch > 0:
            await check_begun(found, committer.origin.ledger, batch)
        done = await (committer.commit(batch, staged) if staged else committer.finish_newest())
    await reach("committed")
    return done
