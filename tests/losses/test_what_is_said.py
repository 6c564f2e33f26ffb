"""What people are told to do where disks are gone: what can be done, and helps."""

from __future__ import annotations

import asyncio
import errno

import pytest

from ister.errors import BadRequest
from ister.testing.cluster import World, run_story
from tests.losses.stories import killed_leader, others, waiting
from tests.losses.test_several_replicas import SETTINGS, left_behind


def test_nobody_is_told_to_start_a_disk_that_left_the_cluster() -> None:
    async def story(world: World) -> None:
        found = await left_behind(world)
        for one in found.ahead:
            one.wipe()
            await one.start(join=f"{found.spare[0].host}:6001", replace_disk=True)
        await asyncio.sleep(30)
        async with world.connect(*(one.node_id for one in found.spare)) as log:
            said = {one.code: one for one in (await log.cluster()).problems}
            assert "on disks that left the cluster" in said["topics-wait"].what
            assert "start node" not in said["topics-wait"].action, said["topics-wait"].action

    run_story(story, **SETTINGS)


def test_who_has_said_disk_gone_is_not_told_to_say_it() -> None:
    async def story(world: World) -> None:
        leader = await killed_leader(world, 3)
        async with others(world, leader) as log:
            await waiting(log)
            await asyncio.sleep(5)
            with pytest.raises(BadRequest, match="holds the open default/t:1") as caught:
                await log.remove_node(leader.node_id, disk_gone=True)
            assert "--disk-gone" not in caught.value.hint, caught.value.hint
            assert "ister topic recover" in caught.value.hint, caught.value.hint

    run_story(story)


def test_a_replica_whose_disk_fails_is_not_said_to_have_left() -> None:
    async def story(world: World) -> None:
        found = await left_behind(world)
        leader, other = found.ahead
        leader.wipe()
        await leader.start(join=f"{found.spare[0].host}:6001", replace_disk=True)
        await other.start()
        for op in ("read", "write", "open"):
            other.disk.faults.add(op, prefix="segments/", error=errno.EIO)
        async with world.connect(*(one.node_id for one in found.spare)) as log:
            await asyncio.sleep(30)
            shown = await log.recovery_of("t")
            assert [one.state for one in shown.replicas] == ["gone", "failed", "alive"]
            assert not any(choice.startswith("the disk left the cluster") for choice in shown.choices), (
                shown.choices
            )

    run_story(story, **SETTINGS)
