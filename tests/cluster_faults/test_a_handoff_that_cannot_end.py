"""Requests about a topic whose handoff finds no majority are answered, and cost no other topic anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ister.errors import IsterError
from ister.testing.cluster import World, WorldNode, run_story


async def stuck(world: World) -> tuple[WorldNode, str, str]:
    """A node that leads two topics, and is cut off from the others in the handoff of the first."""
    names = [f"t{number}" for number in range(12)]
    async with world.connect(1, 2, 3) as log:
        for name in names:
            await log.append(name, [b"x"])
    leader = world.nodes[2]
    led = [name for name in names if world.leader_of(name) is leader]
    return leader, led[0], led[1]


@pytest.mark.parametrize("what", ["describe", "list", "time"])
def test_a_request_is_answered_while_a_handoff_finds_no_majority(what: str) -> None:
    async def story(world: World) -> None:
        leader, topic, _ = await stuck(world)
        world.network.isolate(leader.host)
        for other in (1, 3):
            world.network.partition(leader.host, f"node-{other}")
        world.network.heal(leader.host, "client-2")
        await asyncio.sleep(3)
        leader.topic(topic).handing_off.start()
        await asyncio.sleep(1)
        work: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "describe": lambda: leader.broker.describe(leader.topic(topic)),
            "time": lambda: ask_time(leader, topic),
            "list": lambda: ask_list(world, leader),
        }
        done, _ = await asyncio.wait([asyncio.get_running_loop().create_task(work[what]())], timeout=60)
        assert done, f"{what} is not answered for 60 s"

    run_story(story)


async def ask_time(leader: WorldNode, topic: str) -> object:
    """Whether it ends here nobody can say; that is an answer."""
    try:
        return await leader.topic(topic).reads.offset_at(10**17)
    except IsterError as error:
        return error


async def ask_list(world: World, leader: WorldNode) -> object:
    async with world.connect(leader.node_id, request_timeout_s=1000) as log:
        try:
            return await log.list_topics()
        except IsterError as error:
            return error


def test_a_forwarded_request_that_is_not_answered_breaks_no_others() -> None:
    """Issue part 13: one request's failure is that request's."""

    async def story(world: World) -> None:
        leader, topic, _ = await stuck(world)
        log = leader.topic(topic)

        async def never(*args: object) -> object:
            await asyncio.sleep(10_000)
            raise AssertionError

        log.handing_off.propose_seal = never  # type: ignore[assignment, method-assign]
        log.handing_off.start()
        errors: list[IsterError] = []
        async with world.connect(1) as first:
            asking = asyncio.get_running_loop().create_task(first.offsets_at(topic, 10**17))
            way = world.nodes[1].broker.forwarder._way(leader.member, for_appends=True)
            before = None
            for _ in range(30):
                await asyncio.sleep(1)
                connection = await way.connection()
                if before is not None and connection is not before:
                    raise AssertionError("the connection for all topics broke because of one request")
                before = connection
            asking.cancel()
        assert not errors

    run_story(story)
