"""One seed, one run, as in `tests.cluster.scenario`, with segments on several disks.

    python -m tests.simulation.run replicas --seed 17

replays seed 17. Clusters of 3 and 5 nodes; topics with 3, 2 and 5 replicas, and with one in those runs in
which no disk is lost. In the end every sealed segment has all its copies, whole and equal, no open one is
fenced, and every topic can be written to.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self
from unittest import mock

from msgspec.structs import replace

from ister.broker.topic.known import segment_path
from ister.config import BrokerConfig
from ister.replication.copies import copying
from ister.replication.recovery.fences import SUFFIX as FENCE
from ister.replication.stream import leader
from ister.testing.checkers import Violation
from ister.wal import segment as wal_segment
from tests.cluster import load, scenario
from tests.cluster.scenario import ClusterRun, ClusterSummary
from tests.replicas_sim.nemesis import ReplicaNemesis
from tests.replicas_sim.watch import ReplicaWatch
from tests.simulation.seeded import FINISH_SECONDS

LEAST_FAILOVERS = 1


@dataclass(kw_only=True)
class ReplicatedSummary(ClusterSummary):
    """Of a run with replicated segments."""

    failovers: int
    wiped: int
    rotted: int

    def check_worth(self) -> None:
        super().check_worth()
        assert self.failovers >= LEAST_FAILOVERS, self

    @classmethod
    def rows(cls, runs: Sequence[Self]) -> dict[str, str]:
        failed_over = sum(run.failovers > 0 for run in runs)
        return super().rows(runs) | {
            "failovers": f"{sum(run.failovers for run in runs):,}, in {failed_over:,} of the seeds",
            "disks lost": f"{sum(run.wiped for run in runs):,}",
            "copies that rotted": f"{sum(run.rotted for run in runs):,}",
        }


class ReplicatedRun(ClusterRun):
    world = "replicas"
    about = (
        "Three or five brokers, segments on several disks, and their clients a seed; the checkers are in "
        "`ister.testing.checkers` and `watch.py`, the faults in `nemesis.py`, of `tests/replicas_sim`."
    )
    watch: ReplicaWatch
    nemesis: ReplicaNemesis

    @property
    def may_wipe(self) -> bool:
        """With one replica, a disk that is lost is a topic that is."""
        return self.loop.seed % 3 != 0

    def _make_watch(self) -> ReplicaWatch:
        return ReplicaWatch(self.history)

    def _make_nemesis(self) -> ReplicaNemesis:
        return ReplicaNemesis(
            self.loop,
            self.nodes,
            self.network,
            self.clients,
            self.history,
            self._make_node,
            watch=self.watch,
            may_wipe=self.may_wipe,
        )

    def _make_config(self) -> BrokerConfig:
        return replace(
            super()._make_config(),
            replicas=3,
            failover_after_ms=self.dice.choice((500, 1000, 2500)),
            quorum_timeout_ms=self.dice.choice((1000, 4000, 10_000)),
            replica_lost_ms=self.dice.choice((2000, 6000)),
            repair_after_ms=self.dice.choice((4000, 15_000)),
        )

    def _topics(self) -> dict[str, dict[str, Any]]:
        topics = {name: dict(settings) for name, settings in scenario.TOPICS.items()}
        topics["aged"]["replicas"] = 2
        if self.size == 5:
            topics["events"]["replicas"] = 5
        if not self.may_wipe:
            topics["lone"] = {"segment_records": 8, "replicas": 1}
        return topics

    def _start_workers(self) -> list[asyncio.Task[None]]:
        clients, start = self.clients, self.loop.create_task
        clients.lists_are_whole = not self.may_wipe
        workers = super()._start_workers()
        for number in clients.numbers:  # at whichever replica: what is committed, and no more (F5)
            following = load.follow(clients, f"client-2.any{number}@{number}", "orders", read_from="any")
            workers.append(start(following, name=f"reader-any-{number}"))
        if not self.may_wipe:
            workers.append(start(load.produce(clients, "client-2.h", "lone"), name="h"))
            workers.append(start(load.follow(clients, "client-3.l", "lone"), name="reader-lone"))
        return workers

    async def _play(self) -> ClusterSummary:
        """Windows, chunks and intervals are small now and then: what takes megabytes elsewhere happens."""
        with contextlib.ExitStack() as stack:
            for module, name, small in (
                (leader, "WINDOW_BYTES", 3000),
                (leader, "MESSAGE_BYTES", 1000),
                (copying, "CHUNK_BYTES", 700),
                (copying, "CHECKPOINT_INTERVAL_BYTES", 1500),
                (wal_segment, "CHECKPOINT_INTERVAL_BYTES", 1500),
            ):
                if self.dice.random() < 0.5:
                    stack.enter_context(mock.patch.object(module, name, small))
            return await super()._play()

    async def _finish(self, workers: Sequence[asyncio.Task[None]]) -> None:
        await super()._finish(workers)
        await self._write_everywhere()

    async def _write_everywhere(self) -> None:
        """Checker 14: every topic takes writes, through whichever node."""
        for name, line in self.clients.lines.items():
            session = f"client-1.last@{self.dice.choice(self.clients.numbers)}"
            async with self.clients.connect(session) as log:
                send = self.history.sending(f"{session} {name}", line, [f"last {name}".encode()])
                await self.clients.told(send, log.append(name, list(send.values)))
            if not send.offsets:
                raise Violation("liveness", f"{name} cannot be written to after healing: {send.error}")

    # The judgement.

    async def _look_at_disks(self) -> None:
        """Invariants 2, 5 and 9, once all is repaired that can be."""
        deadline = self.loop.time() + FINISH_SECONDS
        while missing := self.nemesis.health.what_is_missing():
            if self.loop.time() > deadline:
                raise Violation("invariants 5 and 9", f"{FINISH_SECONDS:g} s after healing, {missing}")
            await asyncio.sleep(0.5)
        state = self.nemesis.health.view()
        for topic, segment in self.nemesis.health.segments(state):
            for member in filter(state.is_active, segment.replicas):
                path, disk = segment_path(topic.uid, segment), self.watch.disk_of(member)
                if segment.is_sealed and not self.watch.copies.is_whole(member, topic, segment):
                    raise Violation("invariant 5", f"{path} is not whole on {disk.name}")
                if not segment.is_sealed and disk.exists(path + FENCE):
                    raise Violation("invariant 9", f"{path} is open, and fenced on {disk.name}")

    def _summary(self) -> ReplicatedSummary:
        return ReplicatedSummary(
            **vars(super()._summary()),
            failovers=self.watch.failovers,
            wiped=self.nemesis.wiped,
            rotted=self.nemesis.rotted,
        )
