"""A cluster in miniature: one log of metadata commands, nodes that apply it, and links that can be cut.

Each node has its own copy of the state and applies commands a little later than the others, as nodes do.
Records are in one place that every node can read; what is tested here is who hands them out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from ister.broker.text.get_service import GetService, Taken
from ister.broker.text.put_service import PutService
from ister.broker.text.service import TextService
from ister.errors import ConnectionFailed, IsterError, RequestTimeout, UnknownTopic
from ister.metadata.commands import Command, CreateTopic, Outcome, UpsertNode
from ister.metadata.nodes import NodeState
from ister.metadata.state import ClusterState
from ister.metadata.store import Watcher
from ister.protocol.messages import TopicSettings
from ister.protocol.peer import member_of
from ister.raft import Membership, RaftStatus, Role
from ister.testing import SimProcess

PROPOSE_SECONDS = 2.0
PEER_SECONDS = 1.0


def disk_of(number: int) -> str:
    return f"{number:016x}"


def member(number: int) -> int:
    return member_of(number, disk_of(number))


class FakeMetadata:
    def __init__(self, node: FakeNode) -> None:
        self._node = node
        self.state = ClusterState()
        self._watchers: list[Watcher] = []
        self._applied = asyncio.Condition()

    def watch(self, watcher: Watcher) -> None:
        self._watchers.append(watcher)

    async def propose(self, command: Command) -> Outcome:
        cluster = self._node.cluster
        try:
            async with asyncio.timeout(PROPOSE_SECONDS):
                await cluster.reachable(self._node.number)
                await cluster.pause()
                index = cluster.commit(command)
                async with self._applied:
                    await self._applied.wait_for(lambda: self.state.applied_index >= index)
                return cluster.outcomes[index]
        except TimeoutError as error:
            raise RequestTimeout("no majority was found in time") from error

    async def read_index(self, timeout: float) -> None:
        """All that was committed is applied at once here, unless the node is cut off."""
        try:
            async with asyncio.timeout(timeout):
                await self._node.cluster.reachable(self._node.number)
        except TimeoutError as error:
            raise RequestTimeout("no metadata leader could be asked") from error

    def install(self, snapshot: bytes) -> None:
        """A snapshot came in place of commands: no watcher hears of what is in it."""
        self.state = ClusterState.from_bytes(snapshot)

    async def follow(self) -> None:
        """Apply what is committed, in order, a little later; nothing while cut off from the others."""
        cluster = self._node.cluster
        while True:
            await cluster.committed_beyond(self.state.applied_index)
            await cluster.pause()
            await cluster.reachable(self._node.number)
            async with self._applied:
                index = self.state.applied_index + 1
                if index > len(cluster.log):
                    continue
                command = cluster.log[index - 1]
                outcome = self.state.apply(index, command)
                cluster.outcomes[index] = outcome
                for watcher in self._watchers:
                    watcher(command, outcome)
                self._applied.notify_all()


class FakeNode:
    """A `TextNode`, in one life of it."""

    def __init__(self, cluster: FakeCluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.member = member(number)
        self.metadata: Any = FakeMetadata(self)
        self.gets = GetService(self)
        self.text = TextService(self, self.gets, PutService(self))
        self.read_faults: dict[int, IsterError] = {}
        self.is_reading = asyncio.Event()
        self._reading = asyncio.Event()
        self._reading.set()

    async def run(self) -> None:
        self.gets.start()
        await self.metadata.follow()

    def is_alive(self, other: int) -> bool:
        number = next((n for n in self.cluster.nodes if member(n) == other), 0)
        return number in self.cluster.nodes and not self.cluster.is_cut(self.number, number)

    def hold_reads(self, *, hold: bool) -> None:
        """Reads that begin from now on wait; `is_reading` tells of the first."""
        self.is_reading.clear()
        self._reading.clear() if hold else self._reading.set()

    async def read_one(self, topic: str, offset: int) -> tuple[int, bytes] | None:
        self.is_reading.set()
        await self._reading.wait()
        await self.cluster.pause()
        if offset in self.read_faults:
            raise self.read_faults[offset].again()
        found = self.metadata.state.topics.get(topic)
        if found is None:
            raise UnknownTopic(f"there is no topic {topic}")
        records = self.cluster.records.get(found.uid, {})
        return next(((at, records[at]) for at in sorted(records) if at >= offset), None)

    async def ensure_topic(self, topic: str) -> None:
        await self.metadata.propose(CreateTopic(topic, TopicSettings(), self.member, [self.member], 1))

    async def append_one(self, topic: str, value: bytes) -> int:
        if topic not in self.metadata.state.topics:
            await self.ensure_topic(topic)
        found = self.metadata.state.topics[topic]
        await self.cluster.pause()
        records = self.cluster.records.setdefault(found.uid, {})
        offset = max(records, default=-1) + 1
        records[offset] = value
        return offset

    def raft_status(self) -> RaftStatus:
        applied, membership = len(self.cluster.log), Membership((self.member,), ())
        return RaftStatus(
            self.member, Role.LEADER, 1, self.member, applied, applied, applied, 1, 0, membership, 0, ()
        )

    def raft_nodes(self) -> Mapping[int, NodeState]:
        return self.metadata.state.nodes

    async def peer_request(
        self, member: int, kind: int, header: bytes, payload: bytes, timeout: float = PEER_SECONDS
    ) -> bytes:
        return await self.cluster.deliver(self.number, member, kind, header, payload)

    # What a client of this node does.

    async def get(self, topic: str) -> bytes | None:
        """GET, and the reply reaches the client."""
        taken = await self.take(topic)
        if taken is None:
            return None
        self.gets.done(taken)
        return taken.value

    async def take(self, topic: str) -> Taken | None:
        return await self.text.take(topic)


class FakeCluster:
    def __init__(self, random: Random, *, delay: float = 0.01) -> None:
        self.random = random
        self.delay = delay
        self.log: list[Command] = []
        self.outcomes: dict[int, Outcome] = {}
        self.records: dict[int, dict[int, bytes]] = {}
        self.nodes: dict[int, FakeNode] = {}
        self.processes: dict[int, SimProcess] = {}
        self._majority: dict[int, asyncio.Event] = {}
        """By node: whether it has a way to the metadata's majority."""
        self.cut: set[tuple[int, int]] = set()
        """Links that carry nothing, both ways."""
        self.lose_answers: Callable[[int, int], bool] = lambda sender, kind: False
        self._grown = asyncio.Condition()

    async def start(self, number: int) -> FakeNode:
        node = self.nodes[number] = FakeNode(self, number)
        loop = asyncio.get_running_loop()
        process = self.processes[number] = SimProcess(loop, f"node-{number}")
        process.start(node.run())
        name = f"node-{number}"
        await node.metadata.propose(
            UpsertNode(number, disk_of(number), len(self.log) + 1, name, 6001, name, 9091)
        )
        return node

    def kill(self, number: int) -> None:
        del self.nodes[number]
        self.processes.pop(number).kill()

    async def stop(self, number: int) -> None:
        await self.nodes[number].gets.stop()
        self.kill(number)

    def partition(self, number: int) -> None:
        """Cut a node off from everything but its clients."""
        self.cut_off(number)
        self.cut |= {(number, other) for other in range(1, 10) if other != number}

    def cut_off(self, number: int) -> None:
        """Only the metadata's majority is out of this node's reach."""
        self._majority.setdefault(number, asyncio.Event()).clear()

    async def reachable(self, number: int) -> None:
        if number in self._majority:
            await self._majority[number].wait()

    def heal(self) -> None:
        for event in self._majority.values():
            event.set()
        self.cut.clear()

    def is_cut(self, one: int, other: int) -> bool:
        return (one, other) in self.cut or (other, one) in self.cut

    async def pause(self) -> None:
        await asyncio.sleep(self.random.uniform(0, self.delay))

    # The metadata's log.

    def commit(self, command: Command) -> int:
        self.log.append(command)
        asyncio.get_running_loop().create_task(self._tell())
        return len(self.log)

    async def _tell(self) -> None:
        async with self._grown:
            self._grown.notify_all()

    async def committed_beyond(self, index: int) -> None:
        async with self._grown:
            await self._grown.wait_for(lambda: len(self.log) > index)

    # Links.

    async def deliver(self, sender: int, other: int, kind: int, header: bytes, payload: bytes) -> bytes:
        try:
            async with asyncio.timeout(PEER_SECONDS):
                await self.pause()
                target = next((node for node in self.nodes.values() if node.member == other), None)
                if target is None or self.is_cut(sender, target.number):
                    raise ConnectionFailed(f"member {other} can't be reached")
                serving = self.processes[target.number].start(target.text.serve_peer(kind, header, payload))
                serving.add_done_callback(_look_at)
                answer = await asyncio.shield(serving)  # whoever asks may leave; the other end goes on
                await self.pause()
                if self.is_cut(sender, target.number) or self.lose_answers(sender, kind):
                    raise ConnectionFailed("the link broke before the answer came")
                return answer
        except TimeoutError as error:
            raise RequestTimeout(f"member {other} did not answer in time") from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise ConnectionFailed(f"member {other} died") from None


def _look_at(serving: asyncio.Task[bytes]) -> None:
    if not serving.cancelled():
        serving.exception()  # for whoever asked, if it is still there
