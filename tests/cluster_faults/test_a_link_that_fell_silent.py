"""A connection between nodes that swallows everything (a forgotten entry of a firewall) is dialled anew."""

from __future__ import annotations

import asyncio

from ister.testing.cluster import World, run_story


def test_a_silent_connection_is_given_up_and_dialled_again() -> None:
    async def story(world: World) -> None:
        link = world.nodes[1].broker.metadata.peers._links[world.nodes[2].member]
        dead = link._connection
        assert dead is not None
        dead._transport.write = lambda data: None  # type: ignore[method-assign]
        await asyncio.sleep(120)
        assert world.nodes[1].broker.metadata.peers.is_alive(world.nodes[2].member)

    run_story(story)
