"""A cluster of real brokers on simulated seams, for tests that know what they want to break.

    def test_something() -> None:
        async def story(world: World) -> None:
            async with world.connect(1) as log:
                await log.append("t", [b"a"])
            world.nodes[2].kill()
            ...

        run_story(story)

Every node has its own host name (`node-1`, ...), disk and clock; clients are on hosts of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import ister
from ister.broker.clients.server import Server
from ister.broker.node.broker import Broker
from ister.broker.topic.topic_log import TopicLog
from ister.config import BrokerConfig
from ister.errors import InvariantBroken, IsterError
from ister.metadata.codec import COMMANDS, CommandSet
from ister.protocol.peer import node_of
from ister.testing import Loss, MemoryStore, SimClock, SimDisk, SimNetwork, VirtualLoop, simulate
from ister.testing.machine import SimMachine
from ister.testing.object_store import MemoryClient

T = TypeVar("T")

CLIENT_PORT = 9091
PEER_PORT = 6001


class WorldNode(SimMachine):
    """A machine: its disk and clock stay, its processes come and go."""

    def __init__(self, world: World, node_id: int, settings: dict[str, Any]) -> None:
        self.world = world
        self.node_id = node_id
        self.settings = settings
        disk = SimDisk(world.loop.fork(f"disk-{node_id}"), trace=world.loop.trace)
        super().__init__(world.loop, world.network, f"node-{node_id}", disk)
        self.clock = SimClock(world.loop, world.loop.fork(f"clock-{node_id}"))
        self.fatal: list[IsterError] = []
        self.store: MemoryClient | None = None
        self.broker: Broker
        self.server: Server
        self.build = world.build
        """What its next process knows."""

    @property
    def address(self) -> str:
        return f"{self.host}:{CLIENT_PORT}"

    @property
    def member(self) -> int:
        return self.broker.metadata.member

    def topic(self, name: str) -> TopicLog:
        return self.broker.topics[f"default/{name}"]

    async def start(self, **settings: Any) -> None:
        """Start a process; raises what the start of a broker raises."""
        await self.begin(self._start(settings))

    async def _start(self, settings: dict[str, Any]) -> None:
        config = BrokerConfig(
            **{
                "node_id": self.node_id,
                "client_host": self.host,
                "client_port": CLIENT_PORT,
                "peer_host": self.host,
                "peer_port": PEER_PORT,
                "replicas": 1,
                **self.settings,
                **settings,
            }
        )
        network = self.world.network.host(self.host)
        self.store = self.world.store.client(self.host) if self.world.store is not None else None
        self.broker = Broker(
            config,
            self.disk.mount(),
            self.clock,
            network,
            on_fatal=self._on_fatal,
            store=self.store,
            commands=self.build,
        )
        self.server = Server(self.broker, network, lambda: 0)
        self.broker.commits.after_cycle = self.server.flush
        await self.broker.start()
        await self.server.start()

    def _on_fatal(self, error: IsterError) -> None:
        self.fatal.append(error)
        if isinstance(error, InvariantBroken):
            self.world.loop.unhandled.append(error)  # a defect, whatever the story looks at

    async def stop(self) -> None:
        """As SIGTERM does."""
        server, broker = self.server, self.broker

        async def work() -> None:
            await server.stop(1.0)
            await broker.stop()

        await self.finish(work())

    def kill(self, *, power: bool = False, loss: Loss | None = None) -> None:
        """kill -9, or the end of power with whatever was not synced."""
        if power:
            self.lose_power(loss)
        else:
            super().kill()

    def _end_process(self, silent: bool) -> None:
        if self.store is not None:
            self.store.kill()
        super()._end_process(silent)

    def wipe(self) -> None:
        """Another, empty disk; the process must be dead."""
        fork = self.world.loop.fork(f"wiped-{self.node_id}-{self.world.loop.time()}")
        self.take_disk(SimDisk(fork, trace=self.world.loop.trace))


class World:
    def __init__(
        self,
        loop: VirtualLoop,
        settings: dict[str, Any],
        *,
        has_store: bool = False,
        build: CommandSet = COMMANDS,
    ) -> None:
        self.loop = loop
        self.build = build
        self.store = MemoryStore(loop.fork("store"), trace=loop.trace) if has_store else None
        self.network = SimNetwork(loop.fork("network"), trace=loop.trace)
        self.settings = settings
        self.nodes: dict[int, WorldNode] = {}
        self._clients = 0

    def make(self, node_id: int) -> WorldNode:
        node = self.nodes[node_id] = WorldNode(self, node_id, self.settings)
        return node

    async def grow(self, count: int) -> None:
        """Found a cluster and let the others join; returns when all of them vote and may lead."""
        for node_id in range(1, count + 1):
            how = {"bootstrap_cluster": True} if node_id == 1 else {"join": f"node-1:{PEER_PORT}"}
            await self.make(node_id).start(**how)
        await self.settle()

    @property
    def up(self) -> list[WorldNode]:
        return [node for node in self.nodes.values() if node.is_up]

    async def settle(self) -> None:
        """Wait until all nodes that are up are voters, know it, agree on the state and may lead."""
        async with asyncio.timeout(120):
            while not self._is_settled():  # noqa: ASYNC110 (what is waited for is many nodes' state)
                await asyncio.sleep(0.1)

    def _is_settled(self) -> bool:
        stores = [node.broker.metadata for node in self.up]
        voters = {node.member for node in self.up}
        return (
            all(set(store.status().membership.voters) >= voters for store in stores)
            and not any(store.status().membership.learners for store in stores)
            and all(store.announced.is_set() and node_of(store.raft.leader) for store in stores)
            and len({store.state.applied_index for store in stores}) == 1
        )

    def metadata_leader(self) -> WorldNode:
        return next(node for node in self.up if node.broker.metadata.raft.is_leader)

    def leader_of(self, topic: str) -> WorldNode:
        """The node that leads a topic's open segment, as the node that knows most has it."""
        newest = max(self.up, key=lambda node: node.broker.metadata.state.applied_index)
        return self.nodes[node_of(newest.topic(topic).state.open_segment.leader)]

    def connect(self, *node_ids: int, **options: Any) -> ister.Log:
        """A client on a host of its own that was told of these nodes."""
        self._clients += 1
        name = f"client-{self._clients}"
        return ister.connect(
            ",".join(self.nodes[node_id].address for node_id in node_ids or self.nodes),
            network=self.network.host(name),
            clock=SimClock(self.loop, self.loop.fork(name)),
            **options,
        )


async def read_all(log: ister.Log, topic: str) -> list[bytes | None]:
    """The whole line from offset 0; it has no gap."""
    records = [record async for record in log.read(topic)]
    assert [record.offset for record in records] == list(range(len(records)))
    return [record.value for record in records]


def run_story(
    story: Callable[[World], Awaitable[T]],
    *,
    nodes: int = 3,
    seed: int = 1,
    seconds: float = 3600,
    has_store: bool = False,
    build: CommandSet = COMMANDS,
    **settings: Any,
) -> T:
    """Run it against a settled cluster with these settings of all brokers; one replica unless they say
    more. With `has_store` their history is in a simulated store, `world.store`. `build` is what nodes
    know."""

    async def main(loop: VirtualLoop) -> T:
        world = World(loop, settings, has_store=has_store, build=build)
        await world.grow(nodes)
        try:
            return await story(world)
        finally:
            for node in world.up:
                node.kill()

    return simulate(main, seed=seed, limit_seconds=seconds)
