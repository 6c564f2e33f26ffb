"""The disks that had a sealed segment whole have left, and the copy that stayed ends short (F6)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ister.errors import BadRequest, RecordsLost
from ister.metadata.commands import Result, SetReplicas
from ister.protocol.messages import Problem
from ister.protocol.recovery import TopicRecovery
from ister.testing.cluster import World, WorldNode, run_story
from tests.losses.stories import cut_off, numbers, up_to_the_loss, values_from
from tests.losses.test_several_replicas import SETTINGS, Split, split
from tests.replication.repair_helpers import is_healed, until

pytestmark = pytest.mark.slow


STORY = {**SETTINGS, "repair_after_ms": 10_000}


async def sealed_behind_one(world: World) -> Split:
    """A segment is sealed at 10, on three nodes; two have all of it, and the third, cut off, has 0 to 3."""
    async with world.connect() as log:
        found = await split(world, log)
    leader, _ = found.ahead
    leader.topic("t").handing_off.start()
    await asyncio.sleep(2)
    assert leader.topic("t").state.segments[0].end_offset == 10
    return found


async def cut_short(world: World) -> Split:
    """And the two disks are gone for good, by the operator's word; the third is back."""
    found = await sealed_behind_one(world)
    for node in found.ahead:
        node.kill(power=True)
        node.wipe()
    for node in found.spare:  # what the others had sent never arrives
        world.network.heal(found.behind.host, node.host)
    for node in found.ahead:
        await node.start(join=f"{found.spare[0].host}:6001", replace_disk=True, join_timeout_ms=60_000)
    world.network.heal()
    await asyncio.sleep(120)
    return found


async def said(world: World, found: Split) -> tuple[list[Problem], TopicRecovery]:
    async with world.connect(*(node.node_id for node in found.spare)) as log:
        return (await log.cluster()).problems, await log.recovery_of("t")


def test_people_are_told_which_offsets_left_with_the_disks_and_not_to_wait() -> None:
    async def story(world: World) -> None:
        found = await cut_short(world)
        problems, shown = await said(world, found)
        assert [one.code for one in problems] == ["records-lost-their-node"], problems
        assert "nobody has offsets 4 to 9" in problems[0].what
        assert "`ister topic recover default/t`" in problems[0].action
        assert "--accept-loss" in problems[0].action
        assert shown.state == "incomplete"
        assert [(one.from_offset, one.end_offset) for one in shown.gone] == [(4, 10)]
        nodes = ", ".join(map(str, sorted(node.node_id for node in found.ahead)))
        assert f"whole copies only on disks of nodes {nodes} that left the cluster" in shown.why
        assert any("--accept-loss" in choice for choice in shown.choices)

    run_story(story, **STORY)


def test_f6_only_what_nobody_has_is_given_up_and_the_rest_is_read_and_repaired() -> None:
    async def story(world: World) -> None:
        found = await cut_short(world)
        _, shown = await said(world, found)
        async with world.connect() as log:
            both = await asyncio.gather(*(log.accept_loss(shown, node_stopped=False) for _ in range(2)))
            assert all(one.accepted for one in both)
            assert (await log.accept_loss(shown, node_stopped=False)).accepted, "a repeat"
            await log.append("t", [b"after"])
            async with asyncio.timeout(120):
                while (await log.cluster()).problems:  # noqa: ASYNC110
                    await asyncio.sleep(1)
            assert (await log.recovery_of("t")).state == "open"
            assert (await log.describe_topic("t")).lost == 6
        for node in world.up:
            state = node.topic("t").state
            assert [(one.from_offset, one.end_offset, one.was_sealed) for one in state.lost] == [
                (4, 10, True)
            ]
            async with world.connect(node.node_id) as log:
                seen, told = await up_to_the_loss(log)
                assert (seen, told.offsets) == (numbers(4), (4, 10))
                with pytest.raises(RecordsLost, match="an operator gave them up"):
                    await anext(aiter(log.read("t", start=9)))
                assert await values_from(log, 10) == [b"after"]
        segment = state.segments[0]
        assert len(segment.replicas) == 3 and found.behind.member in segment.replicas
        for node in world.up:
            assert node.member not in segment.replicas or node.broker.replication.completions.is_whole(
                segment.uid
            )
            await node.broker.replication.scrubbing.round()
            assert not node.broker.replication.completions.is_damaged(segment.uid)

    run_story(story, **STORY)


def test_a_time_in_what_was_given_up_leads_behind_it() -> None:
    async def story(world: World) -> None:
        found = await cut_short(world)
        _, shown = await said(world, found)
        last = found.behind.topic("t").state.segments[0].last_append_time_us
        async with world.connect() as log:
            await log.accept_loss(shown, node_stopped=False)
            await log.append("t", [b"after"])
            await asyncio.sleep(30)
            assert await log.offsets_at("t", last) == 10

    run_story(story, **STORY)


def test_nothing_is_given_up_while_a_node_that_may_have_it_does_not_say_so() -> None:
    async def story(world: World) -> None:
        found = await cut_short(world)
        _, shown = await said(world, found)
        found.behind.kill()
        await asyncio.sleep(5)
        async with world.connect(*(node.node_id for node in found.spare)) as log:
            name = f"node {found.behind.node_id} is in the cluster and may have default/t:1"
            with pytest.raises(BadRequest, match=name) as caught:
                await log.accept_loss(shown, node_stopped=True)
            assert f"Start node {found.behind.node_id}" in caught.value.hint
            assert "records-wait" in [one.code for one in (await log.cluster()).problems]
        assert found.spare[0].topic("t").state.lost == []

    run_story(story, **STORY)


def test_nothing_is_given_up_of_what_a_node_in_the_cluster_has_whole() -> None:
    async def story(world: World) -> None:
        found = await sealed_behind_one(world)
        leader = found.ahead[0]
        leader.kill(power=True)
        leader.wipe()
        await leader.start(join=f"{found.spare[0].host}:6001", replace_disk=True, join_timeout_ms=60_000)
        segment = found.spare[0].topic("t").state.segments[0]
        async with world.connect(*(node.node_id for node in found.spare)) as log:
            shown = await log.recovery_of("t")
            assert (shown.state, shown.gone) == ("open", [])
            named = msgspec.structs.replace(shown, gone_segments=[segment.uid], gone_from=[4])
            with pytest.raises(BadRequest, match="is in the cluster"):  # and the third may have it as well
                await log.accept_loss(named, node_stopped=True)
            world.network.heal()
            with pytest.raises(BadRequest, match="is in the cluster"):
                await log.accept_loss(named, node_stopped=True)
        await until(lambda: is_healed(world))
        assert found.spare[0].topic("t").state.lost == []

    run_story(story, **STORY)


def test_a_loss_of_sealed_records_that_would_be_larger_than_shown_is_refused() -> None:
    async def story(world: World) -> None:
        found = await cut_short(world)
        _, shown = await said(world, found)
        async with world.connect() as log:
            less = msgspec.structs.replace(shown, gone_from=[6])
            with pytest.raises(
                BadRequest, match="offsets from 4 on would be lost, and those from 6 on were shown"
            ):
                await log.accept_loss(less, node_stopped=True)
            assert (await log.accept_loss(shown, node_stopped=True)).accepted

    run_story(story, **STORY)


def test_a_short_copy_that_is_being_looked_at_after_a_start_is_not_called_a_loss() -> None:
    """All nodes are started at once: nobody has looked at its copy, and everybody has it whole."""

    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(5))
        leader = world.leader_of("t")
        leader.topic("t").handing_off.start()
        await asyncio.sleep(5)
        nodes: list[WorldNode] = list(world.nodes.values())
        gone = next(one for one in nodes if one.member in leader.topic("t").state.segments[0].replicas[1:])
        gone.kill(power=True)
        gone.wipe()
        rest = [one for one in nodes if one is not gone]
        await gone.start(join=f"{rest[0].host}:6001", replace_disk=True, join_timeout_ms=60_000)
        for node in rest:
            node.kill()
        await asyncio.gather(*(node.start() for node in rest))
        for _ in range(40):
            await asyncio.sleep(0.25)
            async with world.connect(rest[0].node_id) as log:
                codes = [one.code for one in (await log.cluster()).problems]
                assert "records-lost-their-node" not in codes

    run_story(story, **{**STORY, "repair_after_ms": 3_600_000})


def test_f6_the_longest_of_several_short_copies_is_kept_and_the_others_are_brought_up_to_it() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(4))
            leader = world.leader_of("t")
            members = leader.topic("t").state.open_segment.replicas
            replicas = [next(one for one in world.up if one.member == member) for member in members]
            ahead, (longer, shorter) = replicas[:3], replicas[3:]
            await asyncio.sleep(1)
            cut_off(world, shorter)
            await log.append("t", numbers(2, 4))
            await asyncio.sleep(1)
            cut_off(world, longer)
            await log.append("t", numbers(4, 6))
        leader.topic("t").handing_off.start()
        await asyncio.sleep(2)
        spare = [one for one in world.nodes.values() if one not in replicas]
        for node in ahead:
            node.kill(power=True)
            node.wipe()
        for node in (longer, shorter):
            for other in (longer, shorter, *spare):
                if other is not node:
                    world.network.heal(node.host, other.host)
        await asyncio.sleep(10)
        for node in ahead:
            await node.start(join=f"{spare[0].host}:6001", replace_disk=True, join_timeout_ms=60_000)
        world.network.heal()
        await asyncio.sleep(120)
        async with world.connect() as log:
            shown = await log.recovery_of("t")
            assert [(one.from_offset, one.end_offset) for one in shown.gone] == [(6, 10)]
            assert (await log.accept_loss(shown, node_stopped=False)).accepted
            await asyncio.sleep(60)
            assert (await up_to_the_loss(log))[0] == numbers(6)
        uid = shown.gone_segments[0]
        assert shorter.broker.replication.completions.is_whole(uid)
        longer.kill(power=True)
        async with world.connect(*(one.node_id for one in world.up)) as log:
            assert (await up_to_the_loss(log))[0] == numbers(6)

    run_story(story, nodes=7, replicas=5, replica_lost_ms=60_000, repair_after_ms=3_600_000)


def test_a_whole_copy_that_comes_back_beside_a_short_one_is_counted_again_and_nothing_is_lost() -> None:
    """Its node left the list while it was down. It is not to remove what the short one waits for."""

    async def story(world: World) -> None:
        found = await sealed_behind_one(world)
        leader, back = found.ahead
        back.kill()
        # As a list was changed before the metadata knew who has what: now it would not let that one go (C3).
        topic = leader.topic("t").state
        left = [leader.member, found.behind.member]
        command = SetReplicas(topic.uid, 1, topic.segments[0].replicas, left)
        assert (await leader.broker.metadata.propose(command)).result is Result.APPLIED
        gone = [leader]
        for node in gone:
            node.kill(power=True)
            node.wipe()
        for node in world.up:
            if node is not found.behind:
                world.network.heal(found.behind.host, node.host)
        await asyncio.sleep(5)
        rest = next(one for one in world.up if one is not found.behind)
        for node in gone:
            await node.start(join=f"{rest.host}:6001", replace_disk=True, join_timeout_ms=120_000)
        await back.start()
        world.network.heal()
        await until(lambda: is_healed(world))
        assert found.behind.topic("t").state.lost == []
        async with world.connect() as log:
            assert (await values_from(log, 0))[:10] == numbers(10)

    run_story(story, **{**STORY, "nodes": 7})
