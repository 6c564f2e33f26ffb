"""How fast Spark scans a topic, beside Parquet and Kafka: `python -m bench.spark.scan --help`.

Every row is read and goes nowhere (`noop`), in turns, so that whatever else the machine does meets all of
them. Printed is one JSON object: the seconds of each scan, the median rate of each format, and the ratios to
Parquet, which mean more than the rates on a machine that is shared.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from bench.spark.command import run_command
from bench.spark.formats import COLUMNS, Format, Rows, formats
from bench.spark.kafka import spark_conf
from ister.bench.figures import rounded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BASE: Final = "parquet"


def scan_seconds(table: DataFrame) -> float:
    began = time.perf_counter()
    table.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def measure_scans(directory: Path, rows: Rows, repeats: int, master: str) -> dict[str, Any]:
    """In `directory` there is room for the rows twice."""
    from ister.spark import local_session

    conf = {"spark.master": master, "spark.driver.memory": "3g", **spark_conf()}
    spark = local_session("ister-bench-scan", **conf)
    try:
        with formats(directory) as compared:
            for form in compared:
                form.fill(spark, rows)
            return summarise(scans(spark, compared, repeats), rows)
    finally:
        spark.stop()


def scans(spark: SparkSession, compared: Sequence[Format], repeats: int) -> dict[str, dict[str, list[float]]]:
    """Seconds by the name of the columns and of the format. The first turn warms up, and is left out."""
    taken: dict[str, dict[str, list[float]]] = {
        columns: {form.name: [] for form in compared} for columns in COLUMNS
    }
    for turn in range(repeats + 1):
        for columns, names in COLUMNS.items():
            for form in compared:
                seconds = scan_seconds(form.table(spark, names))
                if turn:
                    taken[columns][form.name].append(seconds)
    return taken


def summarise(taken: dict[str, dict[str, list[float]]], rows: Rows) -> dict[str, Any]:
    rates = {
        columns: {name: rows.count / median(seconds) for name, seconds in by_format.items()}
        for columns, by_format in taken.items()
    }
    return {
        "rows": rows.count,
        "value_bytes": rows.value_bytes,
        "rows_per_s": {
            columns: {name: rounded(rate) for name, rate in found.items()} for columns, found in rates.items()
        },
        f"of_{BASE}": {
            columns: {name: rounded(rate / found[BASE]) for name, rate in found.items() if name != BASE}
            for columns, found in rates.items()
        },
        "seconds": {
            columns: {name: [rounded(one) for one in seconds] for name, seconds in by_format.items()}
            for columns, by_format in taken.items()
        },
    }


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command("scan", __doc__, measure_scans, arguments, rows=10_000_000)


if __name__ == "__main__":
    sys.exit(main())
