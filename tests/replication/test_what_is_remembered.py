"""What a node keeps of segments that are gone: nothing that grows with their number, and no open file."""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from unittest import mock

from ister.metadata.commands import TrimTopic
from ister.replication.recovery.recovering import Attempt
from tests.replicas_sim.small import World, play
from tests.replicas_sim.test_found_bugs import never


def test_what_is_remembered_of_segments_goes_with_them() -> None:
    """A node that runs for months has seen millions of segments, and has a few."""

    async def script(world: World) -> dict[str, int]:
        leader, _ = await world.make_topic(segment_records=1)
        async with asyncio.timeout(300), world.at(leader) as log:
            for number in range(40):
                await world.send(log, "t", b"%d" % number)
        await world.agree()
        metadata, topic = world.nodes[leader].running.metadata, world.topic(leader).state
        await metadata.propose(TrimTopic(topic.uid, topic.open_segment.base_offset))
        await world.agree()
        await asyncio.sleep(60)
        assert len(world.topic(leader).state.segments) <= 2
        replication = world.nodes[leader].running.replication
        kept: dict[str, Sized] = {
            "locks": replication.copies._busy,
            "followers": replication.copies.followers,
            "known commits": replication.copies.commit_known,
            "whole copies": set().union(*replication.completions._whole.values()),
        }
        return {what: len(found) for what, found in kept.items()}

    found = play(script)
    assert max(found.values()) < 10, found


def test_a_topic_that_is_deleted_while_it_is_recovered_leaves_no_file_open() -> None:
    """A file that is open keeps its space, for as long as the node runs."""

    async def script(world: World) -> list[int]:
        leader, followers = await world.make_topic()
        async with asyncio.timeout(300), world.at(leader) as log:
            await world.send(log, "t", b"1")
            with mock.patch.object(Attempt, "_seal", never):
                broker = world.nodes[followers[0]].running
                broker.replication.recoveries.begin(world.topic(followers[0]).state)
                copies = [node.running.replication.copies for node in world.nodes.values()]
                await world.until(lambda: all(one._fenced for one in copies))
                await log.delete_topic("t")
            await world.agree()
            await asyncio.sleep(60)
        return [len(one._fenced) for one in copies]

    assert play(script) == [0, 0, 0]
