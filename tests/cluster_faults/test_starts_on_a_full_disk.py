"""I2: two starts of a node in a cluster whose directory has no room for the number of the start."""

from __future__ import annotations

import errno

from ister.broker.topic.sealing import make_seal
from ister.testing.cluster import World, read_all, run_story


def test_a_seal_of_an_earlier_start_is_refused_though_the_number_of_the_start_was_not_saved() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            await log.append("t", [b"0"])
            leader = world.leader_of("t")
            leader.kill()
            leader.disk.faults.add("write", prefix="ister.json", error=errno.ENOSPC)
            await leader.start()
            await world.settle()
            assert (await log.append("t", [b"1"])).base_offset == 1
            segment = leader.topic("t").led.segment
            assert segment is not None
            late = make_seal(leader.broker.storage, leader.topic("t").state, segment, 2)
            leader.kill()
            await leader.start()
            await world.settle()
            assert (await log.append("t", [b"2"])).base_offset == 2
            outcome = await world.metadata_leader().broker.metadata.propose(late)
            assert not outcome.ok, "the seal of a process that is dead cut what was acknowledged since"
            assert await read_all(log, "t") == [b"0", b"1", b"2"]

    run_story(story)
