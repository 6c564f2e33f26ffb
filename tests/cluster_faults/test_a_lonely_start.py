"""A node that was started again and finds no majority answers a fetch with its typed error, soon."""

from __future__ import annotations

from ister.errors import IsterError
from ister.protocol.messages import Fetch
from ister.testing.cluster import World, run_story
from tests.broker.broker_helpers import Answer  # noqa: F401


def test_a_fetch_at_a_node_that_cannot_know_its_end_is_refused_soon() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            for name in "abcdefgh":
                await log.append(name, [b"x"])
        name = next(name for name in "abcdefgh" if world.leader_of(name).node_id == 2)
        node = world.nodes[2]
        node.kill()
        world.network.partition("node-2", "node-1")
        world.network.partition("node-2", "node-3")
        await node.start()
        began = world.loop.time()
        try:
            await node.server.requests.read(Fetch(f"default/{name}", 0, 1000))
        except IsterError as error:
            print(error)
        assert world.loop.time() - began < 10, f"answered after {world.loop.time() - began:.0f} s"

    run_story(story)
