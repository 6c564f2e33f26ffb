"""An operator is told that a node was removed, and it is there, on another disk."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest

from ister.errors import BadRequest
from ister.metadata.commands import RemoveNode
from ister.testing.cluster import PEER_PORT, World, run_story


def test_a_node_that_came_in_on_another_disk_meanwhile_is_not_said_to_be_removed() -> None:
    async def story(world: World) -> None:
        leader = world.metadata_leader()
        away = next(node for node in world.up if node is not leader)
        away.kill(power=True)
        away.wipe()
        await asyncio.sleep(5)
        metadata = leader.broker.metadata
        propose = metadata.propose

        async def late(command: Any, *more: Any) -> Any:
            if isinstance(command, RemoveNode):  # on its way for long enough for the new disk to be let in
                with mock.patch.object(metadata, "propose", propose):
                    await away.start(join=f"{leader.host}:{PEER_PORT}")
            return await propose(command, *more)

        with mock.patch.object(metadata, "propose", late), pytest.raises(BadRequest):
            said = await metadata.members._remove(away.node_id, True)
            assert away.node_id in metadata.state.nodes
            pytest.fail(f"the operator was told {said}")

    run_story(story)
