"""What the tests of moves have in common."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import ister
from ister.protocol.moves import MoveDescription
from ister.testing.cluster import World


async def ended(log: ister.Log, move: int) -> MoveDescription:
    async with asyncio.timeout(120):
        while True:
            (found,) = await log.moves(move=move)
            if found.is_over:
                return found
            await asyncio.sleep(0.05)


async def arrived(log: ister.Log, topic: str, node_id: int) -> MoveDescription:
    """Moved; what goes to the history may not be there yet."""
    found = await log.move_topic(topic, node_id)
    async with asyncio.timeout(120):
        while not found.arrived and not found.is_over:
            await asyncio.sleep(0.05)
            (found,) = await log.moves(move=found.move)
    assert (found.arrived, found.target) == (True, node_id), found
    return found


async def moved(log: ister.Log, topic: str, node_id: int) -> MoveDescription:
    found = await ended(log, (await log.move_topic(topic, node_id)).move)
    assert (found.stage, found.target) == ("done", node_id), found.detail
    return found


@asynccontextmanager
async def written(log: ister.Log, topic: str) -> AsyncIterator[list[int]]:
    """Somebody writes meanwhile, one record after the other; the offsets that were acknowledged."""
    offsets: list[int] = []

    async def write() -> None:
        while True:
            appended = await log.append(topic, [b"%d" % len(offsets)])
            offsets.append(appended.base_offset)

    writer = asyncio.create_task(write())
    try:
        yield offsets
        assert not writer.done(), "the writer met no error"
    finally:
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)


def a_node_other_than(world: World, topic: str) -> int:
    leader = world.leader_of(topic).node_id
    return next(node_id for node_id in world.nodes if node_id != leader)


def open_segments(world: World, topic: str) -> int:
    """How many segments of a topic some node would append to: of all nodes, by their own state."""
    return sum(node.topic(topic).led.segment is not None for node in world.up)
