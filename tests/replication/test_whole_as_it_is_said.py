"""What is said of a copy, and done to it, before anybody has looked or sent anything."""

from __future__ import annotations

import asyncio
from unittest import mock

from ister.protocol.replication import Copy
from ister.raft import driver
from ister.testing.cluster import World, run_story
from tests.replication.repair_helpers import durable, fill, is_whole, path_of, sealed, until


def test_a_short_copy_is_not_called_whole_right_after_a_snapshot() -> None:
    """Who asks may be next in line when the snapshot is taken in, before anything else has its turn."""

    async def story(world: World) -> list[tuple[bool, bool]]:
        await fill(world, 1)
        leader = world.leader_of("t")
        first = leader.topic("t").state.open_segment
        others = [node for node in world.up if node.member in first.replicas and node is not leader]
        behind = next(node for node in others if node is not world.metadata_leader())
        world.network.isolate(behind.host)
        await fill(world, 12, 1)
        async with world.connect() as log:
            for number in range(30):
                await log.create_topic(f"other-{number}")
        await asyncio.sleep(5)
        segment = next(one for one in sealed(world) if one.uid == first.uid)
        assert behind.member in segment.replicas and not is_whole(world, behind, segment)
        end = segment.end_offset or 0
        request = Copy(behind.topic("t").state.uid, segment.uid, 0, leader.member, end, 0)
        metadata, answers = behind.broker.metadata, list[tuple[bool, bool]]()
        restored, tasks = metadata._on_restored, list[asyncio.Task[None]]()
        assert restored is not None

        async def ask() -> None:
            answer = await behind.broker.replication.guests.asked(request)
            answers.append((answer.end_offset == end, is_whole(world, behind, segment)))

        def asked_first() -> None:
            tasks.append(asyncio.ensure_future(ask()))
            restored()

        for other in world.up:  # what its leader had sent never comes
            world.network.reset(other.host, behind.host)
        with mock.patch.object(metadata, "_on_restored", asked_first):
            world.network.heal()
            await until(lambda: bool(answers), 60)
        return answers

    with mock.patch.object(driver, "KEPT_BEHIND_SNAPSHOT", 0):
        answers = run_story(
            story, nodes=4, replicas=3, segment_records=3, snapshot_entries=10, repair_after_ms=3_600_000
        )
    assert answers[0] == (False, False)


def test_p3_what_lies_behind_damage_is_not_cut_before_somebody_has_sent_it() -> None:
    """A follower has all of nine frames, and one rots before the seal was looked at. The only other replica
    is down, and may never come back."""

    async def story(world: World) -> tuple[int, int, bool]:
        await fill(world, 9)
        leader = world.leader_of("t")
        first = leader.topic("t").state.open_segment
        nodes = {node.member: node for node in world.nodes.values()}
        other = nodes[next(member for member in first.replicas if member != leader.member)]
        await asyncio.sleep(1)
        other.kill()
        leader.topic("t").handing_off.start()
        await until(lambda: any(one.uid == first.uid for one in sealed(world)))
        segment = next(one for one in sealed(world) if one.uid == first.uid)
        assert len(durable(world, other, segment)) >= segment.end_position
        other.disk.rot(path_of(world, segment) + ".log", segment.end_position // 2 + 5)
        leader.kill(power=True)
        await asyncio.sleep(3)
        await other.start()
        await asyncio.sleep(5)
        left = len(durable(world, other, segment).rstrip(b"\0"))
        await leader.start()
        await until(lambda: is_whole(world, other, segment))
        return left, segment.end_position, True

    left, size, _ = run_story(
        story, nodes=5, replicas=2, segment_records=1000, replica_lost_ms=600_000, repair_after_ms=600_000
    )
    assert left > size - 10, f"{left} of {size} bytes are left"
