"""kill -9 of the metadata leader, again and again: how long until the others take a change again."""

from __future__ import annotations

import time
from statistics import median

from bench.metadata.cluster import Cluster
from ister.bench.figures import Fields, rounded


def measure_failover(cluster: Cluster, runs: int) -> Fields:
    """From the kill to the commit of a proposal that a survivor made right after it."""
    seconds = []
    for run in range(runs):
        victim, survivor = cluster.leader(), cluster.followers()[0]
        killed = time.monotonic()
        victim.kill()
        done = survivor.ask("lone", count=1, name=f"after-{run}")
        seconds.append(done["ended"] - killed)
        victim.start()
        cluster.wait_whole()
    return {
        "runs": runs,
        "p50_s": rounded(median(seconds)),
        "max_s": rounded(max(seconds)),
        "over_2_s": sum(one > 2 for one in seconds),
    }
