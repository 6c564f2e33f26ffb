"""What outlives a stop, and a snapshot."""

from __future__ import annotations

import asyncio
from unittest import mock

from ister.raft import driver
from tests.cluster_world import World, run_story
from tests.losses.stories import others, waiting
from tests.losses.test_several_replicas import SETTINGS, left_behind
from tests.replicas_sim import small


def test_a_stop_closes_logs_that_are_fenced() -> None:
    async def story(world: World) -> int:
        found = await left_behind(world)
        async with others(world, *found.ahead) as log:
            await waiting(log)
        copies = found.behind.broker.replication.copies
        logs = list(copies._fenced.values())
        assert logs
        await found.behind.broker.stop()
        return sum(one.file._open for one in logs)  # type: ignore[attr-defined]

    assert run_story(story, **SETTINGS) == 0


def test_a_recovery_that_was_given_up_is_not_told_of_for_ever() -> None:
    async def script(world: small.World) -> list[object]:
        leader, (a, b) = await world.make_topic()
        await world.elect(a)
        async with world.at(leader) as log:
            await log.append("t", [b"1"])
        segment, mine = world.segment(), world.nodes[b].running.replication.recoveries
        # b has tried, and gave up: as it does where too few answer.
        mine._given_up[segment.uid] = (world.topic(b).state.uid, "too few replicas are left")
        for other in (leader, a):
            world.cut(b, other)
        world.topic(leader).start_handoff()
        await world.until(lambda: world.segment(number=1, seen_by=a).is_sealed)
        async with world.at(a) as log:
            for number in range(30):
                await log.create_topic(f"other-{number}")
        for other in (leader, a):
            world.forget_what_is_on_the_wire(b, other)
        world.network.heal()
        await world.agree()
        await asyncio.sleep(30)
        return [*mine.described()]

    with mock.patch.object(driver, "KEPT_BEHIND_SNAPSHOT", 0):
        assert small.play(script, snapshot_entries=10) == []
