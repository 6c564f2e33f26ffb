"""A node that stops when no majority is left to hand over to: soon, and it says so once."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ister.testing.cluster import World, WorldNode, run_story

DRAIN_SECONDS = 10.0


async def stop(node: WorldNode) -> float:
    """As SIGTERM does; how long it took."""
    assert node.process is not None
    began = asyncio.get_running_loop().time()

    async def work() -> None:
        await node.server.stop(DRAIN_SECONDS)
        await node.broker.stop()

    task = node.process.start(work())
    await asyncio.wait([task])
    task.result()
    node.kill()
    return asyncio.get_running_loop().time() - began


async def make_topics(world: World) -> None:
    async with world.connect() as log:
        for number in range(8):
            await log.append(f"t{number}", [b"x"])
    await asyncio.sleep(1)


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("at_once", [False, True], ids=["one-by-one", "at-once"])
def test_the_last_nodes_to_stop_do_not_wait_for_those_that_are_gone(
    replicas: int, at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: World) -> None:
        await make_topics(world)
        caplog.clear()
        if at_once:
            took = await asyncio.gather(*map(stop, world.up))
        else:
            took = [await stop(node) for node in world.up]
        assert max(took) < 3, took
        assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
        told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(told) <= (2 if at_once else 1), "once a node"

    run_story(story, replicas=replicas)


def test_others_that_are_missed_after_a_stop_has_begun_do_not_hold_it_up() -> None:
    async def story(world: World) -> None:
        await make_topics(world)
        last, *others = world.up
        for node in others:
            node.kill()
        assert last.broker.has_majority, "as far as it knows"
        assert await stop(last) < 3

    run_story(story, replicas=3)


def test_records_that_wait_for_a_quorum_that_is_gone_do_not_hold_up_a_stop() -> None:
    async def story(world: World) -> None:
        await make_topics(world)
        last, *others = world.up
        for node in others:
            node.kill()
        await asyncio.sleep(2)
        async with world.connect(last.node_id, retry_deadline_s=60) as log:
            appends = [asyncio.ensure_future(log.append(f"t{number}", [b"y"])) for number in range(8)]
            await asyncio.sleep(0.5)
            assert await stop(last) < 4, "a second for the appends, two for the segments"
            for append in appends:
                append.cancel()
            await asyncio.gather(*appends, return_exceptions=True)

    run_story(story, replicas=3)
