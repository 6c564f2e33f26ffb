"""What is said of a topic's end while its leader does not answer: what is known, and that it is the least."""

from __future__ import annotations

import asyncio

from ister.testing.cluster import World, run_story
from tests.replication.test_follower_reads import followers
from tests.replication.test_three_replicas import agree, numbers


def test_a_follower_tells_what_it_knows_to_be_committed_and_that_there_may_be_more() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(20))
            described = await log.describe_topic("t")
            assert described.end_is_known
            assert [segment.end_is_known for segment in described.segments] == [True]
        await agree(world, "t", 20)
        size = world.leader_of("t").topic("t").facts.bytes
        asked, other = followers(world, "t")
        world.leader_of("t").kill()
        async with world.connect(asked.node_id) as log:
            described = await log.describe_topic("t")
            (listed,) = await log.list_topics()
        for found in (described, listed):
            assert (found.end_offset, found.end_is_known, found.bytes) == (20, False, size)
            assert any("at least" in note for note in found.notes)
        (segment,) = described.segments
        assert (segment.end_offset, segment.end_is_known, segment.bytes) == (20, False, size)
        said = {copy.node: copy.state for copy in segment.copies}
        assert asked.node_id not in said
        assert said[other.node_id] == "unknown"

    run_story(story, replicas=3, failover_after_ms=3_600_000)


def test_sealed_segments_are_known_without_a_leader() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            for number in range(7):
                await log.append("t", numbers(1, number))
        await agree(world, "t", 7)
        asked = followers(world, "t")[0]
        world.leader_of("t").kill()
        async with world.connect(asked.node_id) as log:
            described = await log.describe_topic("t")
        assert (described.end_offset, described.end_is_known) == (7, False)
        assert {segment.end_is_known for segment in described.segments[:-1]} == {True}
        assert not described.segments[-1].end_is_known

    run_story(story, replicas=3, segment_records=3, failover_after_ms=3_600_000)


def test_a_node_without_a_copy_tells_what_it_has_seen_of_the_end() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(20))
        leader = world.leader_of("t")
        asked = next(node for node in world.up if node is not leader)
        async with world.connect(asked.node_id) as log:
            assert await log.offsets_at("t", "latest") == 20
            leader.kill()
            described = await log.describe_topic("t")
        assert (described.end_offset, described.end_is_known) == (20, False)

    run_story(story)


def test_a_leader_that_gave_its_segment_up_does_not_count_what_nobody_acknowledged() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(20))
        leader = world.leader_of("t")
        size = leader.topic("t").facts.bytes
        for node in world.up:
            if node is not leader:
                node.kill()
        async with world.connect(leader.node_id) as log:
            appending = asyncio.create_task(log.append("t", numbers(1, 20)))
            async with asyncio.timeout(60):
                while not leader.topic("t").facts.trouble:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            described = await log.describe_topic("t")
            appending.cancel()
        assert (described.end_offset, described.bytes, described.end_is_known) == (20, size, False)

    run_story(story, replicas=3)


def test_a_leader_that_waits_for_a_recovery_does_not_call_its_segment_empty() -> None:
    """It was restarted, and the others are down: what its log has may be committed, or not."""

    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(20))
        leader, others = world.leader_of("t"), followers(world, "t")
        for node in world.up:
            node.kill()
        await leader.start()
        await asyncio.sleep(5)
        async with world.connect(leader.node_id) as log:
            described = await log.describe_topic("t")
        assert not described.end_is_known
        (segment,) = described.segments
        assert {copy.node: copy.state for copy in segment.copies} == {
            other.node_id: "down" for other in others
        }

    run_story(story, replicas=3)
