"""Sealed segments of one replica whose disk is gone: who takes its place, who is told, and the loss (F6)."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import msgspec
import pytest

from ister.broker.topic.location import Unavailable
from ister.errors import BadRequest, JoinFailed, RecordsLost
from ister.metadata.commands import SetReplicas
from ister.testing.cluster import World, WorldNode, run_story
from tests.losses.stories import numbers, settled_leader, up_to_the_loss, values_from

RECORDS = 4


class Wiped(NamedTuple):
    """A node without its disk, and the offsets of which only that one had the records."""

    node: WorldNode
    gone: list[tuple[int, int]]
    left: list[int]
    join: str


async def wiped(world: World) -> Wiped:
    """Segments of one topic go around; one node's disk is lost that does not have the open one."""
    async with world.connect() as log:
        for number in range(6 * RECORDS):
            await log.append("t", numbers(1, number))
            await asyncio.sleep(0.1)
    leader = await settled_leader(world)
    node = next(one for one in world.up if one is not leader)
    segments = leader.topic("t").state.segments[:-1]
    gone = [
        (one.base_offset, one.end_offset or 0)
        for one in segments
        if one.replicas == [node.broker.metadata.member] and not one.is_empty
    ]
    assert gone and len(gone) < len(segments), "some, and not all"
    lost = {offset for start, end in gone for offset in range(start, end)}
    node.kill(power=True)
    node.wipe()
    left = [offset for offset in range(6 * RECORDS) if offset not in lost]
    return Wiped(node, gone, left, f"{leader.host}:6001")


async def replaced(world: World) -> Wiped:
    found = await wiped(world)
    await found.node.start(join=found.join, replace_disk=True)
    await world.settle()
    return found


def test_i2_a_node_is_not_let_in_empty_while_its_old_disk_alone_has_records() -> None:
    async def story(world: World) -> None:
        found = await wiped(world)
        with pytest.raises(
            JoinFailed, match=r"has the last copy of default/t:\d+, on another disk"
        ) as caught:
            await found.node.start(join=found.join)
        assert "--replace-disk" in (caught.value.hint or "")
        found.node.wipe()
        await found.node.start(join=found.join, replace_disk=True)
        await world.settle()

    run_story(story, segment_records=RECORDS)


def test_i2_a_node_whose_records_others_have_is_let_in_empty_as_ever() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
        leader = world.leader_of("t")
        leader.kill(power=True)
        leader.wipe()
        await leader.start(join=f"{world.up[0].host}:6001")
        await world.settle()

    run_story(story, replicas=3)


def test_readers_are_told_at_once_at_every_node_and_where_to_go_on() -> None:
    async def story(world: World) -> None:
        found = await replaced(world)
        start, end = found.gone[0]
        for node in world.up:
            assert isinstance(node.topic("t").places.locate(start + 1), Unavailable)
            async with world.connect(node.node_id) as log:
                async with asyncio.timeout(5):
                    with pytest.raises(RecordsLost, match="disks that left the cluster") as caught:
                        await anext(aiter(log.read("t", start=start + 1)))
                assert caught.value.offsets == (start, end)
                assert caught.value.hint.startswith(f"Read on from offset {end}.")
                seen, told = await up_to_the_loss(log)
                assert (seen, told.offsets) == (numbers(start), (start, end)), (
                    "what lies before is read first"
                )

    run_story(story, segment_records=RECORDS)


def test_a_time_in_records_that_are_gone_leads_behind_them() -> None:
    async def story(world: World) -> None:
        found = await replaced(world)
        topic = world.leader_of("t").topic("t").state
        _, end = found.gone[0]
        lost = topic.holding(end - 1)
        assert lost is not None and lost.end_offset == end
        async with world.connect() as log:
            at = await log.offsets_at("t", lost.last_append_time_us)
        assert at == min(offset for offset in found.left if offset >= end)

    run_story(story, segment_records=RECORDS)


def test_f6_the_loss_is_shown_accepted_once_and_no_problem_any_more() -> None:
    async def story(world: World) -> None:
        found = await replaced(world)
        async with world.connect() as log:
            problem = next(one for one in (await log.cluster()).problems)
            assert (problem.code, "`ister topic recover default/t`" in problem.action) == (
                "records-lost-their-node",
                True,
            )
            shown = await log.recovery_of("t")
            assert shown.state == "incomplete" and f"disks of node {found.node.node_id}" in shown.why
            assert [(one.from_offset, one.end_offset) for one in shown.gone] == found.gone
            assert any("--accept-loss" in choice for choice in shown.choices)
            both = await asyncio.gather(*(log.accept_loss(shown, node_stopped=False) for _ in range(2)))
            assert all(one.accepted for one in both)
            late = await log.accept_loss(shown, node_stopped=False)
            assert (late.accepted, late.state, late.gone) == (True, "open", [])
            assert (await log.cluster()).problems == []
            assert (await log.recovery_of("t")).state == "open"
            described = await log.describe_topic("t")
            assert described.lost == sum(end - start for start, end in found.gone)
            await log.append("t", [b"after"])
        for node in world.up:
            state = node.topic("t").state
            assert [(one.from_offset, one.end_offset) for one in state.lost] == found.gone
            async with world.connect(node.node_id) as log:
                for start, end in found.gone:
                    with pytest.raises(RecordsLost, match="an operator gave them up") as caught:
                        await anext(aiter(log.read("t", start=start)))
                    assert caught.value.offsets == (start, end)
                last = max(end for _, end in found.gone)
                rest = [b"%d" % offset for offset in found.left if offset >= last]
                assert await values_from(log, last) == [*rest, b"after"]

    run_story(story, segment_records=RECORDS)


def test_f6_what_is_in_the_cluster_is_not_given_up_whatever_is_named() -> None:
    async def story(world: World) -> None:
        found = await replaced(world)
        async with world.connect() as log:
            shown = await log.recovery_of("t")
            there = world.leader_of("t").topic("t").state.segments
            more = [*shown.gone_segments, next(one.uid for one in there if one.base_offset in found.left)]
            with pytest.raises(BadRequest, match="is in the cluster, and has a copy of"):
                await log.accept_loss(msgspec.structs.replace(shown, gone_segments=more), node_stopped=False)
            assert (await log.recovery_of("t")).gone == shown.gone, "nothing was given up"

    run_story(story, segment_records=RECORDS)


def test_an_empty_sealed_segment_is_no_loss_and_keeps_nobody_out() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
        first = world.leader_of("t")
        for _ in range(2):  # two handoffs of a topic in which nothing is appended
            await world.leader_of("t").topic("t").led.ensure_open()
            world.leader_of("t").topic("t").handing_off.start()
            await asyncio.sleep(2)
        state = first.topic("t").state
        empty = next(one for one in state.segments[:-1] if one.is_empty)
        node = next(one for one in world.up if one.broker.metadata.member == empty.replicas[0])
        if state.open_segment.leader == node.broker.metadata.member or node is first:
            pytest.fail("the segments went another way: the story shows nothing")
        node.kill(power=True)
        async with world.connect(*(one.node_id for one in world.up)) as log:
            await asyncio.sleep(3)
            assert "records-wait" not in [one.code for one in (await log.cluster()).problems]
        node.wipe()
        await node.start(join=f"{first.host}:6001")
        await world.settle()
        async with world.connect() as log:
            assert (await log.cluster()).problems == []
            assert await values_from(log, 0) == numbers(3)

    run_story(story)


def test_a_dead_node_with_the_only_copies_is_removed_by_an_operators_word_and_one_that_answers_is_not() -> (
    None
):
    async def story(world: World) -> None:
        found = await wiped(world)
        node_id = found.node.node_id
        async with world.connect(*(one.node_id for one in world.up)) as log:
            await asyncio.sleep(3)
            with pytest.raises(BadRequest, match="the last copy of default/t") as caught:
                await log.remove_node(node_id)
            assert "--disk-gone" in caught.value.hint
            with pytest.raises(BadRequest, match="it answers, so its disk is not gone"):
                await log.remove_node(world.up[0].node_id, disk_gone=True)
            await log.remove_node(node_id, disk_gone=True)
            shown = await log.recovery_of("t")
            assert [(one.from_offset, one.end_offset) for one in shown.gone] == found.gone
            assert (await log.accept_loss(shown, node_stopped=False)).accepted
            assert (await log.cluster()).problems == []

    run_story(story, segment_records=RECORDS)


def test_an_empty_segment_of_which_no_copy_is_left_is_no_shortage() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
        topic = world.leader_of("t").topic("t")
        for _ in range(2):
            await world.leader_of("t").topic("t").led.ensure_open()
            world.leader_of("t").topic("t").handing_off.start()
            await asyncio.sleep(2)
        empty = next(one for one in topic.state.segments[:-1] if one.is_empty)
        gone = SetReplicas(topic.state.uid, empty.segment, list(empty.replicas), empty.replicas[:1])
        assert (await world.up[0].broker.metadata.propose(gone)).ok
        node = next(one for one in world.up if one.broker.metadata.member == empty.replicas[0])
        node.kill(power=True)
        node.wipe()
        await node.start(join=f"{world.up[0].host}:6001")
        await world.settle()
        async with world.connect() as log:
            async with asyncio.timeout(120):
                while (await log.cluster()).problems:  # noqa: ASYNC110
                    await asyncio.sleep(1)
            assert await values_from(log, 0) == numbers(3)

    run_story(story, replicas=3, repair_after_ms=3_600_000)
