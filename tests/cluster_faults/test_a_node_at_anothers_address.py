"""Two nodes tell clients the same address (a wrong advertise host): an append must end, with an error."""

from __future__ import annotations

import asyncio

from ister.errors import IsterError
from ister.testing.cluster import World, run_story


def test_an_append_that_is_passed_to_the_wrong_node_ends() -> None:
    async def story(world: World) -> None:
        node = world.nodes[2]
        async with world.connect(1, 2, 3) as log:
            for name in "abcdefgh":
                await log.append(name, [b"x"])
        name = next(name for name in "abcdefgh" if world.leader_of(name) is node)
        node.kill()
        await node.start(client_advertise_host="node-1")  # as 127.0.0.1 would be, on machines of their own
        await world.settle()
        async with world.connect(1, retry_deadline_s=3, request_timeout_s=2) as log:
            try:
                await log.append(name, [b"y"])
            except IsterError as error:
                print("refused:", error)
        await asyncio.sleep(5)
        before = world.nodes[1].server.bytes_in.value
        await asyncio.sleep(5)
        after = world.nodes[1].server.bytes_in.value
        assert after - before < 10_000, f"{after - before} bytes in 5 s: node 1 sends to itself for ever"

    run_story(story, seconds=60)
