"""Topics whose first segments are led by different nodes."""

from __future__ import annotations

from typing import Final

import ister
from bench.cluster.nodes import ClusterProcesses

_MOST_TOPICS: Final = 64


async def topics_by_leader(cluster: ClusterProcesses, prefix: str, replicas: int) -> dict[int, str]:
    """A topic for each node to lead: until its segment is handed on, or the node is lost."""
    found: dict[int, str] = {}
    async with ister.connect(cluster.bootstrap) as log:
        for number in range(_MOST_TOPICS):
            made = await log.create_topic(f"{prefix}-{number}", replicas=replicas)
            found.setdefault(made.segments[0].leader, made.topic)
            if len(found) == len(cluster.nodes):
                return found
    raise RuntimeError(f"of {_MOST_TOPICS} topics all are led by {sorted(found)}")
