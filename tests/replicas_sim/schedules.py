"""Interleavings that dice seldom reach: each finds a planted bug at once, and is clean without it."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

from ister.replication.recovery.recovering import Attempt
from ister.testing import Loss
from tests.replicas_sim.small import World, play


def a_lost_disk_comes_back_empty_while_the_one_that_has_all_is_away() -> None:
    """The leader and one follower have what was acknowledged. The leader loses its disk, comes back on an
    empty one, and is up with the follower that was behind; the other one comes later (I2)."""

    async def script(world: World) -> None:
        leader, (first, behind) = await world.make_topic()
        segment = world.segment()
        async with world.at(first) as log:
            await world.send(log, "t", b"1")
            world.cut(leader, behind)
            await world.send(log, "t", b"2", b"3")
            world.lose_disk(leader)
            world.nodes[first].kill()
            world.forget_what_is_on_the_wire(leader, behind)
            world.network.heal()
            await world.nodes[leader].start()
            await world.nodes[leader].running.metadata.announced.wait()
            await asyncio.sleep(10)
            await world.nodes[first].start()
            await world.until(lambda: world.segment(number=segment.segment, seen_by=behind).is_sealed)
            await world.send(log, "t", b"4")
        await world.judge("t")

    play(script, size=5)


def a_fenced_replica_loses_power_before_the_seal() -> None:
    """Its fence was answered, and the end is chosen. It comes back cut off from the others, does not know of
    the recovery by its metadata, and meets the old leader, which knows of nothing (F2)."""

    async def script(world: World) -> None:
        leader, (fenced, coordinator) = await world.make_topic()
        await world.elect(coordinator)
        async with world.at(leader) as log:
            await world.send(log, "t", b"1")
            world.cut(leader, coordinator)
            await world.send(log, "t", b"2")
            is_sealing = asyncio.Event()
            seal = Attempt._seal

            async def when_the_power_is_gone(attempt: Attempt, *args: Any) -> Any:
                if not is_sealing.is_set():
                    world.cut(coordinator, fenced)
                    world.nodes[fenced].lose_power(Loss.ALL)
                    is_sealing.set()
                return await seal(attempt, *args)

            with mock.patch.object(Attempt, "_seal", when_the_power_is_gone):
                broker = world.nodes[coordinator].running
                broker.replication.recoveries.begin(world.topic(coordinator).state)
                await is_sealing.wait()
            await world.nodes[fenced].start()
            late = asyncio.ensure_future(world.send(log, "t", b"3"))
            await asyncio.wait([late], timeout=10)
            world.heal(coordinator, fenced)
            await world.until(lambda: world.segment(number=1, seen_by=coordinator).is_sealed)
            world.network.heal()
            await late
        await world.judge("t")

    play(script, election_min_ms=30_000, election_max_ms=40_000)


def a_leader_is_started_again_before_its_own_disk_has_what_a_follower_has() -> None:
    """A3, the interleaving of the rules: a frame reaches one follower, the leader loses power before its own
    sync, and gives the offset to another record, with the other follower."""

    async def script(world: World) -> None:
        leader, (ahead, other) = await world.make_topic()
        await world.elect(other)  # whom the leader finds when it is back
        segment = world.segment()
        async with world.at(leader) as log:
            await world.send(log, "t", b"1")
        world.cut(leader, other)
        world.write_in_a_worker(leader)
        world.nodes[leader].disk.slow(3.0)
        async with world.at(leader) as log:
            lost = asyncio.ensure_future(world.send(log, "t", b"only at one follower"))
            await world.until(lambda: world.end_on(ahead, segment) == 2)
            world.nodes[leader].lose_power(Loss.ALL)
            world.nodes[leader].disk.faults.clear()
            world.cut(leader, ahead)
            world.heal(leader, other)
            await world.nodes[leader].start()
            async with world.at(leader, "client-2.y") as again:
                sending = asyncio.ensure_future(world.send(again, "t", b"another record", session="y"))
                await asyncio.sleep(8)
                world.network.heal()
                await sending
            await lost
        await world.judge("t")

    play(script, failover_after_ms=20_000)  # nobody but itself sees that it is gone


def a_leader_fails_to_sync_what_one_follower_has() -> None:
    """P1: one follower is cut off, so that the leader's own copy counts, and that one was not synced."""

    async def script(world: World) -> None:
        leader, (_, behind) = await world.make_topic()
        path = world.path(world.segment())
        async with world.at(leader) as log:
            await world.send(log, "t", b"1")
            world.cut(leader, behind)
            world.nodes[leader].disk.faults.add("sync", prefix=path, count=1)
            sending = asyncio.ensure_future(world.send(log, "t", b"2"))
            await asyncio.sleep(5)
            world.network.heal()
            await sending
        await world.judge("t")

    play(script, seed=1)  # its dice let nothing of it reach the platter


def an_append_is_sent_again_while_nobody_answers_its_leader() -> None:
    """A5: the frame is in the leader's log and nowhere else when its repeat comes; then that one is lost."""

    async def script(world: World) -> None:
        leader, followers = await world.make_topic()
        async with world.at(leader) as log:
            await world.send(log, "t", b"1")
            for follower in followers:
                world.cut(leader, follower)
            sending = asyncio.ensure_future(world.send(log, "t", b"2"))
            await asyncio.sleep(9)  # the client has given its first attempt up by then, and sent it again
            world.nodes[leader].lose_power(Loss.NONE)
            world.network.heal()
            await asyncio.sleep(5)
            await world.nodes[leader].start()
            await sending
        await world.judge("t")

    play(script, quorum_timeout_ms=30_000, failover_after_ms=30_000)


def an_old_leader_comes_back_with_a_tail() -> None:
    """F3: it had appended what nobody else got, the others went on, and readers come to it again."""

    async def script(world: World) -> None:
        leader, followers = await world.make_topic()
        segment = world.segment()
        async with world.at(leader) as log, world.at(followers[0], "client-2.y") as elsewhere:
            await world.send(log, "t", b"1")
            await asyncio.sleep(0.2)
            for follower in followers:
                world.cut(leader, follower)
            tail = asyncio.ensure_future(world.send(log, "t", b"nobody else has it", b"nor this"))
            await world.until(lambda: world.end_on(leader, segment) == 3)
            world.nodes[leader].kill()
            await world.until(lambda: world.segment(seen_by=followers[0]).segment == 2)
            await world.send(elsewhere, "t", b"2", b"3", session="y")
            world.network.heal()
            await world.nodes[leader].start()
            await tail
            await asyncio.sleep(3)
        await world.judge("t")

    play(script)


def a_short_copy_is_completed_while_its_source_is_rotten() -> None:
    """A corrupt copy is replaced, and is nobody's source."""

    async def script(world: World) -> None:
        leader, (follower, _) = await world.make_topic(segment_records=4)
        async with world.at(leader) as log:
            for number in range(5):
                await world.send(log, "t", b"%d" % number * 20)
        await world.until(lambda: world.segment(number=1).is_sealed)
        await asyncio.sleep(2)
        sealed, topic = world.segment(number=1), world.topic(leader).state
        path = world.path(sealed) + ".log"
        world.nodes[follower].kill()
        world.nodes[follower].disk.tear(path, 10)
        world.nodes[leader].disk.rot(path, sealed.end_position - 5)
        await world.nodes[follower].start()
        await world.nodes[follower].running.metadata.announced.wait()
        member = world.nodes[follower].running.metadata.member
        await world.until(lambda: world.watch.copies.is_whole(member, topic, sealed))
        await world.judge("t")

    play(script, scrub_bytes_per_second=0)


def the_coordinator_is_behind_and_alone() -> None:
    """F2: the two that have what was acknowledged are away. Its own log is short, and it must wait."""

    async def script(world: World) -> None:
        leader, (ahead, behind) = await world.make_topic()
        segment = world.segment()
        async with world.at(ahead) as log, world.at(behind, "client-2.y") as elsewhere:
            await world.send(log, "t", b"1")
            world.cut(leader, behind)
            await world.send(log, "t", b"2")
            world.nodes[leader].kill()
            world.nodes[ahead].kill()
            world.forget_what_is_on_the_wire(leader, behind)
            world.network.heal()
            await asyncio.sleep(8)
            await world.nodes[ahead].start()
            await world.until(lambda: world.segment(number=segment.segment, seen_by=behind).is_sealed)
            await world.nodes[leader].start()
            await world.send(elsewhere, "t", b"3", session="y")
        await world.judge("t")

    play(script, size=5)
