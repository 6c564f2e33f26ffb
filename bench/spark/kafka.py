"""Kafka's own Spark connector over the same rows: what Ister's source and sink stand beside.

One KRaft broker with its defaults, on the same machine. A topic of one partition is one task unless
`minPartitions` says more, so both are shown; and four partitions, with fetches as large as its documents
advise, are its best. Nothing here runs where the jars are not: `sh bench/peers/install.sh kafka spark-kafka`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.peers.kafka import Kafka, broker, format_storage, new_cluster_id, write_config
from bench.peers.kafka_load import KafkaLoad, running_load
from bench.peers.peer import Found, Missing, free_port, server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bench.spark.formats import Format, Rows

INSTALL: Final = "sh bench/peers/install.sh kafka spark-kafka"
TUNED_FETCHES: Final = {
    "kafka.max.poll.records": "50000",
    "kafka.max.partition.fetch.bytes": str(16 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
    "kafka.fetch.min.bytes": str(1 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
}
TUNED_WRITES: Final = {"kafka.batch.size": str(128 << 10), "kafka.linger.ms": "5"}
SCANS: Final[Mapping[str, tuple[int, Mapping[str, str]]]] = {
    "kafka_one": (1, {}),
    "kafka_one_split": (1, {"minPartitions": "2"}),
    "kafka_one_split_tuned": (1, {"minPartitions": "2", **TUNED_FETCHES}),
    "kafka_four": (4, {}),
    "kafka_four_tuned": (4, TUNED_FETCHES),
}
"""By name in the results: how many partitions, and the options of the read."""


def jars() -> list[Path]:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return sorted((Path(cache) / "ister-bench" / "spark-kafka").glob("*.jar"))


def find() -> Found | Missing:
    found = Kafka().find()
    if isinstance(found, Missing) or not jars():
        return Missing(INSTALL)
    return found


def spark_conf() -> dict[str, str]:
    """What the session needs so that it knows the connector, where there is one."""
    return {} if isinstance(find(), Missing) else {"spark.jars": ",".join(map(str, jars()))}


class KafkaBroker:
    """Makes topics, each once."""

    def __init__(self, bootstrap: str, load: KafkaLoad) -> None:
        self.bootstrap = bootstrap
        self._load = load
        self._made: set[str] = set()

    def make(self, topic: str, *options: str, partitions: int = 1) -> bool:
        """False if it is there already."""
        if topic in self._made:
            return False
        self._made.add(topic)
        self._load.create_topic(topic, options, partitions=partitions, replicas=1)
        return True

    def drop(self, topic: str) -> None:
        self._made.remove(topic)
        self._load.delete_topic(topic)


class KafkaFormat:
    """A topic read with these options; those with as many partitions read the same one."""

    def __init__(self, name: str, kafka: KafkaBroker, origin: Format) -> None:
        self.name = name
        self._kafka = kafka
        self._origin = origin
        self._partitions, self._options = SCANS[name]
        self._topic = f"scanned-{self._partitions}"

    def fill(self, spark: SparkSession, rows: Rows) -> None:
        if self._kafka.make(self._topic, partitions=self._partitions):
            table = self._origin.table(spark, ("key", "value"))
            write(table, self._kafka.bootstrap, self._topic, TUNED_WRITES)

    def table(self, spark: SparkSession, columns: Sequence[str]) -> DataFrame:
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", self._kafka.bootstrap)
        return reader.option("subscribe", self._topic).options(**self._options).load().select(*columns)


def write(table: DataFrame, bootstrap: str, topic: str, options: Mapping[str, str]) -> None:
    writer = table.write.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    writer.option("topic", topic).options(**options).save()


@contextmanager
def kafka_broker(directory: Path) -> Iterator[KafkaBroker]:
    home = directory / "kafka"
    home.mkdir()
    port, controller = free_port(), free_port()
    config = write_config(home, port, controller)
    format_storage(config, new_cluster_id())
    with ExitStack() as stack:
        stack.enter_context(server(broker(config), home, port))
        load = stack.enter_context(running_load(f"127.0.0.1:{port}", home))
        yield KafkaBroker(f"127.0.0.1:{port}", load)


@contextmanager
def kafka_formats(directory: Path, origin: Format) -> Iterator[list[Format]]:
    """Those of Kafka, filled from another; none where it is missing."""
    if isinstance(find(), Missing):
        yield []
        return
    with kafka_broker(directory) as kafka:
        yield [KafkaFormat(name, kafka, origin) for name in SCANS]
