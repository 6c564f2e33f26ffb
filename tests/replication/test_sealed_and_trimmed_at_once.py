"""A follower that hears of a seal and of the trimming at once."""

from __future__ import annotations

import asyncio

import pytest

from tests.replicas_sim.small import World, play

pytestmark = pytest.mark.slow


def test_nothing_is_kept_of_segments_that_were_sealed_and_trimmed_while_this_node_was_cut_off() -> None:
    """Its log stays open, with two files whose space nobody gets back, one pair for each time."""

    async def script(world: World) -> list[int]:
        leader, (a, b) = await world.make_topic(segment_records=2, retention_bytes=1)
        await world.elect(a)
        left: list[int] = []
        async with world.at(a, "client-2.y") as log:
            for _ in range(3):
                # Have b follow an open segment with something in it.
                async with asyncio.timeout(300):
                    while True:
                        await log.append("t", [b"x"])
                        await asyncio.sleep(1)
                        state = world.segment(seen_by=a)
                        copies = world.nodes[b].running.replication.copies
                        if (
                            copies.follower(state.uid) is not None
                            and world.topic(a).state.open_segment is state
                        ):
                            break
                for other in (leader, a):
                    world.cut(b, other)
                first = state.segment
                async with asyncio.timeout(600):
                    while world.topic(a).state.segments[0].segment <= first:
                        await log.append("t", [b"y"])
                        await asyncio.sleep(2)
                for other in (leader, a):
                    world.forget_what_is_on_the_wire(b, other)
                world.network.heal()
                await world.agree()
                await asyncio.sleep(30)
                there = {segment.uid for segment in world.topic(b).state.segments}
                followed = world.nodes[b].running.replication.copies.followers._by_segment
                left.append(sum(uid not in there for uid in followed))
        return left

    left = play(script)
    assert left == [0, 0, 0], f"logs that are open for segments that are gone, after each time: {left}"
