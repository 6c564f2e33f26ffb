"""Followers that come back at other peer addresses, while nothing is appended."""

from __future__ import annotations

import asyncio

import msgspec

from tests.replicas_sim.small import World, play


def test_the_end_of_a_quiet_topic_is_known_after_its_followers_have_moved() -> None:
    async def script(world: World) -> None:
        leader, followers = await world.make_topic()
        async with world.at(leader) as log:
            await world.send(log, "t", b"1")
            assert await log.offsets_at("t", "latest") == 1
            for follower in followers:
                node = world.nodes[follower]
                await node.stop()
                node.config = msgspec.structs.replace(node.config, peer_port=7000 + follower)
                await node.start()
                await node.running.metadata.announced.wait()
                await world.agree()
                await asyncio.sleep(5)
            assert world.leader() == leader and world.segment().segment == 1, "still the same open segment"
            await asyncio.sleep(120)
            print(
                [
                    vars(b) if hasattr(b, "__dict__") else b
                    for b in world.topic(leader).facts.followers_behind()
                ]
            )
            assert await log.offsets_at("t", "latest") == 1

    play(script)
