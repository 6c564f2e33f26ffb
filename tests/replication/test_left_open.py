"""What outlives a stop, and a snapshot."""

from __future__ import annotations

import asyncio
from unittest import mock

from ister.errors import SegmentFenced
from ister.protocol.replication import Fence, FenceAnswer
from ister.raft import driver
from ister.replication.places import Place
from ister.replication.stream.follower import Known
from ister.testing.cluster import World, run_story
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
        world.topic(leader).handing_off.start()
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


def test_a_fence_that_waited_until_the_seal_opens_nothing() -> None:
    """What a recovery asks for is looked at again when the log is free: the segment may be sealed by then,
    its copy cut and called whole, and nobody would close what is opened of it now."""

    async def script(world: small.World) -> tuple[str, list[int], list[int]]:
        leader, (a, b) = await world.make_topic()
        async with world.at(leader) as log:
            await log.append("t", [b"1"])
        segment, replication = world.segment(), world.nodes[b].running.replication
        copies, said = replication.copies, list[str]()
        fence, stop = copies.fence, copies._stop

        async def stop_slowly(place: Place, recovery: int) -> Known:
            known = await stop(place, recovery)
            await world.until(lambda: world.segment(number=1, seen_by=b).is_sealed)
            await world.until(lambda: replication.completions.is_whole(segment.uid))
            return known

        async def fence_and_tell(request: Fence) -> FenceAnswer:
            try:
                return await fence(request)
            except SegmentFenced as error:
                said.append(error.message)
                raise

        with mock.patch.multiple(copies, fence=fence_and_tell, _stop=stop_slowly):
            topic = world.topic(a).state
            world.nodes[a].running.replication.recoveries.begin(topic)  # the leader and a are enough for it
            await world.until(lambda: bool(said))
        return said[0], list(copies._fenced), list(copies.commit_known)

    message, opened, known = small.play(script)
    assert "is sealed at 1" in message
    assert opened == known == []
