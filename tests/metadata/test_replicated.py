"""Metadata that many nodes share: any of them proposes, nodes come and go, disks are told apart."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest

from ister.errors import BadRequest, IsterError, NotLeader, RequestTimeout
from ister.metadata.commands import CreateTopic, RemoveNode, Result, SealSegment
from ister.metadata.replicated import ReplicatedMetadata, ask_to_join
from ister.peers import Peers
from ister.protocol.messages import TopicSettings
from ister.protocol.peer import NodeAddress, PeerHello, node_of
from ister.testing import SimDisk, SimNetwork, SimProcess, VirtualLoop, simulate


@dataclass
class Node:
    number: int
    loop: VirtualLoop
    network: SimNetwork
    disk: SimDisk
    disk_id: str
    starts: int = 0
    store: ReplicatedMetadata | None = None
    process: SimProcess | None = None
    fatal: list[IsterError] = field(default_factory=list)

    @property
    def address(self) -> NodeAddress:
        name = f"node-{self.number}"
        return NodeAddress(self.number, self.disk_id, name, 6001, name, 9091)

    async def start(self, *, found: bool = False, join: int | None = None) -> None:
        self.starts += 1
        self.process = SimProcess(self.loop, f"node-{self.number}")
        await self.process.start(self._run(found, join))

    async def _run(self, found: bool, join: int | None) -> None:
        host = self.network.host(f"node-{self.number}")
        known = None
        if join is not None:
            asking = Peers(
                host,
                lambda: PeerHello("", self.address),
                on_raft=lambda sender, data: None,
                serve=_nothing,
                accepts=lambda hello: None,
            )
            answer = await ask_to_join(asking, f"node-{join}", 6001, self.address, self.starts, timeout=5)
            known = answer.nodes
        self.store = ReplicatedMetadata(
            self.disk.mount(),
            host,
            self.loop.fork(f"raft-{self.number}-{self.starts}"),
            myself=self.address,
            starts=self.starts,
            cluster_id="c1",
            on_fatal=self.fatal.append,
            snapshot_every=25,
        )
        await self.store.open(found=found, known=known)

    def kill(self, *, power: bool = False) -> None:
        assert self.process is not None
        self.disk.crash() if power else self.disk.kill()
        self.network.kill(f"node-{self.number}")
        self.process.kill()
        self.store = None

    def wipe(self) -> None:
        self.disk = SimDisk(self.loop.fork(f"wiped-{self.number}-{self.starts}"))
        self.disk_id = f"{int(self.disk_id, 16) + 0x1000:016x}"


async def _nothing(node: NodeAddress, kind: int, header: bytes, payload: bytes) -> bytes:
    raise BadRequest("nothing is served here")


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
            await self.make(number).start(join=1)
        await self.voters({1, 2, 3})

    async def voters(self, wanted: set[int]) -> None:
        """Wait until every running node sees exactly these voters and no learner."""
        async with asyncio.timeout(60):
            while True:
                views = [node.store.status().membership for node in self.nodes.values() if node.store]
                if all({node_of(m) for m in v.voters} == wanted and not v.learners for v in views):
                    return
                await asyncio.sleep(0.2)

    def store(self, number: int) -> ReplicatedMetadata:
        store = self.nodes[number].store
        assert store is not None
        return store

    async def agree(self) -> None:
        """All running nodes end with the same state, byte for byte."""
        async with asyncio.timeout(60):
            while True:
                states = {node.store.state.to_bytes() for node in self.nodes.values() if node.store}
                if len(states) == 1:
                    return
                await asyncio.sleep(0.2)


def topic(name: str, leader: int = 1) -> CreateTopic:
    return CreateTopic(f"default/{name}", TopicSettings(), leader, [leader], 1)


def test_three_nodes_join_are_promoted_and_any_of_them_proposes() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        for number in (1, 2, 3):
            outcome = await cluster.store(number).propose(topic(f"t{number}"))
            assert outcome.result is Result.CREATED
            assert f"default/t{number}" in cluster.store(number).state.topics, (
                "applied here before the answer"
            )
        await cluster.agree()
        assert cluster.store(1).state.cluster_id == "c1"

    simulate(main, seed=1, limit_seconds=300)


def test_two_first_writes_racing_create_one_topic() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        outcomes = await asyncio.gather(*(cluster.store(n).propose(topic("same", n)) for n in (1, 2, 3)))
        assert sorted(o.result for o in outcomes) == [Result.CREATED, Result.EXISTS, Result.EXISTS]
        assert len({o.topic_uid for o in outcomes}) == 1

    simulate(main, seed=2, limit_seconds=300)


def test_w3_two_proposals_of_the_same_rollover_seal_once() -> None:
    """W3: rollover is no compare-and-set; each proposal seals a later segment with a wrong count."""

    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        uid = (await cluster.store(1).propose(topic("t"))).topic_uid
        seals = [SealSegment(uid, 1, end, 0, n, [n], [], 0, n, 0) for n, end in ((1, 10), (2, 12), (3, 11))]
        outcomes = await asyncio.gather(
            *(cluster.store(n).propose(s) for n, s in zip((1, 2, 3), seals, strict=True))
        )
        assert sorted(o.result for o in outcomes) == [Result.APPLIED, Result.STALE, Result.STALE]
        assert len(cluster.store(1).state.topics["default/t"].segments) == 2

    simulate(main, seed=3, limit_seconds=300)


@pytest.mark.parametrize("seed", range(12))
def test_what_was_answered_survives_kills_of_any_node_at_any_time(seed: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        rng = random.Random(seed)
        answered: list[str] = []
        for number in range(60):
            alive = [node for node in cluster.nodes.values() if node.store]
            command = topic(f"t{number}")
            await rng.choice(alive).store.propose(command, timeout=30)  # type: ignore[union-attr]
            answered.append(command.name)
            if rng.random() < 0.15:
                victim = rng.choice(list(cluster.nodes.values()))
                victim.kill(power=rng.random() < 0.5)
                await asyncio.sleep(rng.random())
                await victim.start()
        await cluster.agree()
        assert set(answered) == set(cluster.store(1).state.topics)
        assert not any(node.fatal for node in cluster.nodes.values())

    simulate(main, seed=seed, limit_seconds=1200)


def test_a_full_restart_twice_in_a_row_finds_everything_and_everybody() -> None:
    """W8; and nobody but the addresses file knows where the others are."""

    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        for number in range(40):  # more than the snapshot threshold: W9, D17
            await cluster.store(1 + number % 3).propose(topic(f"t{number}"))
        for _ in range(2):
            for node in cluster.nodes.values():
                node.kill(power=True)
            for node in cluster.nodes.values():
                await node.start()
            await cluster.store(2).propose(topic("after"), timeout=30)
        await cluster.agree()
        assert len(cluster.store(3).state.topics) == 41

    simulate(main, seed=5, limit_seconds=600)


def test_i2_a_wiped_node_comes_back_as_another_member_and_as_a_learner_first() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        await cluster.store(1).propose(topic("t"))
        wiped = cluster.nodes[3]
        old = wiped.address.member
        wiped.kill()
        wiped.wipe()
        await asyncio.sleep(3)
        await wiped.start(join=1)
        await cluster.voters({1, 2, 3})
        members = cluster.store(1).status().membership.voters
        assert wiped.address.member in members and old not in members
        await cluster.agree()

    simulate(main, seed=6, limit_seconds=600)


def test_a_second_node_with_an_id_that_is_alive_is_refused() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        leader = next(n for n in cluster.nodes.values() if n.store and n.store.raft.is_leader)
        double = Node(2, loop, cluster.network, SimDisk(loop.fork("x")), "00000000000000ff")
        with pytest.raises(BadRequest, match="is alive"):
            await double.start(join=leader.number)

    simulate(main, seed=7, limit_seconds=300)


def test_i2_a_copied_directory_is_found_out_by_its_start_number() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        node = cluster.nodes[2]
        node.kill()
        await node.start()
        await cluster.voters({1, 2, 3})
        await asyncio.sleep(1)
        node.kill()
        node.starts = 0  # an old copy of its directory
        await node.start()
        async with asyncio.timeout(30):
            while not node.fatal:  # noqa: ASYNC110 (what is waited for is a callback's)
                await asyncio.sleep(0.1)
        assert "copy" in node.fatal[0].message

    simulate(main, seed=8, limit_seconds=300)


def test_i1_a_node_of_another_cluster_is_refused() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        stranger = Peers(
            cluster.network.host("stranger"),
            lambda: PeerHello("c2", NodeAddress(9, "00", "stranger", 1, "stranger", 1)),
            on_raft=lambda sender, data: None,
            serve=_nothing,
            accepts=lambda hello: None,
        )
        with pytest.raises(BadRequest, match="cluster c2 called, this is cluster c1"):
            await stranger.ask("node-1", 6001, 4, b"", timeout=5)

    simulate(main, seed=9, limit_seconds=300)


def test_a_minority_refuses_changes_with_a_reason() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        cluster.network.isolate("node-3")
        await asyncio.sleep(3)
        with pytest.raises((RequestTimeout, NotLeader), match="metadata"):
            await cluster.store(3).propose(topic("t"), timeout=4)
        assert (await cluster.store(1).propose(topic("t"))).result is Result.CREATED
        cluster.network.heal()
        await cluster.agree()

    simulate(main, seed=10, limit_seconds=300)


def test_r2_a_node_that_holds_something_cannot_be_removed_and_one_that_does_not_leaves() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        await cluster.store(1).propose(topic("t", leader=3))
        outcome = await cluster.store(1).propose(RemoveNode(3))
        assert (outcome.result, "the open default/t:1" in outcome.detail) == (Result.REFUSED, True)
        assert (await cluster.store(1).propose(RemoveNode(2))).result is Result.APPLIED
        cluster.nodes[2].kill()
        await cluster.voters({1, 3})

    simulate(main, seed=11, limit_seconds=300)
