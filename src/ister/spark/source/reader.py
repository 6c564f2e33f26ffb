"""The batch reader: planned once on the driver, then carried to the tasks as it is.

There is no `pushFilters` here, on purpose: Spark keeps a pushed filter with the table, and a second query on
the same DataFrame would silently get the first one's rows. What is to be left unread is said with options.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ister.spark.hints import hints_shown
from ister.spark.options import TableOptions
from ister.spark.ranges import Loss, OffsetRange
from ister.spark.schema import arrow_schema, check_read_schema
from ister.spark.source.planning import plan

if TYPE_CHECKING:
    import pyarrow as pa


class IsterReader(DataSourceReader):
    """Reads the columns of `schema`, and decodes no others."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        check_read_schema(schema)
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        # A planner has no session to ask for the cluster's parallelism; the driver's cores are a good guess.
        with hints_shown():
            return list(plan(self._options, os.cpu_count() or 1))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, OffsetRange):
            return  # Spark makes up one task where the plan has none
        from ister.spark.source.reading import read_range

        read = self._options.read
        loss, schema = Loss(read.fail_on_data_loss), arrow_schema(self._schema)
        with hints_shown():
            yield from read_range(
                read.bootstrap, partition, schema, loss, tier=read.tier, verify=read.verify_checksums
            )
