"""Clusters of three nodes with three replicas, whole brokers on simulated seams."""

from __future__ import annotations

import asyncio

from ister.testing.cluster import World, WorldNode, read_all, run_story


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


async def agree(world: World, name: str, end: int) -> None:
    """All nodes have the open segment up to `end`."""
    async with asyncio.timeout(30):
        while not all(_end(node, name) >= end for node in world.up):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def _end(node: WorldNode, name: str) -> int:
    topic = node.topic(name)
    if topic.leads:
        return topic.reads.end_offset
    found = node.broker.replication.copies.follower(topic.state.open_segment.uid)
    return found.committed_end if found is not None else topic.state.open_segment.base_offset


def test_what_is_appended_is_on_all_three_disks() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            for value in numbers(20):
                await log.append("t", [value])
        await agree(world, "t", 20)
        leader = world.leader_of("t")
        segment = leader.topic("t").state.open_segment
        assert len(segment.replicas) == 3
        path = f"segments/{leader.topic('t').state.uid:016d}/{segment.segment:08d}-{segment.uid:016d}.log"
        position = leader.topic("t").led.segment.position  # type: ignore[union-attr]
        images = {node.disk.durable_bytes(path, 0, position) for node in world.up}
        assert len(images) == 1 and len(images.pop()) == position

    run_story(story, replicas=3)


def test_the_death_of_a_leader_with_its_disk_loses_nothing() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            for value in numbers(20):
                await log.append("t", [value])
            leader = world.leader_of("t")
            leader.kill(power=True)
            leader.wipe()
            for value in numbers(20, 20):
                await log.append("t", [value])
            assert [record.value async for record in log.read("t")] == numbers(40)

    run_story(story, replicas=3)


def test_a_leader_that_comes_back_goes_on_in_another_segment() -> None:
    """A3."""

    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            await log.append("t", numbers(5))
            leader = world.leader_of("t")
            leader.kill()
            await leader.start()
            await log.append("t", numbers(5, 5))
            assert [record.value async for record in log.read("t")] == numbers(10)
        assert len(leader.topic("t").state.segments) == 2
        await world.settle()
        async with world.connect(leader.node_id) as log:
            assert await read_all(log, "t") == numbers(10)

    run_story(story, replicas=3)


def test_a_follower_that_was_away_catches_up_and_its_copies_of_sealed_segments_are_completed() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            await log.append("t", numbers(3))
            away = next(node for node in world.up if node is not world.leader_of("t"))
            away.kill()
            for number in range(3, 30):
                await log.append("t", numbers(1, number))
            await away.start()
            for number in range(30, 33):
                await log.append("t", numbers(1, number))
        await world.settle()
        async with asyncio.timeout(60):
            while away.broker.replication.completions.behind:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        for node in world.up:
            if node is not away:
                node.kill()
        sealed = [one for one in away.topic("t").state.segments if one.is_sealed]
        mine = [one for one in sealed if away.member in one.replicas]
        assert mine[0].base_offset == 0, "the one that was sealed while it was away"
        for segment in mine:
            found = await away.topic("t").reads.read(segment.base_offset, 1 << 20)
            assert found.records == segment.end_offset - segment.base_offset

    run_story(story, replicas=3, segment_records=4)


def test_many_rollovers_with_three_replicas() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            for number in range(100):
                await log.append("t", numbers(1, number))
            assert await read_all(log, "t") == numbers(100)
        assert len(world.nodes[1].topic("t").state.segments) > 20

    run_story(story, replicas=3, segment_records=4)


def test_a_topic_of_one_broker_gets_its_replicas_when_others_join() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await log.append("t", numbers(5))
            assert len(world.nodes[1].topic("t").state.open_segment.replicas) == 1
            for node_id in (2, 3):
                await world.make(node_id).start(join="node-1:6001")
            await world.settle()
            async with asyncio.timeout(60):
                while len(world.nodes[1].topic("t").state.open_segment.replicas) < 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            await log.append("t", numbers(5, 5))
            assert await read_all(log, "t") == numbers(10)

    run_story(story, nodes=1, replicas=3)


def test_a_node_that_is_stopped_hands_over_what_it_leads() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            await log.append("t", numbers(5))
            leader = world.leader_of("t")
            await leader.stop()
            await log.append("t", numbers(5, 5))
            assert await read_all(log, "t") == numbers(10)
        chain = world.leader_of("t").topic("t").state.segments
        assert [segment.recovery for segment in chain] == [0, 0], "nobody had to recover anything"
        assert chain[1].leader != chain[0].leader

    run_story(story, replicas=3)
