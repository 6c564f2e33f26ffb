"""A topic with one replica whose node is gone: it waits, or goes on when an operator accepts a loss (F6)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ister.broker.topic.sealing import HARD_CAP, MOST_RECORDS_IN_A_FRAME
from ister.errors import NodeUnreachable
from ister.testing.cluster import World, run_story
from tests.losses.stories import (
    aside,
    give_up,
    killed_leader,
    numbers,
    others,
    settled_leader,
    values_from,
    waiting,
)


def test_a_topic_whose_only_node_is_gone_waits_and_says_for_whom() -> None:
    async def story(world: World) -> None:
        leader = await killed_leader(world, 7, power=True)
        async with others(world, leader) as log:
            found = await waiting(log)
            assert (found.leader, found.silent, found.leader_starts) == (leader.node_id, [leader.node_id], 1)
            assert (found.base_offset, found.lost_from, found.recovery) == (0, 0, "")
            assert f"led by node {leader.node_id}, which does not answer" in found.why
            assert any(f"start node {leader.node_id} again" in choice for choice in found.choices)
            assert any("--accept-loss --node-stopped" in choice for choice in found.choices)
            await asyncio.sleep(20)
            assert (await log.recovery_of("t")).silent_ms >= 20_000
        for node in world.up:
            assert len(node.topic("t").state.segments) == 1, "nobody goes on by itself"

    run_story(story)


def test_f6_the_topic_goes_on_behind_all_that_may_have_been_given_out() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            for number in range(10):
                await log.append("t", numbers(1, number))
            leader = await settled_leader(world)
            base = leader.topic("t").state.open_segment.base_offset
            assert 0 < base <= 10
            leader.kill(power=True)
            leader.wipe()
        async with others(world, leader) as log:
            given_up = await give_up(log)
            assert (given_up.lost_from, given_up.lost_end) == (
                base,
                base + HARD_CAP * 4 + MOST_RECORDS_IN_A_FRAME,
            )
            appended = await log.append("t", [b"after"])
            assert appended.base_offset == given_up.lost_end
            assert await values_from(log, given_up.lost_end) == [b"after"]
            described = await log.describe_topic("t")
            assert described.end_offset - described.start_offset - described.lost == base + 1
            assert any(
                f"offsets {base} to {given_up.lost_end - 1} were given up" in one for one in described.notes
            )
        for node in world.up:
            topic = node.topic("t").state
            assert [(one.from_offset, one.end_offset) for one in topic.lost] == [(base, given_up.lost_end)]

    run_story(story, segment_records=4)


def test_a_disk_that_was_wiped_cannot_come_back_and_its_node_may_lead_what_follows() -> None:
    async def story(world: World) -> None:
        leader = await killed_leader(world, 5, power=True)
        leader.wipe()
        await leader.start(join=f"{world.up[0].host}:6001", replace_disk=True)
        await world.settle()
        async with world.connect(leader.node_id) as log:
            shown = await waiting(log)
            assert (shown.silent, shown.leader_starts, shown.replicas[0].state) == ([], 0, "gone")
            assert "on a disk that is not in the cluster any more" in shown.why
            end = (await give_up(log)).lost_end
            await log.append("t", [b"after"])
            assert await values_from(log, end) == [b"after"]
        assert await aside(leader) == []

    run_story(story)


def test_what_was_given_up_as_a_whole_is_no_damage_to_the_scrub() -> None:
    async def story(world: World) -> None:
        leader = await killed_leader(world, 5)
        async with others(world, leader) as log:
            await give_up(log)
        await leader.start()
        await world.settle()
        assert len(await aside(leader)) == 1
        await leader.broker.replication.scrubbing.round()
        async with others(world) as log:
            assert (await log.cluster()).problems == []

    run_story(story)


def test_the_segments_before_it_and_other_topics_are_as_they_were() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            for number in range(9):
                await log.append("t", numbers(1, number))
                await log.append("other", numbers(1, number))
        leader = await settled_leader(world)
        before = {
            node.node_id: [msgspec.to_builtins(one) for one in node.topic("t").state.segments[:-1]]
            for node in world.up
        }
        leader.kill()
        async with others(world, leader) as log:
            await give_up(log)
        await leader.start()
        await world.settle()
        for node in world.up:
            assert [msgspec.to_builtins(one) for one in node.topic("t").state.segments[:-2]] == before[
                node.node_id
            ]
            async with world.connect(node.node_id) as log:
                assert await values_from(log, 0, "other") == numbers(9)

    run_story(story, segment_records=4)


def test_health_says_no_more_that_the_topic_waits() -> None:
    async def story(world: World) -> None:
        leader = await killed_leader(world, 3, power=True)
        leader.wipe()
        async with others(world, leader) as log:
            await waiting(log)
            assert "topics-wait" in [problem.code for problem in (await log.cluster()).problems]
            await give_up(log)
            codes = [problem.code for problem in (await log.cluster()).problems]
            assert codes == ["node-down"], "nothing of it is left to wait for, or to read"
            given_up = (await log.describe_topic("t")).segments[0]
            assert given_up.lost and not given_up.copies, "and no copy of it is missing"
            removed = await log.remove_node(leader.node_id)
            assert removed.node_id == leader.node_id, "it holds the last copy of nothing"

    run_story(story)


def test_an_append_that_finds_no_leader_names_the_node() -> None:
    async def story(world: World) -> None:
        leader = await killed_leader(world, 3)
        async with world.connect(*(node.node_id for node in world.up), retry_deadline_s=3) as log:
            with pytest.raises(NodeUnreachable, match=f"node {leader.node_id}"):
                await log.append("t", [b"x"])

    run_story(story)
