"""What a micro-batch takes, and a query that has nothing to do: `python -m bench.spark.triggers --help`.

A stream query reads a topic into nothing (`noop`). So many rows are appended as one frame, and the batch that
reads them is timed by Spark's own report of it; beside it stands Spark's floor, the same with a source of its
own that reads nothing (`rate-micro-batch`). Then nothing is appended for a while, and what our processes use
meanwhile is counted: the source's, which is asked for news all the time, and the broker's. The JVM that asks
is Spark's.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from bench.cluster.nodes import NodeProcess, free_ports
from bench.machine import machine_facts
from ister import sync
from ister.bench.figures import rounded
from ister.bench.target import scratch_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TOPIC: Final = "triggered"
VALUE_BYTES: Final = 200
WARM_UP: Final = 10
_RUNNER: Final = "python_streaming_source_runner"
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_POLL_S: Final = 0.02


def measure_triggers(directory: Path, rows: int, batches: int, idle_s: float, master: str) -> dict[str, Any]:
    from ister.spark import local_session

    node = NodeProcess(directory / "broker", free_ports(1)[0], ["--log-level", "warning"])
    node.start()
    spark = local_session("ister-bench-triggers", **{"spark.master": master})
    try:
        floor = floor_ms(spark, directory, rows, batches)
        with sync.connect(node.address) as log:
            log.create_topic(TOPIC)
            reader = spark.readStream.format("ister").option("bootstrap.servers", node.address)
            query = start(reader.option("subscribe", TOPIC).load(), directory / "of-ister")
            try:
                took = batches_ms(query, log, rows, batches)
                idle = idle_share(node, idle_s)
            finally:
                query.stop()
    finally:
        spark.stop()
        node.kill()
    return {
        "rows": rows,
        "batches": batches,
        "batch_p50_ms": rounded(median(took)),
        "spark_floor_p50_ms": rounded(median(floor)),
        "idle_s": idle_s,
        "idle_cores": {name: rounded(share) for name, share in idle.items()},
        "batches_ms": took,
        "spark_floor_ms": floor,
    }


def start(stream: DataFrame, checkpoint: Path) -> StreamingQuery:
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    return writer.start()


def batches_ms(query: StreamingQuery, log: sync.Log, rows: int, batches: int) -> list[float]:
    """One append, one batch. The first ones warm up, and are left out."""
    query.processAllAvailable()
    values = [os.urandom(VALUE_BYTES)] * rows
    took: list[float] = []
    for turn in range(WARM_UP + batches):
        log.append(TOPIC, values)
        query.processAllAvailable()
        last = [report for report in query.recentProgress if report["numInputRows"]][-1]
        assert last["numInputRows"] == rows, last
        if turn >= WARM_UP:
            took.append(last["durationMs"]["triggerExecution"])
    return took


def floor_ms(spark: SparkSession, directory: Path, rows: int, batches: int) -> list[float]:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).load()
    query = start(source, directory / "of-spark")
    try:
        while len(done := [r for r in query.recentProgress if r["numInputRows"]]) < WARM_UP + batches:
            time.sleep(_POLL_S)
        return [report["durationMs"]["triggerExecution"] for report in done[WARM_UP:][:batches]]
    finally:
        query.stop()


def idle_share(node: NodeProcess, seconds: float) -> dict[str, float]:
    """How much of a core each of our processes uses while nothing happens."""
    ours = {"source": sum_of(runners()), "broker": sum_of([node.process_id])}
    time.sleep(seconds)
    later = {"source": sum_of(runners()), "broker": sum_of([node.process_id])}
    return {name: (later[name] - used) / seconds for name, used in ours.items()}


def runners() -> Iterator[int]:
    """The processes below this one that answer for a stream's source."""
    parents = {int(entry.name): parent_of(int(entry.name)) for entry in Path("/proc").glob("[0-9]*")}
    for process in parents:
        line: list[int] = [process]
        while (parent := parents.get(line[-1], 0)) > 1 and parent not in line:
            line.append(parent)
        if os.getpid() in line and _RUNNER in read(process, "cmdline"):
            yield process


def parent_of(process: int) -> int:
    found = read(process, "stat").rpartition(")")[2].split()
    return int(found[1]) if found else 0


def sum_of(processes: Iterator[int] | Sequence[int]) -> float:
    """Seconds that they have used so far."""
    used = 0.0
    for process in processes:
        fields = read(process, "stat").rpartition(")")[2].split()
        if fields:
            used += (int(fields[11]) + int(fields[12])) / _TICKS
    return used


def read(process: int, name: str) -> str:
    """Empty if it has ended."""
    try:
        return Path(f"/proc/{process}/{name}").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark.triggers", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--idle-seconds", type=float, default=30.0)
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args(arguments)
    machine = machine_facts(Path.cwd())  # before there is any load of our own
    with scratch_directory() as directory:
        found = measure_triggers(
            directory, options.rows, options.batches, options.idle_seconds, options.master
        )
    print(json.dumps({"machine": machine, **found}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
