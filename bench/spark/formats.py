"""Where rows can be scanned from. Each format is filled once, and then makes tables of chosen columns.

A new one is a class with these three, and a line in `scan`; what it needs besides, it starts and ends itself.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import ister
from bench.cluster.nodes import NodeProcess, free_ports
from bench.spark.kafka import kafka_formats

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC: Final = "scanned"
BATCH: Final = 1000
_KINDS: Final = 64
_IN_FLIGHT: Final = 5
COLUMNS: Final = {
    "all": ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
    "three": ("offset", "timestamp", "value"),
}
"""All that the Kafka connector has, and what a query looks at that has named its columns."""
_TYPES: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
}


@dataclass(frozen=True)
class Rows:
    """What is scanned: keys of 8 bytes, values half of which is chance and half the same text."""

    count: int
    value_bytes: int

    def values(self, kind: int) -> list[bytes]:
        chance = self.value_bytes // 2
        text = (b'{"kind": %d, "status": "shipped", "region": "north"} ' % kind) * 64
        return [os.urandom(chance) + text[: self.value_bytes - chance] for _ in range(BATCH)]


class Format(Protocol):
    name: str

    def fill(self, spark: SparkSession, rows: Rows) -> None:
        """Make the rows, once."""

    def table(self, spark: SparkSession, columns: Sequence[str]) -> DataFrame:
        """A table of these columns that nothing was read of yet."""


class IsterFormat:
    """A topic of one broker with its defaults, which runs beside Spark on the same machine."""

    def __init__(self, bootstrap: str, name: str = "ister", **options: str) -> None:
        """`options` are those of the read."""
        self.name = name
        self._bootstrap = bootstrap
        self._options = options

    def fill(self, spark: SparkSession, rows: Rows) -> None:
        asyncio.run(self._append(rows))

    async def _append(self, rows: Rows) -> None:
        kinds = [rows.values(kind) for kind in range(_KINDS)]
        keys = [b"%08d" % number for number in range(BATCH)]
        async with ister.connect(self._bootstrap) as log:
            room = asyncio.Semaphore(_IN_FLIGHT)

            async def append(step: int) -> None:
                count = min(BATCH, rows.count - step)
                values = kinds[step // BATCH % _KINDS]
                await log.append(TOPIC, values[:count], keys=keys[:count])
                room.release()

            async with asyncio.TaskGroup() as group:
                for step in range(0, rows.count, BATCH):
                    await room.acquire()
                    group.create_task(append(step))

    def table(self, spark: SparkSession, columns: Sequence[str]) -> DataFrame:
        schema = ", ".join(f"{name} {_TYPES[name]}" for name in columns)
        reader = spark.read.format("ister").schema(schema).option("bootstrap.servers", self._bootstrap)
        return reader.option("subscribe", TOPIC).options(**self._options).load()


class ParquetFormat:
    """The same rows as zstd Parquet, written by Spark out of the topic."""

    name = "parquet"

    def __init__(self, directory: Path, origin: IsterFormat) -> None:
        self._path = str(directory / "parquet")
        self._origin = origin

    def fill(self, spark: SparkSession, rows: Rows) -> None:
        table = self._origin.table(spark, COLUMNS["all"])
        table.write.option("compression", "zstd").parquet(self._path)

    def table(self, spark: SparkSession, columns: Sequence[str]) -> DataFrame:
        return spark.read.parquet(self._path).select(*columns)


@contextmanager
def formats(directory: Path) -> Iterator[list[Format]]:
    """All that are compared, the one that the others are filled from first."""
    node = NodeProcess(directory / "broker", free_ports(1)[0], ["--log-level", "warning"])
    node.start()
    try:
        origin = IsterFormat(node.address)
        with kafka_formats(directory, origin) as of_kafka:
            yield [origin, ParquetFormat(directory, origin), *of_kafka]
    finally:
        node.kill()
