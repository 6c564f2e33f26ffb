"""Bugs that the simulation of replicated clusters has found, each as the shortest story that shows it."""

from __future__ import annotations

import asyncio
import errno
from typing import Any
from unittest import mock

import pytest

from ister.broker.topic.sealing import seen_by
from ister.errors import NotLeader, StorageFailed
from ister.metadata.placement import replicas_of
from ister.peers import Peers
from ister.protocol.codec import encode_header
from ister.protocol.peer import PeerKind
from ister.protocol.replication import Fence, ReadLog
from ister.raft import driver
from ister.replication.recovery.recovering import Attempt
from ister.testing import Loss
from tests.replicas_sim.small import World, play


async def never(attempt: Attempt, *args: Any) -> Any:
    """In the place of a step that never ends."""
    await asyncio.sleep(1000)


def all_are_acknowledged(world: World) -> bool:
    return all(send.offsets for send in world.history.sends)


def test_a_follower_answers_while_an_append_is_queued() -> None:
    """What is queued and not taken by a cycle is not in the hot tail: the frame before it was sent again, as
    if it followed itself."""

    async def script(world: World) -> None:
        leader, _ = await world.make_topic()
        world.write_in_a_worker(leader)
        world.nodes[leader].disk.slow(0.5)
        async with world.at(leader) as log:
            sending = []
            for number in range(4):
                sending.append(asyncio.ensure_future(world.send(log, "t", b"%d" % number)))
                await asyncio.sleep(0.1)
            await asyncio.gather(*sending)
        await world.judge("t")

    play(script)


def test_a_recovery_whose_coordinator_died_is_taken_up_after_a_restart_of_all() -> None:
    """Nobody had seen it begin: what a process applied before its start is not told to it again."""

    async def script(world: World) -> None:
        leader, _ = await world.make_topic()
        async with world.at(1) as log:
            await world.send(log, "t", b"1")

        with mock.patch.object(Attempt, "_fence", never):
            world.nodes[leader].kill()
            others = [number for number in world.nodes if number != leader]
            await world.until(lambda: all(world.segment(seen_by=other).recovery for other in others))
            async with world.at(others[0]) as log:
                for number in range(30):  # a snapshot has it, and not the log
                    await log.alter_topic("t", segment_records=100 + number)
            await world.agree()
        for number in others:
            world.nodes[number].kill()
        for node in world.nodes.values():
            await node.start()
        async with world.at(1) as log:
            await world.send(log, "t", b"2", session="y")
        assert all_are_acknowledged(world)
        await world.judge("t")

    with mock.patch.object(driver, "KEPT_BEHIND_SNAPSHOT", 0):
        play(script, snapshot_entries=10)


def test_a_copy_is_not_asked_for_what_is_not_known_to_be_sealed() -> None:
    """A node that had not heard of a seal yet was asked for the segment, and fenced it under number 0."""

    async def script(world: World) -> None:
        leader, (follower, _) = await world.make_topic()
        async with world.at(leader) as log:
            await world.send(log, "t", b"1")
        segment, uid = world.segment(), world.topic(follower).state.uid
        copies = world.nodes[follower].running.replication.copies
        with pytest.raises(NotLeader):
            await copies.read(ReadLog(uid, segment.uid, 0, 1000))
        assert not world.nodes[follower].disk.exists(world.path(segment) + ".fence")
        await world.judge("t")

    play(script)


def test_a_segment_is_never_opened_on_fewer_disks_than_a_majority_of_what_its_topic_wants() -> None:
    """Who seemed silent at a seal was left out: the next segment was on one disk, and went with it."""

    async def script(world: World) -> list[int]:
        leader, _ = await world.make_topic()
        with mock.patch.object(Peers, "is_alive", lambda peers, member: False):
            broker = world.nodes[leader].running
            return replicas_of(broker.metadata.member, 3, "t", seen_by(broker.storage))

    assert len(play(script)) == 2


def test_a_follower_whose_write_failed_is_not_in_doubt_while_it_lives() -> None:
    """It knows what it has synced. Taken for a torn tail, what the failed write had left made it count for
    nothing; and with the leader's disk lost, nobody was left to say what was acknowledged."""

    async def script(world: World) -> None:
        leader, (follower,) = await world.make_topic()
        async with world.at(follower) as log:
            await world.send(log, "t", b"1")
            disk = world.nodes[follower].disk
            disk.faults.add("write", suffix=".log", prefix="segments/", error=errno.EIO)
            with mock.patch.object(disk._random, "randrange", lambda count: count // 2):  # of its bytes
                sending = asyncio.ensure_future(world.send(log, "t", b"2"))
                await asyncio.sleep(0.5)
            disk.faults.clear()
            world.lose_disk(leader)
            await world.until(lambda: world.segment(seen_by=follower).segment > 1)
            await world.nodes[leader].start()
            await sending
        await world.judge("t")

    play(script, replicas=2)


def test_a_leader_that_learns_of_its_successor_by_a_snapshot_passes_on_what_it_holds() -> None:
    """Neither the recovery nor the seal was told to it: it went on to take what nobody would answer."""

    async def script(world: World) -> None:
        leader, followers = await world.make_topic(segment_records=2)
        await world.elect(followers[0])
        async with world.at(leader) as log, world.at(followers[0], "client-2.y") as elsewhere:
            await world.send(log, "t", b"first")
            for follower in followers:
                world.cut(leader, follower)
            held = asyncio.ensure_future(world.send(log, "t", b"held"))
            for number in range(30):
                await world.send(elsewhere, "t", b"%d" % number, session="y")
            stale = world.topic(leader).led.leading
            assert stale is not None
            # No follower comes to tell it before the metadata does.
            with mock.patch.object(stale, "answered"):
                for follower in followers:
                    world.forget_what_is_on_the_wire(leader, follower)
                world.network.heal()
                await held
            await world.send(log, "t", b"last")
        assert all_are_acknowledged(world)
        await world.judge("t")

    with mock.patch.object(driver, "KEPT_BEHIND_SNAPSHOT", 0):
        play(script, snapshot_entries=10, quorum_timeout_ms=60_000)


def test_a_rotten_body_is_not_served_and_the_copy_is_mended() -> None:
    """Only headers were looked at on the way out: it was the reader who was told, and nobody mended it."""

    async def script(world: World) -> None:
        leader, _ = await world.make_topic(segment_records=4)
        async with world.at(leader) as log:
            for number in range(6):
                await world.send(log, "t", b"%d" % number * 10)
        await world.until(lambda: world.segment(number=1).is_sealed)
        await asyncio.sleep(2)
        sealed = world.segment(number=1)
        path, topic = world.path(sealed) + ".log", world.topic(leader).state
        member = world.nodes[leader].running.metadata.member
        world.nodes[leader].disk.rot(path, sealed.end_position - 2)
        assert not world.watch.copies.is_whole(member, topic, sealed)
        await world.judge("t")
        await world.until(lambda: world.watch.copies.is_whole(member, topic, sealed))

    play(script, hot_tail_bytes=0, scrub_bytes_per_second=0)


def test_a_leader_whose_own_log_rots_gives_it_up() -> None:
    """Others have it whole, and end the segment."""

    async def script(world: World) -> None:
        leader, _ = await world.make_topic()
        async with world.at(leader) as log:
            await world.send(log, "t", b"1" * 50)
            await world.send(log, "t", b"2" * 50)
        path = world.path(world.segment()) + ".log"
        world.nodes[leader].disk.rot(path, 100)
        assert await world.read(leader, "t") == [b"1" * 50, b"2" * 50]
        assert world.segment().segment == 2
        await world.judge("t")

    play(script, hot_tail_bytes=0)


def test_rot_that_a_search_by_time_meets_is_not_told_to_the_reader() -> None:
    """The open segment's leader said that it is damaged, and went on with it."""

    async def script(world: World) -> None:
        leader, _ = await world.make_topic()
        async with world.at(leader) as log:
            await world.send(log, "t", b"1" * 50)
            path = world.path(world.segment()) + ".log"
            world.nodes[leader].disk.rot(path, 8)
            assert await log.offsets_at("t", 1) == 0
        await world.until(lambda: world.segment().segment == 2)
        await world.judge("t")

    play(script)


def test_a_fence_that_the_disk_refuses_is_an_answer() -> None:
    """Whoever asked waited for five seconds, and an error without an owner was in the log."""

    async def script(world: World) -> None:
        leader, (follower, _) = await world.make_topic()
        async with world.at(leader) as log:
            await world.send(log, "t", b"1")
        broker, uid = world.nodes[follower].running, world.topic(follower).state.uid
        world.nodes[follower].disk.faults.add("write", suffix=".fence.new", count=1)
        with mock.patch.object(Attempt, "_fence", never):
            broker.replication.recoveries.begin(world.topic(follower).state)
            await world.until(lambda: world.segment(seen_by=follower).recovery > 0)
            segment = world.segment(seen_by=follower)
            with pytest.raises(StorageFailed):
                header = encode_header(Fence(uid, segment.uid, segment.recovery))
                await broker.replication.serve(PeerKind.FENCE, header)
        async with world.at(leader) as log:
            await world.send(log, "t", b"2", session="y")
        await world.judge("t")

    play(script)


def test_a_power_cut_right_after_a_seal_leaves_a_copy_that_is_completed() -> None:
    async def script(world: World) -> None:
        leader, (follower, _) = await world.make_topic(segment_records=3)
        async with world.at(leader) as log:
            await world.send(log, "t", b"1", b"2")
            world.cut(leader, follower)
            await world.send(log, "t", b"3", b"4")
            world.nodes[follower].lose_power(Loss.ALL)
            world.network.heal()
            await world.nodes[follower].start()
            await world.send(log, "t", b"5")
        await world.judge("t")
        topic = world.topic(follower).state
        member = world.nodes[follower].running.metadata.member
        await world.until(lambda: world.watch.copies.is_whole(member, topic, world.segment(number=1)))

    play(script)
