"""The data source `ister`: what Spark makes of `format("ister")`.

It is found without registration by way of the package `pyspark_ister`. Spark imports that for every session
that uses any Python source at all, so nothing is imported here that another Spark might not have; such a
one is refused when the source is used, not when it is found.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from ister.spark.hints import hints_shown
from ister.spark.versions import check_version, installed_version

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from ister.spark.sink.stream_writer import IsterStreamWriter
    from ister.spark.sink.writer import IsterWriter
    from ister.spark.source.reader import IsterReader
    from ister.spark.source.stream import IsterStreamReader

log = logging.getLogger("ister.spark")


class IsterSource(DataSource):
    """Topics of a log as a table: `docs/guides/spark.md` is its manual."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        with hints_shown():
            check_version(installed_version())

    @classmethod
    def name(cls) -> str:
        return "ister"

    def schema(self) -> StructType:
        from ister.spark.options import parse_include_headers
        from ister.spark.schema import table_schema

        with hints_shown():
            return table_schema(parse_include_headers(self.options))

    def reader(self, schema: StructType) -> IsterReader:
        from ister.spark.options import parse_table_options
        from ister.spark.source.reader import IsterReader

        with hints_shown():
            options = parse_table_options(self.options)
            reader = IsterReader(options, schema)
        _warn_ignored(options.read.ignored)
        return reader

    def streamReader(self, schema: StructType) -> IsterStreamReader:
        from ister.spark.options import parse_stream_options
        from ister.spark.source.stream import IsterStreamReader

        with hints_shown():
            options = parse_stream_options(self.options)
            reader = IsterStreamReader(options, schema)
        _warn_ignored(options.read.ignored)
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> IsterWriter:
        from ister.spark.options import parse_write_options
        from ister.spark.sink.writer import IsterWriter

        with hints_shown():
            options = parse_write_options(self.options)
            writer = IsterWriter(options, schema, overwrite)
        _warn_ignored(options.ignored)
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> IsterStreamWriter:
        from ister.spark.options import parse_write_options
        from ister.spark.sink.stream_writer import IsterStreamWriter

        with hints_shown():
            options = parse_write_options(self.options, is_stream=True)
            writer = IsterStreamWriter(options, schema, overwrite)
        _warn_ignored(options.ignored)
        return writer


def _warn_ignored(names: Iterable[str]) -> None:
    if names:
        log.warning("options of the Kafka client that have no effect here: %s", ", ".join(names))
