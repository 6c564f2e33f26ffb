"""Whoever meets a topic that waits for its only node is told of both ways out (F6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

import ister
from ister.errors import NodeUnreachable
from ister.testing.cluster import World, run_story
from tests.losses.stories import killed_leader, numbers


async def read(log: ister.Log) -> object:
    return [record async for record in log.read("t", start=0, end=4)]


async def produce(log: ister.Log) -> object:
    async with log.producer("t") as producer:
        return await producer.send(b"more")


@pytest.mark.parametrize(
    "use",
    [
        lambda log: log.append("t", numbers(1)),
        lambda log: log.offsets_at("t", "latest"),
        read,
        produce,
    ],
    ids=["append", "offsets", "read", "produce"],
)
def test_the_error_says_to_start_the_node_and_what_to_ask_if_it_is_gone(
    use: Callable[[ister.Log], Awaitable[object]],
) -> None:
    async def story(world: World) -> None:
        leader = await killed_leader(world, 4)
        others = [node.node_id for node in world.up if node is not leader]
        async with world.connect(*others, retry_deadline_s=5) as log:
            with pytest.raises(NodeUnreachable) as caught:
                await use(log)
        assert caught.value.hint == (
            f"{NodeUnreachable.default_hint} If it is gone for good, `ister topic recover default/t` says "
            f"what can be done."
        )

    run_story(story)
