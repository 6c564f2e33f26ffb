"""DESIGN: a full disk hands off where it can. Here the next leader has no room to make its log."""

from __future__ import annotations

import errno

import pytest

from ister.testing.cluster import World, read_all, run_story


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_segment_that_cannot_be_made_goes_on_to_a_node_that_can(error: int) -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            await log.append("t", [b"0"])
            leader = world.leader_of("t")
            full = world.nodes[leader.node_id % 3 + 1]
            full.disk.faults.add("write", prefix="segments/", error=error, times=None) if False else None
            if error == errno.ENOSPC:
                full.disk.capacity = full.disk._used
            else:
                full.disk.faults.add("write", prefix="segments/", error=error)
                full.disk.faults.add("create", prefix="segments/", error=error)
            for number in range(1, 60):
                await log.append("t", [b"%d" % number])
            assert await read_all(log, "t") == [b"%d" % number for number in range(60)]

    run_story(story, segment_records=10)
