"""What a node keeps of segments that are over."""

from __future__ import annotations

import asyncio

from ister.testing.cluster import World, run_story
from tests.losses.stories import others, waiting
from tests.losses.test_several_replicas import SETTINGS, left_behind


def test_a_fenced_log_is_closed_when_its_topic_is_deleted() -> None:
    """Two files stay open for each topic that is deleted while its segment waits for a recovery: what a
    person does with topics that wait for nodes which are gone. A node that has used up its files is dead."""

    async def story(world: World) -> None:
        found = await left_behind(world)
        copies = found.behind.broker.replication.copies
        async with others(world, *found.ahead) as log:
            await waiting(log)
            assert len(copies._fenced) == 1
            await log.delete_topic("t")
            await asyncio.sleep(30)
        assert len(copies._fenced) == 0

    run_story(story, **SETTINGS)


def test_nothing_is_kept_of_segments_that_are_sealed_and_whole() -> None:
    """Each handoff leaves something behind on every replica, for as long as the process lives."""

    async def story(world: World) -> dict[int, tuple[int, int]]:
        async with world.connect() as log:
            await log.create_topic("t", segment_records=2, retention_bytes=200)
            for number in range(60):
                await log.append("t", [b"%d" % number])
        await asyncio.sleep(60)
        kept = {}
        for node in world.up:
            segments = len(node.topic("t").state.segments)
            copies = node.broker.replication.copies
            left = [len(copies._busy), len(copies.followers)]
            kept[node.node_id] = (segments, max(left))
        return kept

    for segments, left in run_story(story, replicas=3, monitor_check_ms=100).values():
        assert left <= segments + 1
