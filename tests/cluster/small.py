"""A small cluster for directed schedules: calm unless the script says otherwise, and watched all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from msgspec.structs import replace

import ister
from ister.broker.topic.topic_log import TopicLog
from ister.config import BrokerConfig
from ister.protocol.peer import node_of
from ister.testing import SimNetwork, VirtualLoop, simulate
from ister.testing.checkers import check_history
from ister.testing.history import History
from tests.cluster.load import ClusterClients
from tests.cluster.node import PEER_PORT, ClusterNode, host_of
from tests.cluster.watch import Watch
from tests.simulation.seeded import quiet_logs

T = TypeVar("T")


class World:
    def __init__(self, loop: VirtualLoop, size: int, **config: Any) -> None:
        self.loop = loop
        self.history = History()
        self.network = SimNetwork(loop.fork("network"), trace=loop.trace)
        self.watch = self.make_watch()
        self._config = BrokerConfig(**{"admin_port": -1, "peer_port": PEER_PORT, "replicas": 1, **config})
        self.nodes = {number: self.make(number) for number in range(1, size + 1)}
        self.clients = ClusterClients(loop, self.network, self.history, list(self.nodes))

    def make_watch(self) -> Watch:
        return Watch(self.history)

    def make(self, number: int) -> ClusterNode:
        join = "" if number == 1 else f"{host_of(1)}:{PEER_PORT}"
        config = replace(self._config, bootstrap_cluster=number == 1, join=join)
        return ClusterNode(self.loop, self.network, self.watch, number, config)

    async def start(self) -> None:
        for node in self.nodes.values():
            await node.start()
        for node in self.nodes.values():
            await node.running.metadata.announced.wait()
        await self.until(lambda: all(len(self.voters(number)) == len(self.nodes) for number in self.nodes))

    def voters(self, number: int) -> tuple[int, ...]:
        return self.nodes[number].running.metadata.status().membership.voters

    async def until(self, holds: Callable[[], bool], seconds: float = 60) -> None:
        """What is waited for is spread over several nodes, so it is looked at again and again."""
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 (there is no one event for it)
                await asyncio.sleep(0.01)

    async def agree(self) -> None:
        """All nodes that are up have applied the same."""
        up = [node for node in self.nodes.values() if node.is_up]
        await self.until(lambda: len({node.running.metadata.state.to_bytes() for node in up}) == 1)

    def topic(self, number: int, name: str = "t") -> TopicLog:
        """A topic as one node sees it."""
        return self.nodes[number].running.topics[f"default/{name}"]

    def leader(self, name: str = "t", *, seen_by: int = 1) -> int:
        """The node that leads a topic's open segment."""
        return node_of(self.topic(seen_by, name).state.open_segment.leader)

    @property
    def metadata_leader(self) -> int:
        """The node that leads the metadata in the newest term; 0 if none does."""
        leading = [
            node for node in self.nodes.values() if node.is_up and node.running.metadata.raft.is_leader
        ]
        found = max(leading, key=lambda node: node.running.metadata.status().term, default=None)
        return found.number if found is not None else 0

    async def elect(self, number: int) -> None:
        """Let this node lead the metadata."""
        await self.until(lambda: self.metadata_leader != 0)
        if self.metadata_leader != number:
            async with self.at(number) as log:
                await log.transfer_leader(number)
        await self.until(lambda: self.metadata_leader == number)

    def at(self, number: int, client: str = "client-1.x") -> ister.Log:
        """A client that knows this node alone."""
        return self.clients.connect(f"{client}@{number}")

    async def send(self, log: ister.Log, topic: str, *values: bytes, session: str = "x") -> None:
        """Append as one frame, and write down what came of it. The sends of a session follow each other."""
        send = self.history.sending(session, topic, values)
        await self.clients.told(send, log.append(topic, list(values)))

    async def read(self, number: int, topic: str) -> list[bytes | None]:
        """The whole line, through one node."""
        async with self.at(number, "client-2.reader") as log:
            read = self.history.reading(f"reader at {number}", topic, 0)
            async with aclosing(log.read(topic).frames()) as frames:
                async for frame in frames:
                    read.frames.append(self.clients.seen(frame))
        return [value for _, value in read.rows()]

    async def judge(self, *topics: str) -> None:
        """Every line is the same through every node, and the whole history is right."""
        if self.history.violations:
            check_history(self.history)
        for topic in topics:
            lines = [await self.read(number, topic) for number in self.nodes]
            assert all(line == lines[0] for line in lines), lines
            final = self.history.final(topic, 0)
            final.frames = self.history.reads[-2].frames
        check_history(self.history)


def play(
    script: Callable[[Any], Awaitable[T]],
    *,
    size: int = 3,
    seed: int = 0,
    kind: type[World] = World,
    **config: Any,
) -> T:
    """Run a script in a cluster of its own, with every node started and voting."""

    async def main(loop: VirtualLoop) -> T:
        world = kind(loop, size, **config)
        with world.watch.attached():
            await world.start()
            return await script(world)

    with quiet_logs():
        return simulate(main, seed, limit_seconds=3600)
