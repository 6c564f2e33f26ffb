"""When nothing is given up: a node that answers, an outdated answer, a minority, one command twice (F6)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ister.errors import BadRequest, IsterError
from ister.metadata.state import LostRange
from ister.testing.cluster import World, run_story
from tests.losses.stories import (
    killed_leader,
    numbers,
    others,
    values_from,
    waiting,
)


def test_a_leader_that_is_alive_is_not_given_up() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
            leader = world.leader_of("t").node_id
            found = await log.recovery_of("t")
            assert (found.state, found.why, found.choices) == ("open", "", [])
            assert found.refusal.startswith(f"node {leader} leads default/t:1, and it answers")
            with pytest.raises(BadRequest, match=r"nothing is given up: node .* it answers"):
                await log.accept_loss(found, node_stopped=True)
            assert await values_from(log, 0) == numbers(3)

    run_story(story)


def test_a_leader_that_only_another_node_hears_is_not_given_up() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
        leader = world.leader_of("t")
        asked, other = (node for node in world.up if node is not leader)
        world.network.partition(asked.host, leader.host)
        await asyncio.sleep(5)
        async with world.connect(asked.node_id) as log:
            found = await log.recovery_of("t")
            assert f"it answers node {other.node_id}" in found.refusal or "it answers:" in found.refusal
            with pytest.raises(BadRequest):
                await log.accept_loss(found, node_stopped=True)

    run_story(story)


def test_a_leader_that_came_back_since_the_operator_looked_is_not_given_up() -> None:
    async def story(world: World) -> None:
        leader = await killed_leader(world, 3)
        async with others(world, leader) as log:
            shown = await waiting(log)
            await leader.start()
            await world.settle()
            with pytest.raises(BadRequest, match="it answers"):
                await log.accept_loss(shown, node_stopped=True)
            async with world.connect() as client:
                await client.append("t", numbers(1, 3))
            leader.kill()
            await waiting(log)
            with pytest.raises(BadRequest, match="was started again meanwhile"):
                await log.accept_loss(shown, node_stopped=True)
            await leader.start()
            assert await values_from(log, 0) == numbers(4)

    run_story(story)


def test_the_operator_has_to_state_that_the_node_is_stopped() -> None:
    async def story(world: World) -> None:
        leader = await killed_leader(world, 3)
        async with others(world, leader) as log:
            with pytest.raises(BadRequest, match=f"nobody states that node {leader.node_id}"):
                await log.accept_loss(await waiting(log), node_stopped=False)
            assert (await log.recovery_of("t")).state == "waits"

    run_story(story)


def test_the_same_command_again_is_the_same_loss_and_no_other() -> None:
    async def story(world: World) -> None:
        leader = await killed_leader(world, 3)
        async with others(world, leader) as log:
            shown = await waiting(log)
            both = await asyncio.gather(
                log.accept_loss(shown, node_stopped=True), log.accept_loss(shown, node_stopped=True)
            )
            await log.append("t", [b"after"])
            late = await log.accept_loss(shown, node_stopped=True)
            assert {(one.accepted, one.lost_from, one.lost_end) for one in (*both, late)} == {
                (True, 0, late.lost_end)
            }
            unknown = msgspec.structs.replace(shown, segment_uid=3)
            with pytest.raises(BadRequest, match="is not open any more"):
                await log.accept_loss(unknown, node_stopped=True)
            assert await values_from(log, late.lost_end) == [b"after"]
        for node in world.up:
            assert len(node.topic("t").state.segments) == 2
            (lost,) = node.topic("t").state.lost
            assert isinstance(lost, LostRange) and lost.end_offset == late.lost_end

    run_story(story)


def test_nothing_is_given_up_by_a_minority() -> None:
    async def story(world: World) -> None:
        leader = await killed_leader(world, 3)
        async with others(world, leader) as log:
            shown = await waiting(log)
        alone, gone = world.up
        gone.kill()
        await asyncio.sleep(3)
        async with world.connect(alone.node_id, retry_deadline_s=10) as log:
            found = await log.recovery_of("t")
            assert "nothing can be changed now" in found.refusal
            with pytest.raises(IsterError):
                await log.accept_loss(shown, node_stopped=True)
        assert alone.topic("t").state.lost == []

    run_story(story)
