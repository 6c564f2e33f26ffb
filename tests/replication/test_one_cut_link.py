"""One link is cut, between a segment's leader and the metadata's: everybody else hears everybody."""

from __future__ import annotations

import asyncio

import pytest

from tests.replicas_sim.small import World, play


@pytest.mark.slow
def test_a_topic_goes_on_when_its_leader_is_restarted_and_only_the_next_but_one_misses_it() -> None:
    """The leader was restarted, and does not reach the metadata: it can neither lead nor begin a recovery.
    The first of the others hears it, and sees nothing to do. The second does not, and leaves it to the first,
    for as long as that takes. Two of three nodes are well, and have the records and a majority."""

    async def script(world: World) -> int:
        leader, (first, second) = await world.make_topic()
        await world.elect(second)
        async with world.at(leader) as log:
            await world.send(log, "t", b"1")
        world.cut(leader, second)
        world.nodes[leader].kill()
        await world.nodes[leader].start()
        async with world.at(first, "client-2.y") as elsewhere:
            sending = asyncio.ensure_future(world.send(elsewhere, "t", b"2", session="y"))
            await asyncio.sleep(300)
            is_answered = any(send.values == (b"2",) and send.offsets for send in world.history.sends)
            segment = world.segment(seen_by=second)
            world.network.heal()
            await sending
        assert is_answered, (
            f"after 300 s segment {segment.segment} is open, and its recovery is {segment.recovery}"
        )
        await world.judge("t")
        return 0

    play(script)


def test_a_topic_goes_on_when_its_full_segments_leader_cannot_reach_the_metadata() -> None:
    """Nobody was restarted. The segment is at its hard cap (A8) and its leader cannot seal it; the first of
    the others hears the leader, the second does not and leaves it to the first."""

    async def script(world: World) -> list[tuple[bytes, ...]]:
        leader, (first, second) = await world.make_topic(segment_records=2)
        await world.elect(second)
        async with world.at(first) as log:
            await world.send(log, "t", b"0")
            world.cut(leader, second)
            for number in range(1, 12):  # the hard cap is eight
                await world.send(log, "t", b"%d" % number)
        world.network.heal()
        return [send.values for send in world.history.sends if not send.offsets]

    assert play(script) == []
