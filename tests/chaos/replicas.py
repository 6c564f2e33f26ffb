"""`python -m tests.chaos.replicas --seconds 120 [--seed S] [--report FILE]`: nodes killed, disks lost.

Three real broker processes with three replicas of everything; producers and readers go through every node,
as in `tests.chaos.cluster`. A random node is killed again and again, each third time with its disk. In the
end every segment has three whole copies, which are the same bytes on three disks; and through every node: all
that was acknowledged is there, at its offset, once; offsets are continuous from 0; readers that followed saw
that same line. Then all nodes are killed at once, and it is so again.

The seed decides what is sent and who is killed when; the machine decides the rest, so a seed makes a failure
likely to show again, and not certain to.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

from bench.cluster.copies import wait_replicated
from bench.cluster.nodes import SERVE, ClusterProcesses

import ister
from ister.protocol.messages import TopicDescription
from ister.testing.checkers import Violation
from ister.testing.history import Read
from tests.chaos.cluster import COPIES, TOPICS, ClusterChaos, Result, run_cluster
from tests.chaos.cluster_faults import Say, quiet
from tests.chaos.cluster_load import RETRY_SECONDS
from tests.chaos.command import Chaos
from tests.chaos.replicas_faults import DISK, DiskFaults

SEGMENT_RECORDS = 5000


class ReplicaChaos(ClusterChaos):
    segment_records = SEGMENT_RECORDS

    def __init__(
        self, cluster: ClusterProcesses, seed: int, say: Say = quiet, patience_s: float = RETRY_SECONDS
    ) -> None:
        super().__init__(cluster, seed, say, patience_s)
        self._disk_faults = DiskFaults(cluster, TOPICS, Random(f"faults {seed}"), say, copies=COPIES)
        self._faults = self._disk_faults

    async def _judge_lines(self, when: str) -> dict[str, Read]:
        self._say("all copies are made whole")
        self.result.waits.append(await wait_replicated(self._cluster.bootstrap, TOPICS, COPIES))
        lines = await super()._judge_lines(when)
        directories = {node_id: node.directory / "data" for node_id, node in self._cluster.nodes.items()}
        async with ister.connect(self._cluster.bootstrap) as log:
            for topic in TOPICS:
                described = await log.describe_topic(topic)
                await asyncio.to_thread(check_copies, described, directories)
        return lines

    def _count(self) -> None:
        super()._count()
        self.result.waits = self._disk_faults.waits + self.result.waits


def check_copies(described: TopicDescription, directories: dict[int, Path]) -> None:
    """Each sealed segment is the same bytes on each of its replicas' disks."""
    for segment in described.segments:
        if not segment.sealed:
            continue
        name = f"segments/{described.uid:016d}/{segment.segment:08d}-{segment.uid:016d}.log"
        images = {node: _head(directories[node] / name, segment.bytes) for node in segment.replicas}
        short = [node for node, image in images.items() if len(image) < segment.bytes]
        if short:
            raise Violation(
                "copies_are_whole",
                f"{described.topic}:{segment.segment} has {segment.bytes} bytes, fewer on nodes {short}",
            )
        if len(set(images.values())) > 1:
            raise Violation(
                "copies_are_equal",
                f"{described.topic}:{segment.segment} is not the same on nodes {segment.replicas}",
            )


def _head(path: Path, size: int) -> bytes:
    if not path.exists():
        return b""
    with path.open("rb") as file:
        return file.read(size)


def run_replicas(
    seconds: float,
    seed: int,
    *,
    command: Sequence[str] = SERVE,
    directory: Path | None = None,
    say: Say = quiet,
    patience_s: float = RETRY_SECONDS,
) -> Result:
    """All of it; raises `Violation` if a promise is broken."""
    return run_cluster(
        seconds,
        seed,
        command=command,
        directory=directory,
        say=say,
        patience_s=patience_s,
        chaos=ReplicaChaos,
    )


def report(result: Result) -> str:
    lines = [
        "# Nodes killed and disks lost: the last full run",
        "",
        "Written by `python -m tests.chaos.replicas --report`: three real broker processes with three",
        "replicas of every segment, six producers and twelve tailing readers through all of them. A random",
        "node was killed again and again, each third time with its disk: it came back empty, as a new",
        "member. Before a disk was taken, all segments had their copies again. Afterwards every acknowledged",
        "record was read through every node at its offset, once, and again after a kill of all; every sealed",
        "segment was the same bytes on three disks; all was judged by `ister.testing.checkers`.",
        "",
        "| | |",
        "|---|---|",
        f"| seed | {result.seed} |",
        *(f"| {name} | {count} |" for name, count in sorted(result.faults.items())),
        f"| starts of a node | {result.starts} |",
        f"| longest wait until all was replicated again | {max(result.waits):.1f} s |",
        f"| segments handed on | {result.rollovers:,} |",
        f"| sends acknowledged | {result.acknowledged:,} |",
        f"| sends whose outcome nobody was told | {result.unknown:,} |",
        f"| records in the log at the end | {result.records:,} |",
        f"| wall time | {result.seconds:.0f} s |",
        "| result | nothing lost, nothing twice, no gap |",
        "",
    ]
    return "\n".join(lines)


def summary(result: Result) -> str:
    return (
        f"clean in {result.seconds:.0f} s: {result.kills} kills, {result.faults[DISK]} with the disk, "
        f"all replicated again within {max(result.waits):.1f} s, {result.acknowledged} sends acknowledged, "
        f"{result.unknown} unknown, {result.records} records"
    )


CHAOS = Chaos("tests.chaos.replicas", __doc__, "replica chaos", 120.0, run_replicas, summary, report)

if __name__ == "__main__":
    sys.exit(CHAOS.main())
