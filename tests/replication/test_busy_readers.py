"""A leader that gives its segment up while readers are at work on it."""

from __future__ import annotations

import asyncio
import errno

import pytest

from ister.errors import IsterError
from ister.testing.cluster import World, run_story


@pytest.mark.parametrize("readers", [0, 8])
def test_readers_of_a_segment_do_not_hold_up_its_recovery(readers: int) -> None:
    """One of three nodes is down, and the leader's disk fails in one write. The two are a majority, and both
    must be fenced. Readers of the leader's log come one after the other: a fence does not wait for a moment
    without any."""

    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            await log.append("t", [b"0" * 1000])
        leader = world.leader_of("t")
        down = next(node for node in world.up if node is not leader)
        down.kill()
        await asyncio.sleep(3)
        is_over = asyncio.Event()
        leader.disk.latency = (0.01, 0.02)

        async def reads() -> None:
            async with world.connect(leader.node_id) as log:
                while not is_over.is_set():
                    try:
                        async with asyncio.timeout(5):
                            async for _ in log.read("t", start=0, end=1):
                                pass
                    except (IsterError, TimeoutError):
                        await asyncio.sleep(0.01)

        reading = [asyncio.ensure_future(reads()) for _ in range(readers)]
        await asyncio.sleep(1)
        leader.disk.faults.add("write", suffix=".log", prefix="segments/", error=errno.EIO, count=1)
        said: BaseException | None = None
        up = [node.node_id for node in world.up]
        try:
            async with asyncio.timeout(60), world.connect(*up) as log:
                await log.append("t", [b"1"])
        except (IsterError, TimeoutError) as error:
            said = error
        is_over.set()
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        async with asyncio.timeout(60), world.connect(*up) as log:
            await log.append("t", [b"2"])  # nobody reads now
        assert said is None, f"with {readers} readers nothing could be appended for 60 s: {said!r}"

    run_story(story, replicas=3)
