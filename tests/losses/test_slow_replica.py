"""A replica is up again and has all that was acknowledged, and takes three seconds to say so (F6)."""

from __future__ import annotations

import asyncio

import pytest

from ister.errors import BadRequest
from ister.protocol.messages import Kind
from ister.protocol.peer import AdminRequest
from ister.protocol.replication import Fence, FenceAnswer
from ister.testing.cluster import World, WorldNode, run_story
from tests.losses.stories import waiting
from tests.losses.test_several_replicas import SETTINGS, left_behind


def slow(node: WorldNode, seconds: float) -> None:
    copies = node.broker.replication.copies
    fence = copies.fence

    async def slowly(request: Fence) -> FenceAnswer:
        await asyncio.sleep(
            seconds
        )  # a long log, a slow disk, or metadata that is behind; a recovery waits for 5
        return await fence(request)

    copies.fence = slowly  # type: ignore[method-assign]


@pytest.mark.parametrize("seconds", [0, 3])
def test_f6_what_a_replica_that_is_up_has_is_not_given_up_because_it_is_slow(seconds: float) -> None:
    async def story(world: World) -> None:
        found = await left_behind(world)  # 0 to 9 acknowledged by two that are down, the third has 0 to 3
        asked, other = found.spare[0], found.ahead[1]
        await asyncio.sleep(5)
        if not asked.broker.metadata.raft.is_leader:
            await asked.broker.metadata.members.administer(AdminRequest(Kind.TRANSFER_LEADER, asked.node_id))
        async with world.connect(asked.node_id) as log:
            shown = await waiting(log)
            await other.start()
            slow(other, seconds)
            await asyncio.sleep(2)
            assert asked.broker.metadata.is_alive(other.member)
            with pytest.raises(BadRequest, match="nothing is given up"):
                await log.accept_loss(shown, node_stopped=True)

    run_story(story, **SETTINGS)
