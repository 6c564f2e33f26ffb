"""kill -9 of a random node, again and again; each third time its disk is lost with it.

The node comes back with an empty directory and asks the others to let it in: it is another member of the
cluster then, and what it had is copied to it anew. A disk is taken only when every segment has all its
copies: three replicas survive the loss of a minority, and this is one. The other kills wait for nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from random import Random

from bench.cluster.copies import wait_replicated
from bench.cluster.nodes import ClusterProcesses

from tests.chaos.cluster_faults import Faults, Say, quiet

KILL = "kill -9 of a node"
DISK = "kill -9 of a node, its disk lost"
EVERY = 3
LONGEST_DOWN_SECONDS = 3.0
"""Up to three times `failover_after_ms`: some come back before anybody stands in for them, some after."""
LONGEST_PAUSE_SECONDS = 2.0


class DiskFaults(Faults):
    def __init__(
        self,
        cluster: ClusterProcesses,
        topics: Sequence[str],
        random: Random,
        say: Say = quiet,
        *,
        copies: int,
    ) -> None:
        super().__init__(cluster, topics, random, say)
        self.waits: list[float] = []
        """Seconds until all was replicated, before each disk that was taken."""
        self._copies = copies

    async def run(self, seconds: float) -> None:
        """Until the time is over; then all nodes run again."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            is_disk_lost = sum(self.done.values()) % EVERY == EVERY - 1
            await self._one_node(is_disk_lost)
            self.done[DISK if is_disk_lost else KILL] += 1
            for node in self._nodes:
                node.check_running()
            await asyncio.sleep(LONGEST_PAUSE_SECONDS * self._random.random() ** 2)
        await self.heal()

    async def _one_node(self, is_disk_lost: bool) -> None:
        if is_disk_lost:
            waited = await wait_replicated(self._cluster.bootstrap, self._topics, self._copies)
            self.waits.append(waited)
            self._say(f"all is replicated after {waited:.1f} s")
        node_id = self._random.choice(sorted(self._cluster.nodes))
        down = LONGEST_DOWN_SECONDS * self._random.random() ** 2
        self._say(f"kill -9 of node {node_id} for {down:.1f} s{', its disk lost' if is_disk_lost else ''}")
        victim = self._cluster.nodes[node_id]
        await asyncio.to_thread(victim.kill)
        if is_disk_lost:
            await asyncio.to_thread(self._cluster.wipe, node_id)
        await asyncio.sleep(down)
        await self._start(victim)
