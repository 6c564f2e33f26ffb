"""Throughput and latency of replicated topics, on one cluster with its default settings."""

from __future__ import annotations

from pathlib import Path

from bench.cluster.nodes import ClusterProcesses, running_cluster
from bench.peers.peer import large_work
from bench.replication.lone import measure_lone
from bench.replication.throughput import measure_throughput
from ister.bench.figures import Fields
from ister.bench.session import run_loop
from ister.bench.workload import Workload


def measure_replicated(directory: Path, thousands: int) -> dict[str, Fields]:
    """By name in the results; `thousands` of 100 B records in a repetition, the others in proportion."""
    work = Workload(records=thousands * 1000, size=100, batch=1000, in_flight=1, repeats=3)
    works = {"replicated": work, "replicated_1k": large_work(work)}

    raw = directory / "raw"
    raw.mkdir(parents=True)

    async def measure(cluster: ClusterProcesses) -> dict[str, Fields]:
        await cluster.wait_whole()
        lone = await measure_lone(cluster, raw, max(thousands // 2, 100))
        return {**await measure_throughput(cluster, raw, works), "replicated_latency": lone}

    with running_cluster(directory, {"log_level": "warning"}) as cluster:
        return run_loop(measure(cluster))
