"""The clients of a cluster. They are those of the single broker's simulation, bootstrapped at several nodes
or pinned to one, and some that only a cluster can have: writers that change the node in the middle of a
session, and a topic that is made, deleted and made again through whichever node comes."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from random import Random

import ister
from ister.client.routing import Routes
from ister.errors import BadRequest, IsterError, NotLeader, OffsetOutOfRange, RequestTimeout
from ister.testing import SimClock, SimNetwork, VirtualLoop
from ister.testing.history import History
from tests.cluster.node import CLIENT_PORT, host_of
from tests.simulation import load as single
from tests.simulation.load import append_batches, churn, follow, produce

__all__ = ["ClusterClients", "administer", "append_batches", "churn", "follow", "produce", "wander"]

HOSTS = ("client-1", "client-2", "client-3")


class OneNode(Routes):
    """The way of a client that knows one node and asks it for everything: all the rest is forwarded."""

    def learned(self, key: str, node_id: int) -> None:
        pass

    def _ask_for_nodes(self) -> None:
        pass


class ClusterClients(single.Clients):
    """What the clients of one run share."""

    def __init__(
        self, loop: VirtualLoop, network: SimNetwork, history: History, node_numbers: list[int]
    ) -> None:
        super().__init__(loop, network, history)
        self.pause_s = 2.0
        self.numbers = node_numbers
        """Of the nodes that clients are told of: those that were there from the beginning."""
        self.trimmed: set[str] = set()
        """Topics that lose their oldest records by retention."""
        self.lists_are_whole = True
        """Whether every node has heard of the topics, be it long ago: one on a new disk may not have yet."""

    def bootstrap(self, first: int) -> str:
        """All nodes, from one on: each client has its own first choice."""
        turned = self.numbers[first % len(self.numbers) :] + self.numbers[: first % len(self.numbers)]
        return ",".join(f"{host_of(number)}:{CLIENT_PORT}" for number in turned)

    def connect(self, name: str) -> ister.Log:
        """`client-1.a` is told of all nodes, `client-1.a@2` only of node 2."""
        self._connects += 1  # two clients never draw the same producer id
        network = self.network.host(name.partition(".")[0])
        clock = SimClock(self.loop, self.loop.fork(f"clock-{name}-{self._connects}"))
        _, _, pinned = name.partition("@")
        if pinned:
            routes = OneNode(
                f"{host_of(int(pinned))}:{CLIENT_PORT}", network, client=name, connect_timeout_s=2
            )
            return ister.Log(routes, clock, request_timeout_s=4, retry_deadline_s=40)
        return ister.connect(
            self.bootstrap(sum(name.encode())),
            network=network,
            clock=clock,
            request_timeout_s=4,
            connect_timeout_s=2,
            retry_deadline_s=40,
        )


async def wander(clients: ClusterClients, name: str, topics: list[str]) -> None:
    """One node after the other: append there, look at the end there, read a little there."""
    dice = clients.loop.fork(f"worker-{name}")
    while not clients.done.is_set():
        topic, number = dice.choice(topics), dice.choice(clients.numbers)
        try:
            async with clients.connect(f"{name}@{number}") as log:
                await _visit(clients, log, dice, name, topic)
        except IsterError as error:
            if not error.retriable:
                raise
        await asyncio.sleep(dice.expovariate(1 / 2))


async def _visit(clients: ClusterClients, log: ister.Log, dice: Random, name: str, topic: str) -> None:
    line, history = clients.lines[topic], clients.history
    before = history.operation_count
    values = [clients.value(name, dice) for _ in range(dice.choice((1, 2, 5)))]
    send = history.sending(f"{name}.{before}", line, values)
    await clients.told(send, log.append(topic, values))
    end = await log.offsets_at(topic, "latest")
    if send.offsets and end <= send.offsets[-1]:
        history.violated(f"{name} was told {send.offsets} in {line}, and then that it ends at {end}")
    start = max(0, end - dice.randrange(1, 30))
    read = history.reading(f"{name}.{before}", line, start)
    try:
        async with aclosing(log.read(topic, start=start, end=end, max_bytes=4096).frames()) as frames:
            async for frame in frames:
                read.frames.append(clients.seen(frame))
    except OffsetOutOfRange as error:
        if topic not in clients.trimmed:
            history.violated(
                f"{name} cannot read {line} at {start}, and was told that it ends at {end}: {error}"
            )


async def administer(clients: ClusterClients, name: str, topics: list[str]) -> None:
    """Looks at everything through any node, alters settings, lets another node lead the metadata."""

    async def act(log: ister.Log, dice: Random) -> None:
        topic = dice.choice(topics)
        match dice.randrange(7):
            case 0:
                listed = {found.topic for found in await log.list_topics()}
                missing = {f"default/{known}" for known in clients.lines} - listed
                if missing and clients.lists_are_whole:
                    clients.history.violated(f"{name}: {sorted(missing)} are missing in a list of topics")
            case 1:
                await log.describe_topic(topic)
            case 2:
                await log.alter_topic(topic, segment_records=dice.choice((4, 8, 15)))
            case 3:
                await log.cluster()
            case 4:
                await log.offsets_at(topic, dice.randrange(1_704_067_200_000_000, 1_704_067_300_000_000))
            case 5:
                await log.transfer_leader(dice.choice((0, *clients.numbers)))
            case 6:
                await log.stats()

    dice = clients.loop.fork(f"worker-{name}")
    while not clients.done.is_set():
        try:
            async with clients.connect(f"{name}@{dice.choice(clients.numbers)}") as log:
                await act(log, dice)
        except (BadRequest, NotLeader, RequestTimeout):
            pass  # no voter to hand over to, or no majority: that is an answer
        except IsterError as error:
            if not error.retriable:
                raise
        await asyncio.sleep(dice.uniform(0.5, 3))
