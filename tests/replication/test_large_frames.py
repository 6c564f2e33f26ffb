"""Frames that are larger than what is sent, held or copied at once: what a topic takes, its replicas take."""

from __future__ import annotations

import asyncio

import pytest

from ister import callers
from ister.protocol.codec import MAX_MESSAGE_BYTES
from ister.replication.copies import copying
from ister.replication.stream import leader
from ister.testing.cluster import World, run_story

KIB = 1024


def test_a_peer_takes_the_largest_frame_that_a_broker_can_be_set_to_take() -> None:
    """A frame that a leader takes and no follower does would end one segment after the other."""

    async def story(world: World) -> None:
        await asyncio.sleep(1)
        for node in world.up:
            peers = node.broker.metadata.peers
            links = [link._connection for link in (*peers._links.values(), *peers._bulk.values())]
            ways = [*peers._callers._all, *(one for one in links if one is not None)]
            assert len(ways) >= 4
            assert all(one.max_bytes > MAX_MESSAGE_BYTES for one in ways)

    run_story(story, replicas=3)


def test_a_frame_over_every_window_reaches_its_replicas_and_one_that_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader, "WINDOW_BYTES", 16 * KIB)
    monkeypatch.setattr(leader, "MESSAGE_BYTES", 4 * KIB)
    monkeypatch.setattr(callers, "HELD_BYTES", 16 * KIB)
    monkeypatch.setattr(copying, "CHUNK_BYTES", 4 * KIB)

    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            await log.append("t", [b"small"])
            behind = next(node for node in world.up if node is not world.leader_of("t"))
            behind.kill()
            values = [bytes([number]) * 200 * KIB for number in range(3)]
            for value in values:
                await log.append("t", [value])
            await behind.start()
            await asyncio.sleep(10)
            open_segment = world.leader_of("t").topic("t").state.open_segment
            assert open_segment.base_offset == 0, "the same segment, to which it caught up"
            assert world.leader_of("t").topic("t").facts.follower_lag == 0
            world.leader_of("t").kill()
            assert (await log.append("t", [b"later"])).base_offset == 4
            assert [record.value async for record in log.read("t", start=1, end=4)] == values

    run_story(story, replicas=3)
