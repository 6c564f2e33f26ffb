"""One seed, one run: a cluster of 3 or 5 nodes, its clients, what goes wrong, and the judgement.

    python -m tests.simulation.run cluster --seed 17

replays seed 17. A run has a time of faults (a minute of virtual time and more), then the world is healed and
everybody must finish within a bound (checker 14), then every line is read to its end through every node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from random import Random
from typing import Any, Self
from unittest import mock

from msgspec.structs import replace

from ister import Log
from ister.config import BrokerConfig
from ister.errors import OffsetOutOfRange
from ister.raft import driver
from ister.testing import Loss, MemoryStore, SimNetwork, VirtualLoop
from ister.testing.checkers import Violation, check_history
from ister.testing.history import Read
from tests.cluster import load
from tests.cluster.load import ClusterClients
from tests.cluster.nemesis import Nemesis
from tests.cluster.node import PEER_PORT, SECRET, ClusterNode, host_of
from tests.cluster.watch import Watch
from tests.simulation.seeded import FAULT_SECONDS, FINISH_SECONDS, SeededRun, Summary

LEAST_HANDOFFS = 3

TOPICS: dict[str, dict[str, Any]] = {
    "orders": {"segment_records": 8},
    "events": {"segment_bytes": 4096},
    "aged": {"segment_age_ms": 2500, "segment_records": 30},
    "kept": {"segment_records": 8, "retention_bytes": 5000},
}


@dataclass(kw_only=True)
class ClusterSummary(Summary):
    """Of a run of a cluster."""

    nodes: int
    handoffs: int
    moves: int
    terms: int
    restores: int
    joined: int

    def check_worth(self) -> None:
        super().check_worth()
        assert self.moves >= LEAST_HANDOFFS, self

    @classmethod
    def rows(cls, runs: Sequence[Self]) -> dict[str, str]:
        sizes = (f"{sum(run.nodes == size for run in runs):,}" for size in (3, 5))
        return (
            {"clusters of 3 nodes, of 5": " and ".join(sizes)}
            | super().rows(runs)
            | {
                "handoffs": f"{sum(run.handoffs for run in runs):,}",
                "of these to another node": f"{sum(run.moves for run in runs):,}",
                "leaders of the metadata": f"{sum(run.terms for run in runs):,}",
                "states restored from a snapshot": f"{sum(run.restores for run in runs):,}",
                "nodes that joined in the middle": f"{sum(run.joined for run in runs):,}",
            }
        )


class ClusterRun(SeededRun[ClusterSummary]):
    """One seed's run with one replica of each segment. `tests.replicas_sim` has one with several."""

    world = "cluster"
    about = (
        "Three or five brokers and their clients a seed; the checkers are in `ister.testing.checkers` and "
        "`watch.py`, the faults in `nemesis.py`, of `tests/cluster`."
    )
    clients: ClusterClients

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(loop)
        self.dice: Random = loop.fork("run")
        self.network = SimNetwork(loop.fork("network"), trace=loop.trace)
        self.watch = self._make_watch()
        self.size = self._choose_size(loop.seed)
        self.config = self._make_config()
        self.store = self._make_store()
        self.nodes = [self._make_node(number) for number in range(1, self.size + 1)]
        self.clients = self._make_clients()
        self.nemesis = self._make_nemesis()

    # What a run is made of.

    def _choose_size(self, seed: int) -> int:
        return 5 if seed % 4 == 3 else 3

    def _make_watch(self) -> Watch:
        return Watch(self.history)

    def _make_store(self) -> MemoryStore | None:
        """Where the history is; None in local mode."""
        return None

    def _make_clients(self) -> ClusterClients:
        return ClusterClients(self.loop, self.network, self.history, [node.number for node in self.nodes])

    def _make_nemesis(self) -> Nemesis:
        return Nemesis(self.loop, self.nodes, self.network, self.clients, self.history, self._make_node)

    def _topics(self) -> dict[str, dict[str, Any]]:
        return TOPICS

    def _make_config(self) -> BrokerConfig:
        heartbeat_ms = self.dice.choice((100, 250, 300))
        return BrokerConfig(
            replicas=1,
            admin_port=-1,
            peer_port=PEER_PORT,
            heartbeat_ms=heartbeat_ms,
            election_min_ms=5 * heartbeat_ms,
            election_max_ms=10 * heartbeat_ms,
            snapshot_entries=self.dice.choice((10, 40, 10_000)),
            monitor_check_ms=self.dice.choice((500, 1000)),
            lease_sync_ms=500,
            hot_tail_bytes=self.dice.choice((0, 2000, 1 << 20)),
            max_held_ms=self.dice.choice((500, 5000)),
            max_held_appends=self.dice.choice((5, 10_000)),
            test_controls=True,
            cluster_secret=SECRET,
        )

    def _make_node(self, number: int) -> ClusterNode:
        founder = number == 1
        join = "" if founder else f"{host_of(1)}:{PEER_PORT},{host_of(2)}:{PEER_PORT}"
        config = replace(self.config, bootstrap_cluster=founder, join=join, join_timeout_ms=30_000)
        return ClusterNode(self.loop, self.network, self.watch, number, config, self.store)

    async def play(self) -> ClusterSummary:
        # Entries kept behind a snapshot: with few of them, who was away for a while is sent the snapshot.
        kept = mock.patch.object(driver, "KEPT_BEHIND_SNAPSHOT", self.dice.choice((0, 5, 1000)))
        with self.watch.attached(), kept:
            return await self._play()

    async def _play(self) -> ClusterSummary:
        await self._found()
        await self._create_topics()
        workers = self._start_workers()
        await self.nemesis.run(FAULT_SECONDS)
        self._raise_violations()
        await self.nemesis.heal()
        keeping = self.loop.create_task(self.nemesis.keep_up())
        await self._enough_operations(workers)
        await self._finish(workers)
        await self._last_death()
        await self._read_everything()
        await self._look_at_disks()
        keeping.cancel()
        check_history(self.history)
        return self._summary()

    async def _found(self) -> None:
        for node in self.nodes:
            await node.start()
        for node in self.nodes:
            await node.running.metadata.announced.wait()

    async def _create_topics(self) -> None:
        async with self.clients.connect("client-1.setup") as log:
            for name, settings in self._topics().items():
                made = await log.create_topic(name, max_message_bytes=2048, **settings)
                self.clients.lines[name] = f"{name}#{made.uid}"
        self.clients.strong.update(self.clients.lines.values())
        self.clients.trimmed.add("kept")

    def _start_workers(self) -> list[asyncio.Task[None]]:
        clients, start = self.clients, self.loop.create_task
        topics = list(self._topics())
        workers = [
            start(load.append_batches(clients, "client-1.a", "orders"), name="a"),
            start(load.append_batches(clients, "client-2.b@2", "orders"), name="b"),
            start(load.produce(clients, "client-2.c", "orders"), name="c"),
            start(load.produce(clients, "client-3.d", "events"), name="d"),
            start(load.produce(clients, "client-1.e@1", "events"), name="e"),
            start(load.append_batches(clients, "client-3.f", "aged"), name="f"),
            start(load.produce(clients, "client-1.g@3", "kept"), name="g"),
            start(load.wander(clients, "client-2.w", topics), name="wander-1"),
            start(load.wander(clients, "client-3.x", topics), name="wander-2"),
            start(load.churn(clients, "client-2.churn", "churn"), name="churn"),
            start(load.administer(clients, "client-3.operator", topics), name="operator"),
        ]
        for number in clients.numbers:
            topic = topics[number % 2]
            host = load.HOSTS[number % 3]
            workers.append(
                start(load.follow(clients, f"{host}.r{number}@{number}", topic), name=f"reader-{number}")
            )
        workers.append(start(load.follow(clients, "client-1.r", "kept"), name="reader-kept"))
        return workers

    def _is_enough(self) -> bool:
        return super()._is_enough() and self.watch.seals >= LEAST_HANDOFFS

    async def _last_death(self) -> None:
        """What is judged is what new processes find."""
        way = self.dice.randrange(3)
        for node in self.nodes:
            if way == 0:
                node.kill()
            elif way == 1:
                node.lose_power(Loss.ALL)
        await asyncio.gather(*(self.nemesis.bring_up(node) for node in self.nodes))

    # The judgement.

    async def _look_at_disks(self) -> None:
        """What reading does not show."""

    async def _read_everything(self) -> None:
        """Through every node the same line: the first one's is the measure of the others."""
        await self._wait_until_equal()
        async with asyncio.timeout(FINISH_SECONDS):
            for number, node in enumerate(self.nodes):
                for name, line in self.clients.lines.items():
                    try:
                        await self._read_line(node, name, line, is_first=number == 0)
                    except OffsetOutOfRange:  # trimmed meanwhile; a second time it would be no accident
                        await self._wait_until_equal()
                        await self._read_line(node, name, line, is_first=number == 0)

    async def _read_line(self, node: ClusterNode, name: str, line: str, *, is_first: bool) -> None:
        async with self.clients.connect(f"client-1.judge@{node.number}") as log:
            start, end = await log.offsets_at(name, "earliest"), await log.offsets_at(name, "latest")
            if is_first:
                read = self.history.final(line, start)
            else:
                read = self.history.reading(f"judge at {node.name}", line, start)
            await self._read_frames(log, name, read)
            if read.end_offset != end:
                raise Violation("reads_are_gapless", f"{line} ends at {end}, reading at {read.end_offset}")
            self._compare(node, line, read)
            found = self.dice.choice(read.frames) if read.frames else None
            if found is not None:
                at = await log.offsets_at(name, found.append_time_us)
                first = next(f for f in read.frames if f.append_time_us >= found.append_time_us)
                # What was read may be trimmed by now: then the line begins with what is found.
                if at != first.base_offset and at != await log.offsets_at(name, "earliest"):
                    raise Violation("offsets_at", f"{line} at {found.append_time_us}: {at}, not {first}")

    async def _read_frames(self, log: Log, name: str, read: Read) -> None:
        async with aclosing(log.read(name, start=read.start_offset, max_bytes=1 << 20).frames()) as frames:
            async for frame in frames:
                read.frames.append(self.clients.seen(frame))

    def _compare(self, node: ClusterNode, line: str, read: Read) -> None:
        final = self.history.finals[line]
        known = {frame.base_offset: frame for frame in final.frames}
        if read.end_offset != final.end_offset or any(known.get(f.base_offset) != f for f in read.frames):
            raise Violation(
                "one line through every node",
                f"{line} is {read.start_offset} to {read.end_offset} through {node.name}, and was "
                f"{final.start_offset} to {final.end_offset} through {self.nodes[0].name}",
            )

    async def _wait_until_equal(self) -> None:
        """Every node comes to the same metadata, byte for byte."""
        async with asyncio.timeout(FINISH_SECONDS):
            while len({node.running.metadata.state.to_bytes() for node in self.nodes}) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    def _summary(self) -> ClusterSummary:
        deaths = sum(node.deaths for node in self.nodes)
        return ClusterSummary(
            **self._summary_fields(self.nemesis.counts, deaths),
            nodes=self.size,
            handoffs=self.watch.seals,
            moves=self.watch.moves,
            terms=len(self.watch.raft.properties.leaders),
            restores=self.watch.restores,
            joined=self.nemesis.joined,
        )
