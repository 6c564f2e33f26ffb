"""The stream reader: a planner in a process beside the driver, and tasks that read ranges as a table's do.

Spark makes one reader for the driver's side of a query and keeps it, and its connections with it, until the
query ends; others only carry `read` to the tasks, and connect to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ister import sync
from ister.io.clock import SystemClock
from ister.spark.hints import hints_shown
from ister.spark.options import StreamOptions
from ister.spark.ranges import Loss, OffsetRange
from ister.spark.schema import arrow_schema, check_read_schema
from ister.spark.source.offsets import stream_offset
from ister.spark.source.pinning import BrokerPins
from ister.spark.source.triggers import StreamPlanner

if TYPE_CHECKING:
    import pyarrow as pa

JsonOffset = dict[str, Any]


class IsterStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the columns of `schema`, and decodes no others."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        check_read_schema(schema)
        self._options = options
        self._schema = schema
        self._log: sync.Log | None = None
        self._planner: StreamPlanner | None = None

    # On the driver.

    def initialOffset(self) -> JsonOffset:
        with hints_shown():
            return self._plan().initial().to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        with hints_shown():
            self._plan().prepare_available_now()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark takes one limit, and hands it back: it says only whether there are any."""
        limits = self._options.limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        if limits.min_offsets is not None:
            return ReadMinRows(limits.min_offsets)
        return ReadAllAvailable()

    def latestOffset(self, start: JsonOffset, limit: ReadLimit) -> JsonOffset:
        with hints_shown():
            limited = not isinstance(limit, ReadAllAvailable)
            return self._plan().latest(stream_offset(start), limited=limited).to_json()

    def reportLatestOffset(self) -> JsonOffset | None:
        reported = self._plan().reported()
        return None if reported is None else reported.to_json()

    def partitions(self, start: JsonOffset, end: JsonOffset) -> list[InputPartition]:
        with hints_shown():
            return list(self._plan().ranges(stream_offset(start), stream_offset(end)))

    def commit(self, end: JsonOffset) -> None:
        with hints_shown():
            self._plan().committed(stream_offset(end))

    def stop(self) -> None:
        planner, found = self._planner, self._log
        self._planner = self._log = None
        if planner is not None and found is not None:
            try:
                planner.stopped()
            finally:
                found.close()

    def _plan(self) -> StreamPlanner:
        if self._planner is None:
            self._log = sync.connect(self._options.read.bootstrap).__enter__()
            self._planner = StreamPlanner(self._options, self._log, SystemClock(), BrokerPins(self._log))
        return self._planner

    # In a task.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, OffsetRange):
            return
        from ister.spark.source.reading import read_range

        read = self._options.read
        loss, schema = Loss(read.fail_on_data_loss), arrow_schema(self._schema)
        with hints_shown():
            yield from read_range(
                read.bootstrap, partition, schema, loss, tier=read.tier, verify=read.verify_checksums
            )
