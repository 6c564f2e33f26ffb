"""A disk that hangs says nothing: its node is there, and answers, and nothing becomes durable on it."""

from __future__ import annotations

import asyncio

from ister.testing.cluster import World, WorldNode, run_story
from tests.replication.test_three_replicas import agree, numbers

QUORUM_TIMEOUT_SECONDS = 10
STAND_IN_SECONDS = 10
"""Three times `failover_after_ms` for each replica whose turn is before, and what the rest takes."""


def hang_disk(node: WorldNode) -> None:
    node.disk.slow(1_000_000)
    node.broker.commits._recent_sync = 1.0  # what is written takes a thread, as it does where disks are slow


async def leader_with_a_hung_disk(world: World) -> tuple[WorldNode, list[WorldNode]]:
    """It does not lead the metadata; and the others."""
    async with world.connect() as log:
        await log.append("t", numbers(1))
    await agree(world, "t", 1)
    leader = world.leader_of("t")
    others = [node for node in world.up if node is not leader]
    if world.metadata_leader() is leader:
        async with world.connect(others[0].node_id) as log:
            await log.transfer_leader(others[0].node_id)
        await world.settle()
    hang_disk(leader)
    return leader, others


def test_others_stand_in_for_a_leader_whose_disk_hangs() -> None:
    """It gives its segment up (H4), begins a recovery, and hears of nothing more: what it proposes is
    committed, and not applied here. Proposing that again, each time under another number, kept everybody else
    from it."""

    async def story(world: World) -> tuple[float, set[int]]:
        leader, others = await leader_with_a_hung_disk(world)
        segment, began = others[0].topic("t").state.open_segment, world.loop.time()
        recoveries: set[int] = set()
        async with asyncio.timeout(90), world.connect(*(node.node_id for node in others)) as log:
            appending = asyncio.ensure_future(log.append("t", numbers(1, 1)))
            while not segment.is_sealed:
                recoveries.add(segment.recovery)
                await asyncio.sleep(0.1)
            took_s = world.loop.time() - began
            await appending
            assert [record.value async for record in log.read("t")] == numbers(2)
        assert world.leader_of("t") is not leader
        return took_s, recoveries - {0}

    took_s, recoveries = run_story(story, replicas=3)
    assert took_s < QUORUM_TIMEOUT_SECONDS + STAND_IN_SECONDS
    assert len(recoveries) <= 2, "one by the leader, and one by who stood in for it"
