"""A node that has copies leaves for good without a drain (R2); `tests/moves` has the way with one."""

from __future__ import annotations

import asyncio

import pytest

from ister.errors import BadRequest
from ister.testing.cluster import World, read_all, run_story
from tests.replication.repair_helpers import fill, is_healed, numbers, until


def test_a_node_that_is_stopped_can_be_removed_once_topics_go_on_without_it() -> None:
    async def story(world: World) -> None:
        await fill(world, 7)
        await until(lambda: is_healed(world))
        leaving = world.leader_of("t")
        rest = [node.node_id for node in world.up if node is not leaving]
        async with world.connect(*rest) as log:
            with pytest.raises(BadRequest, match=r"was not removed: .* holds the open default/t") as caught:
                await log.remove_node(leaving.node_id)
            assert f"`ister node drain {leaving.node_id}`" in caught.value.hint
            await leaving.stop()
            config = world.nodes[rest[0]].broker.config
            await asyncio.sleep(2 * config.replica_lost_ms / 1000)
            assert (await log.remove_node(leaving.node_id)).detail == "removed"
            await log.append("t", numbers(3, 7))
            assert await read_all(log, "t") == numbers(10)
            await until(lambda: is_healed(world, copies=2))

    run_story(story, replicas=3, segment_records=3)


def test_what_a_node_has_alone_can_be_copied_before_it_leaves() -> None:
    async def story(world: World) -> None:
        await fill(world, 2)
        leaving = world.leader_of("t")
        rest = [node.node_id for node in world.up if node is not leaving]
        async with world.connect(*rest) as log:
            with pytest.raises(BadRequest) as caught:
                await log.remove_node(leaving.node_id)
            assert f"`ister node drain {leaving.node_id}`" in caught.value.hint
            await log.alter_topic("t", replicas=2)
            await until(lambda: len(leaving.topic("t").state.segments) > 1 and is_healed(world, copies=2))
            await leaving.stop()
            await asyncio.sleep(2 * world.nodes[rest[0]].broker.config.replica_lost_ms / 1000)
            assert (await log.remove_node(leaving.node_id)).detail == "removed"
            await log.append("t", numbers(1, 2))
            assert await read_all(log, "t") == numbers(3)

    run_story(story, replicas=1)
