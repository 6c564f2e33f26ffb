"""A follower that is sent frames before it has heard of their segment."""

from __future__ import annotations

import asyncio
from unittest import mock

from ister.metadata import placement
from tests.replicas_sim.small import World, play


def test_a_follower_whose_metadata_is_late_follows_once_it_is_not() -> None:
    """It waits for three seconds to hear of the segment, then refuses it: as a failed disk, and for as long
    as the process lives. Nothing is wrong with its disk, and its metadata comes a moment later."""

    async def script(world: World) -> list[str]:
        leader, (other, late) = await world.make_topic(segment_records=2)
        await world.elect(other)
        member = world.nodes[leader].running.metadata.member
        with mock.patch.object(placement, "next_leader", lambda last, members: member):
            async with world.at(leader) as log:
                await world.send(log, "t", b"1")
                world.cut(other, late)  # it hears the leader of the segment, and not that of the metadata
                await world.send(log, "t", b"2")
                await world.until(lambda: world.segment(seen_by=leader).segment == 2)
                await world.send(log, "t", b"3")
                await asyncio.sleep(5)
                world.network.heal()
                await world.agree()
                await asyncio.sleep(30)
                assert world.segment(seen_by=leader).segment == 2, "the next one would hide it"
        return [behind.why for behind in world.topic(leader).facts.followers_behind()]

    assert play(script, replica_lost_ms=600_000) == []
