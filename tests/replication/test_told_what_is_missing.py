"""A topic that waits for replicas of its open segment: who asks its leader, which is up, is told for whom."""

from __future__ import annotations

import asyncio
import re

import pytest

from ister.errors import IsterError
from tests.replicas_sim.small import World, play


@pytest.mark.parametrize("what", ["append", "read"])
def test_who_asks_a_leader_that_waits_for_other_replicas_is_told_which(what: str) -> None:
    """The node knows very well why it cannot answer, and says nothing at all: the client blames that node."""

    async def script(world: World) -> tuple[str, list[int]]:
        leader, followers = await world.make_topic()
        async with world.at(leader) as log:
            await world.send(log, "t", b"1")
        for number in (leader, *followers):
            world.nodes[number].kill()
        await world.nodes[leader].start()
        await world.nodes[leader].running.metadata.announced.wait()
        await asyncio.sleep(5)
        async with world.at(leader, "client-2.y") as log:
            with pytest.raises(IsterError) as told:
                if what == "append":
                    await log.append("t", [b"2"])
                else:
                    async for _ in log.read("t"):
                        pass
        return told.value.message, followers

    message, missing = play(script, size=5)
    told = re.findall(r"\b\d+\b", message.partition("last error")[2])
    assert set(map(str, missing)) <= set(told), message
