"""The batch writer: each task appends its rows as they come, and the driver adds up what was appended.

At-least-once. There is no transaction: rows are in the log as soon as their task has them acknowledged, also
if the job fails later; and a task that Spark runs again appends its rows again. Within one run of a task
each row is appended once, whatever happens to its connection (A5).
"""

from __future__ import annotations

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
from ister.spark.options import WriteOptions
from ister.spark.schema import check_write_schema

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("ister.spark")


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """How many records one task appended to each topic."""

    counts: dict[str, int]


class IsterWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise BadRequest("a log can't be overwritten", hint="Say .mode('append').")
        left_out = check_write_schema(schema, options.topic is not None)
        self._options = options
        log.warning("this sink is at-least-once: a task that Spark runs again appends its rows again")
        if left_out:
            log.warning("columns that are not written, since the log sets them: %s", ", ".join(left_out))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        from ister.spark.sink.appending import append_rows

        with hints_shown():
            return Written(dict(append_rows(self._options.bootstrap, self._options.topic, iterator)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        counts = _added_up(messages)
        log.info("appended", extra=fields(records=sum(counts.values()), **counts))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing can be taken back: say what is there. Tasks that failed did not tell what they appended."""
        counts = _added_up(messages)
        log.warning(
            "the write failed; %d records of its finished tasks stay in the log, perhaps more of others: %s",
            sum(counts.values()),
            ", ".join(f"{topic} {count}" for topic, count in sorted(counts.items())) or "none known",
        )


def _added_up(messages: list[WriterCommitMessage | None]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for message in messages:
        if isinstance(message, Written):
            counts.update(message.counts)
    return counts
