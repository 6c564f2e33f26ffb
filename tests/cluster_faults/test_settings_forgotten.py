"""An acknowledged change of a setting is undone by a change of another one."""

from __future__ import annotations

import asyncio

from ister.testing.cluster import World, run_story


def test_two_changes_of_different_settings_both_hold() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as one, world.connect(2) as two:
            await one.create_topic("t")
            await world.settle()
            await asyncio.gather(
                one.alter_topic("t", retention_bytes=123456), two.alter_topic("t", segment_records=77)
            )
            await world.settle()
            settings = world.nodes[1].topic("t").state.settings
            assert (settings.retention_bytes, settings.segment_records) == (123456, 77)

    run_story(story)


def test_a_change_through_a_node_that_is_behind_does_not_undo_an_earlier_one() -> None:
    async def story(world: World) -> None:
        leader = world.metadata_leader()
        late = next(node for node in world.up if node is not leader)
        third = next(node for node in world.up if node not in (leader, late))
        async with world.connect(third.node_id) as one, world.connect(late.node_id) as two:
            await one.create_topic("t")
            await two.describe_topic("t")
            await world.settle()
            world.network.partition(leader.host, late.host)
            await one.alter_topic("t", retention_bytes=123456)  # acknowledged
            altering = asyncio.get_running_loop().create_task(two.alter_topic("t", segment_records=77))
            await asyncio.sleep(0.01)
            world.network.heal()
            await altering
            await world.settle()
            settings = world.nodes[1].topic("t").state.settings
            assert (settings.retention_bytes, settings.segment_records) == (123456, 77)

    run_story(story)
