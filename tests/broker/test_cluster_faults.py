"""Nodes that die in the middle of something, come back wrong, or meet each other at the wrong moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.holes.cluster_plants import check_line, make_topic, numbers, raw_client, until, when_applied

from ister.errors import DataDirectoryError, IsterError, NodeUnreachable, UnknownTopic
from ister.metadata.commands import Command, OpenedSegment, SealSegment
from ister.testing import Loss
from ister.testing.cluster import PEER_PORT, World, WorldNode, read_all, run_story

MOMENTS: dict[str, type[Command] | None] = {
    "when its segment begins to drain": None,
    "when the seal is committed": SealSegment,
    "when the next log is made": OpenedSegment,
}
VICTIMS: dict[str, Callable[[World, str], WorldNode]] = {
    "the leader of the segment": lambda world, topic: world.leader_of(topic),
    "the next leader": lambda world, topic: world.nodes[world.leader_of(topic).node_id % 3 + 1],
    "the leader of the metadata": lambda world, topic: world.metadata_leader(),
}


@pytest.mark.parametrize("power", [False, True], ids=["kill -9", "power cut"])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_node_that_dies_at_any_step_of_a_handoff_costs_no_record(
    victim: str, moment: str, power: bool
) -> None:
    async def story(world: World) -> None:
        topic = await make_topic(world)
        dying = VICTIMS[victim](world, topic)
        await world.leader_of(topic).topic(topic).led.ensure_open()
        await world.settle()
        now = at_moment(world, topic, MOMENTS[moment])
        acknowledged: dict[int, bytes] = {}

        async def produce(who: int) -> None:
            async with world.connect(1, 2, 3) as log, log.producer(topic, linger_ms=0) as producer:
                for number in range(15):
                    value = b"%d-%d" % (who, number)
                    acknowledged[await producer.send(value)] = value

        async def break_it() -> None:
            await now.wait()
            dying.kill(power=power, loss=Loss.ALL if power else None)
            await asyncio.sleep(2)
            await dying.start()

        await asyncio.gather(break_it(), *(produce(who) for who in range(3)))
        await world.settle()
        await check_line(world, topic, acknowledged)
        async with world.connect(dying.node_id) as log:
            line = await read_all(log, topic)
        assert sorted(filter(None, line)) == sorted(acknowledged.values()), "each record is there once"
        assert len(world.nodes[1].topic(topic).state.segments) > 2

    run_story(story, segment_records=5)


def at_moment(world: World, topic: str, command: type[Command] | None) -> asyncio.Event:
    """Set when the first handoff of the topic has come so far."""
    now = asyncio.Event()
    if command is not None:
        when_applied(world.metadata_leader(), command, now.set)
        return now
    handing_off = world.leader_of(topic).topic(topic).handing_off
    drain = handing_off.drain

    async def drain_and_tell(segment: object) -> object:
        now.set()
        return await drain(segment)  # type: ignore[arg-type]

    handing_off.drain = drain_and_tell  # type: ignore[assignment, method-assign]
    return now


def test_a_directory_under_another_node_id_is_refused_and_still_good_under_its_own() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            await log.append("t", [b"0"])
        node = world.nodes[2]
        node.kill()
        with pytest.raises(DataDirectoryError, match="belongs to node 2, this is node 5") as caught:
            await node.start(node_id=5)
        assert "--node-id 2" in caught.value.hint
        assert 5 not in world.nodes[1].broker.metadata.state.nodes
        await node.start()
        await world.settle()
        async with world.connect(2) as log:
            assert await read_all(log, "t") == [b"0"]

    run_story(story)


def test_first_writes_through_every_node_make_one_topic() -> None:
    async def story(world: World) -> None:
        for turn in range(5):
            topic = f"t{turn}"

            async def first_write(node_id: int, topic: str = topic) -> int:
                async with world.connect(node_id) as log:
                    return (await log.append(topic, [b"%d" % node_id])).base_offset

            offsets = await asyncio.gather(*(first_write(node_id) for node_id in (1, 2, 3)))
            assert sorted(offsets) == [0, 1, 2]
            await world.settle()
            assert len({node.topic(topic).state.uid for node in world.up}) == 1
            await check_line(world, topic, {offset: b"%d" % (at + 1) for at, offset in enumerate(offsets)})

    run_story(story)


@pytest.mark.parametrize("seed", range(3))
def test_a_topic_deleted_and_made_again_under_load_has_nothing_of_its_past(seed: int) -> None:
    """I3. What was acknowledged before a deletion began is gone; after the last one nothing is."""

    async def story(world: World) -> None:
        done = False
        acknowledged: list[tuple[float, int, bytes]] = []

        async def produce(node_id: int, who: int) -> None:
            number = 0
            async with world.connect(node_id) as log:
                while not done:
                    value = b"%d-%d" % (who, number)
                    number += 1
                    try:
                        offset = (await log.append("t", [value])).base_offset
                    except UnknownTopic:
                        continue  # it was deleted while this one was on its way
                    acknowledged.append((world.loop.time(), offset, value))

        producing = [asyncio.ensure_future(produce(1 + who % 3, who)) for who in range(5)]
        began = 0.0
        async with world.connect(1, 2, 3) as log:
            for _ in range(6):
                seen = len(acknowledged)
                await until(lambda seen=seen: len(acknowledged) > seen + 40)  # type: ignore[misc]
                began = world.loop.time()
                await log.delete_topic("t")
        await asyncio.sleep(1)  # until then a node may not know yet, and acknowledge what goes with the topic
        everywhere, seen = world.loop.time(), len(acknowledged)
        await until(lambda: len(acknowledged) > seen + 40)
        done = True
        await asyncio.gather(*producing)
        await world.settle()
        since = {offset: value for at, offset, value in acknowledged if at > everywhere}
        assert len(since) > 40
        await check_line(world, "t", since)
        async with world.connect(2) as log:
            line = set(await read_all(log, "t"))
        assert not line & {value for at, _, value in acknowledged if at < began}

    run_story(story, segment_records=8, seed=seed)


def test_i2_a_wiped_node_is_another_one_and_what_it_held_is_missed_by_name() -> None:
    """An empty disk is no empty log: its topics are lost and say so, they do not begin anew."""

    async def story(world: World) -> None:
        topic = await make_topic(world)
        wiped = world.leader_of(topic)
        async with world.connect(1, 2, 3) as log:
            await log.append(topic, [b"0"])
        old = wiped.member
        wiped.kill()
        wiped.wipe()
        await asyncio.sleep(3)
        other = next(node for node in world.up)
        await wiped.start(join=f"{other.host}:{PEER_PORT}", replace_disk=True)
        await world.settle()
        assert wiped.member != old
        assert old not in other.broker.metadata.status().membership.voters
        for node in world.up:
            async with world.connect(node.node_id, retry_deadline_s=1) as log:
                with pytest.raises(NodeUnreachable, match=f"node {wiped.node_id}.*another disk"):
                    await read_all(log, topic)
                with pytest.raises(NodeUnreachable):
                    await log.append(topic, [b"1"])
                problems = [problem.code for problem in (await log.cluster()).problems]
                assert "topics-lost-their-node" in problems
        async with world.connect(wiped.node_id) as log:
            await log.append("another", [b"x"])
            assert await read_all(log, "another") == [b"x"]

    run_story(story)


def test_what_a_minority_acknowledged_is_there_when_the_network_is_whole_again() -> None:
    async def story(world: World) -> None:
        topic = await make_topic(world, on_metadata_leader=True)
        lonely = world.leader_of(topic)
        async with world.connect(lonely.node_id) as log:
            await log.append(topic, [b"0"])
            for other in world.up:
                if other is not lonely:
                    world.network.partition(lonely.host, other.host)
            await asyncio.sleep(5)
            for number in range(1, 8):  # the segment's limit is 5: nobody can seal it, so it grows (A8)
                assert (await log.append(topic, [b"%d" % number])).base_offset == number
        client = await raw_client(world, lonely)  # one that knows of no other node
        with pytest.raises(IsterError, match="metadata"):
            await client.create("made-by-a-minority")
        rest = [node for node in world.up if node is not lonely]
        async with world.connect(*[node.node_id for node in rest]) as log:
            await log.create_topic("made-by-the-majority")
        world.network.heal()
        await world.settle()
        assert "default/made-by-a-minority" not in lonely.broker.topics
        assert "default/made-by-the-majority" in lonely.broker.topics
        await check_line(world, topic, {number: b"%d" % number for number in range(8)})
        async with world.connect(*[node.node_id for node in rest]) as log:
            assert (await log.append(topic, [b"8"])).base_offset == 8
            assert await read_all(log, topic) == numbers(9)

    run_story(story, segment_records=5)


def test_a_topic_that_two_halves_want_to_make_is_made_once() -> None:
    """One asks a node that is cut off: it is told so, or its topic is the one that the others made."""

    async def story(world: World) -> None:
        lonely = world.metadata_leader()
        rest = [node for node in world.up if node is not lonely]
        for other in rest:
            world.network.partition(lonely.host, other.host)
        await asyncio.sleep(3)  # until the others know: they would give the topic to the one that is cut off
        async with (
            world.connect(lonely.node_id, retry_deadline_s=20) as one,
            world.connect(*[node.node_id for node in rest]) as two,
        ):
            hasty = asyncio.ensure_future(one.append("t", [b"cut off"]))
            assert (await two.append("t", [b"first"])).base_offset == 0
            world.network.heal()
            assert (await hasty).base_offset == 1
        await world.settle()
        assert len({node.topic("t").state.uid for node in world.up}) == 1
        await check_line(world, "t", {0: b"first", 1: b"cut off"})

    run_story(story)
