"""What the stories of a loss share: a topic that waits for its node, and an operator who gives it up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import ister
from ister.errors import RecordsLost
from ister.protocol.recovery import TopicRecovery
from ister.testing.cluster import World, WorldNode


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


@asynccontextmanager
async def others(world: World, *gone: WorldNode) -> AsyncIterator[ister.Log]:
    """A client that was told of all nodes but these."""
    known = [node.node_id for node in world.nodes.values() if node not in gone]
    async with world.connect(*known) as log:
        yield log


async def settled_leader(world: World) -> WorldNode:
    """Who leads, once no handoff is under way any more."""
    await asyncio.sleep(1)
    return world.leader_of("t")


async def killed_leader(world: World, count: int, *, power: bool = False) -> WorldNode:
    """The only node of a topic of so many records, killed."""
    async with world.connect() as log:
        await log.append("t", numbers(count))
    leader = world.leader_of("t")
    leader.kill(power=power)
    return leader


async def waiting(log: ister.Log, topic: str = "t") -> TopicRecovery:
    """How it stands with a topic once nobody can help it but an operator."""
    async with asyncio.timeout(60):
        while True:
            found = await log.recovery_of(topic)
            if found.state == "waits" and not found.refusal:
                return found
            await asyncio.sleep(0.2)


async def give_up(log: ister.Log, topic: str = "t") -> TopicRecovery:
    found = await log.accept_loss(await waiting(log, topic), node_stopped=True)
    assert found.accepted
    return found


def cut_off(world: World, node: WorldNode) -> None:
    """From the other nodes; clients still reach it, and its process runs on."""
    for other in world.nodes.values():
        if other is not node:
            world.network.partition(node.host, other.host)


async def aside(node: WorldNode) -> list[str]:
    """The files of tails that this node has set aside, once it has had the time to."""
    await asyncio.sleep(5)
    disk = node.disk
    return [
        name
        for directory in disk.list("segments")
        for name in disk.list(f"segments/{directory}")
        if ".lost-" in name and name.endswith(".log")
    ]


async def up_to_the_loss(log: ister.Log, topic: str = "t") -> tuple[list[bytes | None], RecordsLost]:
    """What is read from the topic's start on, until the reader is told that the rest is lost."""
    seen: list[bytes | None] = []
    records = aiter(log.read(topic))
    while True:
        try:
            record = await anext(records)
        except RecordsLost as error:
            return seen, error
        seen.append(record.value)


async def values_from(log: ister.Log, offset: int, topic: str = "t") -> list[bytes | None]:
    """All records from an offset on, which follow each other without a gap."""
    records = [record async for record in log.read(topic, start=offset)]
    assert [record.offset for record in records] == list(range(offset, offset + len(records)))
    return [record.value for record in records]
