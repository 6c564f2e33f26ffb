"""Topics move while they are written and read: a pause, no error, one line of offsets."""

from __future__ import annotations

import asyncio

import pytest

from ister.errors import BadRequest
from ister.metadata.moves import MoveReason
from ister.testing.cluster import World, read_all, run_story
from tests.moves.moving_helpers import a_node_other_than, ended, moved, written


@pytest.mark.parametrize("replicas", [1, 3])
def test_writers_and_readers_notice_no_error_and_offsets_go_on(replicas: int) -> None:
    async def story(world: World) -> None:
        async with world.connect() as log, world.connect() as reading, world.connect() as asking:
            await log.append("t", [b"0"])
            values: list[bytes | None] = []

            async def follow() -> None:
                async for record in reading.read("t", follow=True):
                    assert record.offset == len(values)
                    values.append(record.value)

            follower = asyncio.create_task(follow())
            async with written(log, "t") as offsets:
                offsets.append(0)
                for _ in range(6):
                    before, target = len(offsets), a_node_other_than(world, "t")
                    await moved(asking, "t", target)
                    assert world.leader_of("t").node_id == target
                    async with asyncio.timeout(30):
                        while len(offsets) < before + 20:  # noqa: ASYNC110
                            await asyncio.sleep(0.01)
            assert offsets == list(range(len(offsets)))
            async with asyncio.timeout(30):
                while len(values) < len(offsets):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert not follower.done()
            follower.cancel()
            written_values = [b"%d" % number for number in offsets]
            assert values[: len(offsets)] == written_values
            assert (await read_all(asking, "t"))[: len(offsets)] == written_values
            segments = (await asking.describe_topic("t")).segments
            assert len({segment.leader for segment in segments}) > 1, "old segments stay where they are"

    run_story(story, replicas=replicas)


def test_a_moved_topic_stays_across_rollovers_until_it_is_released() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", [b"x"])
            target = a_node_other_than(world, "t")
            await moved(log, "t", target)
            notes = (await log.describe_topic("t")).notes
            assert f"stays on node {target}, where it was moved to" in notes
            leaders = set()
            for _ in range(15):
                await log.append("t", [b"x"] * 10)
                leaders.add(world.leader_of("t").node_id)
            assert leaders == {target}
            assert world.nodes[target].topic("t").state.open_segment.segment > 4, "as many rollovers"
            await log.release_topic("t")
            for _ in range(15):
                await log.append("t", [b"x"] * 10)
                leaders.add(world.leader_of("t").node_id)
            assert leaders == {1, 2, 3}, "it goes round again"

    run_story(story, segment_records=10)


def test_unload_moves_it_to_the_next_node_and_a_plan_moves_nothing() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", [b"x"])
            leader = world.leader_of("t").node_id
            plan = await log.unload_topic("t", plan=True)
            assert (plan.stage, plan.source) == ("planned", leader)
            assert (await log.moves(), world.leader_of("t").node_id) == ([], leader)
            begun = await log.unload_topic("t")
            found = await ended(log, begun.move)
            assert (found.stage, found.target, found.end_offset) == ("done", plan.target, 1)
            assert world.leader_of("t").node_id == plan.target != leader
            assert world.leader_of("t").topic("t").state.home == 0

    run_story(story)


def test_a_move_cancelled_before_the_seal_leaves_the_topic_where_it_is() -> None:
    """E7: its leader hears of the cancel while it drains, or has its seal refused; it goes on itself."""

    async def story(world: World) -> None:
        async with world.connect() as log, world.connect() as asking:
            await log.append("t", [b"0"])
            leader = world.leader_of("t")
            target = a_node_other_than(world, "t")
            outcomes = set()
            async with written(log, "t") as offsets:
                offsets.append(0)
                for pause in range(30):
                    begun = await asking.move_topic("t", target)
                    await asyncio.sleep(pause / 1000)
                    try:
                        cancelled = await asking.cancel_move(begun.move)
                    except BadRequest:
                        cancelled = await ended(asking, begun.move)
                    outcomes.add((cancelled.stage, "after the seal" in cancelled.detail))
                    await asyncio.sleep(0.2)
                    if cancelled.stage == "done" or "after the seal" in cancelled.detail:
                        assert world.leader_of("t").node_id == target
                        await moved(asking, "t", leader.node_id)
                    else:
                        assert world.leader_of("t").node_id == leader.node_id
                    target = a_node_other_than(world, "t")
            assert ("cancelled", False) in outcomes
            assert offsets == list(range(len(offsets)))
            assert (await read_all(asking, "t"))[: len(offsets)] == [b"%d" % number for number in offsets]

    run_story(story, replicas=3)


@pytest.mark.parametrize("segment_records", [1_000_000, 50])
def test_a_target_that_does_not_answer_is_refused_or_makes_the_move_fail_while_writes_go_on(
    segment_records: int,
) -> None:
    """Also where the leaders take turns in less time than a target is waited for."""

    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", [b"0"])
            leader, target = world.leader_of("t"), a_node_other_than(world, "t")
            member = world.nodes[target].member
            world.nodes[target].kill()
            topic = leader.topic("t")
            # As if it had stopped just after somebody had looked.
            begun = await leader.broker.moves.request(topic, member, MoveReason.OPERATOR, stays=True)
            async with written(log, "t") as offsets:
                offsets.append(0)
                found = await ended(log, begun.index)
            assert (found.stage, found.detail) == ("failed", f"node {target} does not answer")
            assert len(offsets) > 10
            with pytest.raises(BadRequest, match=f"node {target} does not answer"):
                await log.move_topic("t", target)
            with pytest.raises(BadRequest, match="there is no node 9"):
                await log.move_topic("t", 9)

    run_story(story, segment_records=segment_records)
