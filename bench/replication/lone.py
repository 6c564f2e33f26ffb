"""A lone record, one at a time: with three replicas, with one, and a bare write and sync of the same bytes.

The three take turns, a hundred at a time, so that all meet the same weather. Both topics are led by the same
node of the same cluster: what differs is that two more disks are waited for, of which one is enough.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import ister
from bench.cluster.nodes import ClusterProcesses
from bench.cluster.topics import topics_by_leader
from bench.replication.raw import COPIES
from ister.bench.figures import Fields, milliseconds, percentile, rounded
from ister.bench.raw import now, raw_file, time_writes
from ister.bench.workload import records_like
from ister.frame import encode

RECORD_BYTES: Final = 100
_BLOCK: Final = 100


async def measure_lone(cluster: ClusterProcesses, directory: Path, records: int) -> Fields:
    replicated = await topics_by_leader(cluster, "lone-replicated", replicas=COPIES)
    alone = await topics_by_leader(cluster, "lone-alone", replicas=1)
    leader = min(replicated)
    values = records_like(0, 1, RECORD_BYTES)
    frame_bytes = len(encode(values))
    with_copies: list[float] = []
    without: list[float] = []
    raw: list[float] = []
    async with ister.connect(cluster.bootstrap) as log:
        for topic in (replicated[leader], alone[leader]):
            await _append(log, topic, values, _BLOCK)
        with raw_file(directory) as file:
            for first in range(0, records, _BLOCK):
                count = min(_BLOCK, records - first)
                with_copies += await _append(log, replicated[leader], values, count)
                without += await _append(log, alone[leader], values, count)
                raw += time_writes(file, count * frame_bytes, frame_bytes, position=first * frame_bytes)
    return describe_lone(with_copies, without, raw)


async def _append(log: ister.Log, topic: str, values: list[bytes], count: int) -> list[float]:
    latencies: list[float] = []
    for _ in range(count):
        began = now()
        await log.append(topic, values)
        latencies.append(now() - began)
    return latencies


def describe_lone(with_copies: list[float], without: list[float], raw: list[float]) -> Fields:
    found, alone = milliseconds(with_copies), milliseconds(without)
    return {
        "records_per_s": rounded(len(with_copies) / sum(with_copies)),
        **found,
        **{f"one_replica_{name}": value for name, value in alone.items()},
        "p50_ratio_to_one_replica": rounded(float(found["p50_ms"]) / float(alone["p50_ms"])),
        "raw_p50_ms": rounded(percentile(sorted(raw), 0.5) * 1000),
        "replicas": COPIES,
        "records": len(with_copies),
        "size": RECORD_BYTES,
    }
