"""Nodes that have only their metadata, on simulated disks and a simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ister.errors import InvariantBroken, IsterError
from ister.metadata.codec import COMMANDS
from ister.metadata.commands import CreateTopic, Result, SealSegment
from ister.metadata.replicated import ReplicatedMetadata
from ister.protocol.messages import TopicSettings
from ister.protocol.peer import JoinAnswer, NodeAddress, node_of
from ister.testing import Loss, SimDisk, SimNetwork, SimProcess, VirtualLoop
from ister.testing.machine import SimMachine
from tests.metadata.chains import seal

PEER_PORT = 6001
CLIENT_PORT = 9091


class Node(SimMachine):
    """A machine with a disk, and the process on it, if it runs."""

    def __init__(
        self, number: int, loop: VirtualLoop, network: SimNetwork, disk: SimDisk, disk_id: str
    ) -> None:
        self.number, self.disk_id = number, disk_id
        super().__init__(loop, network, self.name, disk)
        self.snapshot_every = 25
        self.peer_port = PEER_PORT
        self.starts = 0
        self.cluster_id = ""
        self.store: ReplicatedMetadata | None = None
        self.fatal: list[IsterError] = []
        self.stopping = asyncio.Event()
        """Set when the node was told to stop, as a broker would then."""
        self.restored = 0
        self.build = COMMANDS
        """What its next process knows."""

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    @property
    def member(self) -> int:
        return NodeAddress(self.number, self.disk_id, "", 0, "", 0).member

    async def start(
        self, *, found: bool = False, join: list[int] | None = None, timeout: float = 5, announce: bool = True
    ) -> None:
        """Returns when the node takes part. What it says of itself may still be on its way."""
        store = self._make()
        await self._in_process(self._begin(store, found, join, timeout, announce))

    async def wait_to_be_invited(self) -> None:
        """Returns at once: the node listens, and begins when it is invited."""
        store = self._make()
        await self._in_process(store.listen(self.name, self.peer_port))
        assert self.process is not None
        self.process.start(self._begin_when_invited(store))

    def _make(self) -> ReplicatedMetadata:
        self.starts += 1
        self.process = SimProcess(self.loop, self.name)
        self.fatal, self.stopping = [], asyncio.Event()
        self.store = ReplicatedMetadata(
            self.disk.mount(),
            self.network.host(self.name),
            self.loop.fork(f"raft-{self.number}-{self.starts}"),
            myself=NodeAddress(self.number, self.disk_id, "", 0, "", 0),
            starts=self.starts,
            cluster_id=self.cluster_id,
            on_fatal=self._on_fatal,
            on_restored=self._on_restored,
            snapshot_every=self.snapshot_every,
            commands=self.build,
        )
        return self.store

    async def _in_process(self, work: object) -> None:
        assert self.process is not None
        await self.process.start(work)  # type: ignore[arg-type]

    async def _begin(
        self,
        store: ReplicatedMetadata,
        found: bool,
        join: list[int] | None,
        timeout: float,
        announce: bool,
    ) -> None:
        await store.listen(self.name, self.peer_port)
        known = None
        if found:
            self._belong_to("c1")
        elif join is not None:
            known = self._let_in(await store.members.join([(f"node-{n}", PEER_PORT) for n in join], timeout))
        await store.open(found=found, known=known)
        if announce:
            store.announce(self.name, CLIENT_PORT)

    async def _begin_when_invited(self, store: ReplicatedMetadata) -> None:
        invited = await store.members.wait_for_invitation()
        asked = [(node.peer_host, node.peer_port) for node in invited.nodes]
        known = self._let_in(await store.members.join(asked, timeout=5))
        await store.open(known=known)
        store.announce(self.name, CLIENT_PORT)

    def _let_in(self, answer: JoinAnswer) -> list[NodeAddress]:
        self._belong_to(answer.cluster_id)
        return answer.nodes

    def _belong_to(self, cluster_id: str) -> None:
        assert self.store is not None
        self.cluster_id = self.store.cluster_id = cluster_id

    def _on_fatal(self, error: IsterError) -> None:
        self.fatal.append(error)
        if isinstance(error, InvariantBroken):
            self.loop.unhandled.append(error)  # a defect, whatever the test looks at
        self.stopping.set()

    def _on_restored(self) -> None:
        self.restored += 1

    def kill(self, *, power: bool = False, loss: Loss | None = None) -> None:
        if power:
            self.lose_power(loss)
        else:
            super().kill()

    def died(self) -> None:
        self.store = None

    def wipe(self) -> None:
        """Another disk, with nothing on it."""
        self.take_disk(SimDisk(self.loop.fork(f"wiped-{self.number}-{self.starts}")))
        self.disk_id = f"{int(self.disk_id, 16) + 0x1000:016x}"
        self.cluster_id = ""


class Cluster:
    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.network = SimNetwork(loop.fork("network"))
        self.nodes: dict[int, Node] = {}

    def make(self, number: int) -> Node:
        disk = SimDisk(self.loop.fork(f"disk-{number}"))
        node = self.nodes[number] = Node(number, self.loop, self.network, disk, f"{number:016x}")
        return node

    async def of_three(self) -> None:
        await self.make(1).start(found=True)
        for number in (2, 3):
            await self.make(number).start(join=[1])
        await self.voters({1, 2, 3})
        await self.announced()

    def store(self, number: int) -> ReplicatedMetadata:
        store = self.nodes[number].store
        assert store is not None
        return store

    @property
    def running(self) -> list[ReplicatedMetadata]:
        return [node.store for node in self.nodes.values() if node.store is not None]

    async def until(self, holds: Callable[[], bool]) -> None:
        """What is waited for is spread over several nodes, so it is looked at again and again."""
        async with asyncio.timeout(60):
            while not holds():  # noqa: ASYNC110 (there is no one event for it)
                await asyncio.sleep(0.1)

    async def voters(self, wanted: set[int]) -> None:
        """Wait until every running node sees exactly these voters and no learner."""

        def seen() -> bool:
            views = [store.status().membership for store in self.running]
            return all({node_of(m) for m in v.voters} == wanted and not v.learners for v in views)

        await self.until(seen)

    async def announced(self) -> None:
        """Wait until the cluster knows of every start, and everybody knows what the cluster does."""
        for store in self.running:
            async with asyncio.timeout(60):
                await store.announced.wait()
        await self.agree()

    async def agree(self) -> None:
        """All running nodes end with the same state, byte for byte."""
        await self.until(lambda: len({store.state.to_bytes() for store in self.running}) == 1)

    async def leader(self) -> Node:
        """The node that leads the metadata."""

        def leading() -> list[Node]:
            return [node for node in self.nodes.values() if node.store and node.store.raft.is_leader]

        await self.until(lambda: len(leading()) == 1)
        return leading()[0]

    def topic(self, name: str, leader: int = 1) -> CreateTopic:
        return topic(name, self.nodes[leader].member)

    def seal(self, uid: int, segment: int, end: int, by: int, then: int) -> SealSegment:
        proposer = self.nodes[by]
        return seal(
            uid, segment, end, by=proposer.member, starts=proposer.starts, then=self.nodes[then].member
        )


def topic(name: str, member: int) -> CreateTopic:
    return CreateTopic(f"default/{name}", TopicSettings(), member, [member], 1)


# A node alone.


def alone(loop: VirtualLoop, *, snapshot_every: int = 10_000) -> Node:
    node = Cluster(loop).make(1)
    node.snapshot_every = snapshot_every
    return node


async def run_alone(node: Node) -> ReplicatedMetadata:
    """Start it, as a founder is started every time; returns when it may lead."""
    await node.start(found=True)
    assert node.store is not None
    async with asyncio.timeout(60):
        await node.store.announced.wait()
    return node.store


async def create(node: Node, *numbers: int) -> None:
    assert node.store is not None
    for number in numbers:
        outcome = await node.store.propose(topic(f"t{number}", node.member))
        assert outcome.result is Result.CREATED


def names(store: ReplicatedMetadata) -> list[str]:
    return [name.removeprefix("default/") for name in store.state.topics]


def numbered(count: int) -> list[str]:
    return [f"t{number}" for number in range(count)]
