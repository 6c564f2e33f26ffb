"""What one process of Spark says of itself: its Python, its packages, and the brokers that it reaches.

The probe travels to the executors by value and imports Ister only where it can say so if that fails: one that
has no Ister, or another one, is what it is there to find.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ister.spark.sessions.reach import Greeting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES = ("pyspark", "pyarrow", "ister")
SLOTS_NOW = "SPARK-24819"
"""What Spark says where a barrier stage has more tasks than can run at once."""
NO_BARRIER = "SPARK-24942"
"""What it says of one under dynamic allocation."""


class Report(msgspec.Struct, frozen=True):
    host: str
    process: int
    """Of the executor on its host: what its tasks have in common."""
    executable: str
    python: str
    packages: dict[str, str]
    """Their versions; empty if there is none."""
    greetings: list[Greeting] = []
    trouble: str = ""
    """Why no broker was greeted, if it is not for the brokers."""


def make_probe(addresses: Sequence[str], names: Sequence[str] = PACKAGES) -> Callable[[], str]:
    """A function that needs nothing but Python where it runs, and returns a `Report` as JSON."""

    def probe() -> str:
        import json
        import os
        import platform
        import socket
        import sys
        from importlib import metadata

        packages = {}
        for name in names:
            try:
                packages[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                packages[name] = ""
        report: dict[str, Any] = {
            "host": socket.gethostname(),
            "process": os.getppid(),
            "executable": sys.executable,
            "python": platform.python_version(),
            "packages": packages,
        }
        try:
            import msgspec as structs

            from ister.spark.sessions.reach import greet_all

            report["greetings"] = structs.to_builtins(greet_all(addresses))
        except Exception as error:  # whatever another version of it may raise
            report["trouble"] = f"{type(error).__name__}: {error}"
        return json.dumps(report)

    return probe


def probe_here(addresses: Sequence[str]) -> Report:
    return msgspec.json.decode(make_probe(addresses)(), type=Report)


def probe_executors(spark: SparkSession, addresses: Sequence[str], tasks: int) -> list[Report]:
    """One report for each executor. So many tasks run at the same time, one in each slot, so that each
    executor has one; where Spark can't promise that, many that are short."""
    try:
        reports = _run(spark, addresses, tasks, barrier=True)
    except Exception as error:  # of py4j or of grpc: all have is text
        if SLOTS_NOW in str(error) and tasks > 1:
            return probe_executors(spark, addresses, 1)
        if NO_BARRIER not in str(error):
            raise
        reports = _run(spark, addresses, 4 * tasks, barrier=False)
    return list({(report.host, report.process): report for report in reports}.values())


def _run(spark: SparkSession, addresses: Sequence[str], tasks: int, *, barrier: bool) -> list[Report]:
    probe = make_probe(addresses)

    def rows(batches: Any) -> Any:
        import pyarrow as pa

        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"report": [probe()]})

    found = spark.range(0, tasks, 1, tasks).mapInArrow(rows, "report string", barrier).collect()
    return [msgspec.json.decode(row.report, type=Report) for row in found]


def slots(spark: SparkSession) -> int:
    """How many tasks the executors that are there now can run at once."""
    last = spark.range(0, 1_000_000).selectExpr("spark_partition_id() as part").groupBy().max("part").first()
    assert last is not None
    return max(1, (int(last[0]) + 1) // int(spark.conf.get("spark.task.cpus", "1") or 1))
