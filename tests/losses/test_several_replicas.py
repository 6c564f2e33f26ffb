"""Too few replicas of a segment are left for a recovery: what they have is kept, the rest given up (F6)."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import msgspec
import pytest

import ister
from ister.broker.topic.location import GivenUp
from ister.errors import BadRequest, RecordsLost, UnknownProducer
from ister.protocol.peer import node_of
from ister.replication.copies.copying import Copied
from ister.testing.cluster import World, WorldNode, run_story
from tests.losses.stories import aside, give_up, numbers, others, up_to_the_loss, values_from, waiting


class Split(NamedTuple):
    """A segment on three of five nodes: two have all of it, and one only its beginning."""

    ahead: list[WorldNode]
    """The leader first."""
    behind: WorldNode
    spare: list[WorldNode]


async def split(world: World, log: ister.Log, *, common: int = 4, more: int = 6) -> Split:
    await log.append("t", numbers(common))
    leader = world.leader_of("t")
    replicas = [world.nodes[node_of(m)] for m in leader.topic("t").state.open_segment.replicas]
    assert len(replicas) == 3 and replicas[0] is leader
    await asyncio.sleep(1)
    behind = replicas[2]
    for other in world.nodes.values():
        if other is not behind:
            world.network.partition(behind.host, other.host)
    for number in range(common, common + more - 1):
        await log.append("t", numbers(1, number))
    spare = [node for node in world.nodes.values() if node not in replicas]
    assert spare[0].server.text is not None
    await spare[0].server.text.put("t", b"%d" % (common + more - 1))  # so that one of them has seen the end
    return Split(replicas[:2], behind, spare)


async def left_behind(world: World, **how: int) -> Split:
    """The two that have all are gone, and the third is back."""
    async with world.connect() as log:
        found = await split(world, log, **how)
    lose(world, found)
    return found


def lose(world: World, found: Split) -> None:
    """Kill those that have all; what they had sent to the third is still on its way, and never arrives."""
    for node in found.ahead:
        node.kill(power=True)
    for node in found.spare:
        world.network.heal(found.behind.host, node.host)


SETTINGS = {"nodes": 5, "replicas": 3, "replica_lost_ms": 60_000}


def test_f6_what_the_last_replica_has_is_kept_and_the_rest_is_given_up() -> None:
    async def story(world: World) -> None:
        found = await left_behind(world)
        async with others(world, *found.ahead) as log:
            shown = await waiting(log)
            assert (shown.lost_from, shown.known_end) == (4, 10), "a spare node has passed the appends on"
            assert sorted(shown.silent) == sorted(node.node_id for node in found.ahead)
            assert "2 of 3 replicas have to answer" in shown.recovery
            ends = {one.node_id: (one.state, one.end_offset) for one in shown.replicas}
            assert ends[found.behind.node_id] == ("alive", 4)
            end = (await give_up(log)).lost_end
            await log.append("t", [b"after"])
        for node in world.up:
            async with world.connect(node.node_id) as log:
                seen, told = await up_to_the_loss(log)
                assert (seen, told.offsets) == (numbers(4), (4, end))
                assert await values_from(log, end) == [b"after"]
            assert node.topic("t").places.locate(4) == GivenUp(4, end)

    run_story(story, **SETTINGS)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0, 120], ids=["at once", "when others have taken their places"])
def test_f6_longer_logs_that_come_back_are_set_aside_and_the_kept_part_is_whole_everywhere(
    seconds: int,
) -> None:
    async def story(world: World) -> None:
        found = await left_behind(world)
        async with others(world, *found.ahead) as log:
            end = (await give_up(log)).lost_end
        await asyncio.sleep(seconds)
        world.network.heal()
        for node in found.ahead:
            await node.start()
        await world.settle()
        for node in found.ahead:
            assert [name.partition(".")[2] for name in await aside(node)] == ["lost-4-10.log"]
        found.behind.kill(power=True)
        await asyncio.sleep(3)
        async with others(world, found.behind) as log:
            seen, told = await up_to_the_loss(log)
            assert (seen, told.offsets) == (numbers(4), (4, end)), "others have it too by now"

    run_story(story, **SETTINGS, repair_after_ms=5_000)


def test_it_is_refused_while_enough_replicas_answer_and_the_cluster_goes_on_by_itself() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(5))
            leader = world.leader_of("t")
        async with others(world, leader) as log:
            shown = await log.recovery_of("t")
            assert (shown.state, shown.why) == ("open", "")
            leader.kill(power=True)
            async with asyncio.timeout(30):
                while (await log.recovery_of("t")).segment_uid == shown.segment_uid:
                    with pytest.raises(BadRequest, match="nothing is given up"):
                        await log.accept_loss(shown, node_stopped=True)
            with pytest.raises(BadRequest, match="has all of its records"):
                await log.accept_loss(shown, node_stopped=True)
            await log.append("t", numbers(1, 5))
            assert await values_from(log, 0) == numbers(6)

    run_story(story, **SETTINGS)


def test_where_no_replica_answers_all_of_the_segment_is_given_up() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            found = await split(world, log)
        world.network.heal()
        # Three of five are gone: two more have to come, or nobody could decide anything.
        for number in (6, 7):
            await world.make(number).start(join="node-1:6001" if world.nodes[1].is_up else "node-2:6001")
        await world.settle()
        for node in (*found.ahead, found.behind):
            node.kill(power=True)
        async with others(world, *found.ahead, found.behind) as log:
            shown = await waiting(log)
            assert (shown.lost_from, shown.known_end) == (0, 10)
            end = (await give_up(log)).lost_end
            await log.append("t", [b"after"])
            with pytest.raises(RecordsLost):
                await anext(aiter(log.read("t")))
            assert await values_from(log, end) == [b"after"]
        for node in (*found.ahead, found.behind):
            await node.start()
        await world.settle()
        assert len(await aside(found.behind)) == len(await aside(found.ahead[0])) == 1

    run_story(story, **SETTINGS)


def test_a_loss_that_would_be_larger_than_shown_is_refused() -> None:
    async def story(world: World) -> None:
        found = await left_behind(world)
        async with others(world, *found.ahead) as log:
            less = msgspec.structs.replace(await waiting(log), lost_from=5)
            with pytest.raises(
                BadRequest, match="offsets from 4 on would be lost, and those from 5 on were shown"
            ):
                await log.accept_loss(less, node_stopped=True)
            assert (await give_up(log)).lost_from == 4

    run_story(story, **SETTINGS)


def test_what_is_recovered_while_its_loss_is_being_accepted_is_not_given_up_nor_is_what_follows_it() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(5))
            await asyncio.sleep(1)
        leader = world.leader_of("t")
        replicas = [world.nodes[node_of(m)] for m in leader.topic("t").state.open_segment.replicas]
        for node in replicas[:2]:
            node.kill(power=True)
        last = replicas[2]
        fold = last.broker.replication.copies.fold

        async def comes_back_meanwhile(topic_uid: int, segment_uid: int, end_offset: int) -> Copied:
            folded = await fold(topic_uid, segment_uid, end_offset)
            if not replicas[1].is_up:
                await replicas[1].start()
                async with asyncio.timeout(60):
                    while len(last.topic("t").state.segments) == 1:  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
            return folded

        async with others(world, *replicas[:2]) as log:
            shown = await waiting(log)
            last.broker.replication.copies.fold = comes_back_meanwhile  # type: ignore[method-assign]
            with pytest.raises(BadRequest, match="has all of its records"):
                await log.accept_loss(shown, node_stopped=True)
            await log.append("t", numbers(1, 5))
            assert await values_from(log, 0) == numbers(6)
        assert last.topic("t").state.lost == []

    run_story(story, **SETTINGS)


def test_a_leader_that_is_left_alone_after_a_restart_is_the_replica_that_is_kept() -> None:
    """A3: it does not go on with its segment, and cannot recover it; but it answers, and has all of it."""

    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(5))
            await asyncio.sleep(1)
        leader = world.leader_of("t")
        followers = [world.nodes[node_of(m)] for m in leader.topic("t").state.open_segment.replicas[1:]]
        for node in followers:
            node.kill(power=True)
        leader.kill()
        await leader.start()
        async with others(world, *followers) as log:
            given_up = await give_up(log)
            assert (given_up.lost_from, sorted(given_up.silent)) == (
                5,
                sorted(one.node_id for one in followers),
            )
            await log.append("t", [b"after"])
            assert (await up_to_the_loss(log))[0] == numbers(5)

    run_story(story, **SETTINGS)


def test_a5_the_producers_of_what_is_kept_are_still_known() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log, world.connect() as second:
            await second.append("t", [b"second-0"])
            found = await split(world, log, common=3, more=3)
            lose(world, found)
            async with others(world, *found.ahead) as operator:
                end = (await give_up(operator)).lost_end
            # It goes on: all that it had sent before was kept.
            await second.append("t", [b"second-1"])
            # Of this one three records are lost. It is told, and goes on with another identity.
            with pytest.raises(UnknownProducer, match="may be among the records lost"):
                await log.append("t", [b"in doubt"])
            await log.append("t", [b"after"])
            assert sorted(filter(None, await values_from(second, end))) == [b"after", b"second-1"]
        table = world.leader_of("t").topic("t").state.open_segment.carried_producers
        assert len(table) == 2

    run_story(story, **SETTINGS)
