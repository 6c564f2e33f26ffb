"""Reads of an open segment from nodes that follow it (F5): what is committed, never less than was seen."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

import ister
from ister.errors import BadRequest
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.messages import Fetch, FetchAnswer, Kind
from ister.protocol.replication import Replicated
from ister.testing import VirtualLoop, simulate
from ister.testing.cluster import World, WorldNode, run_story
from ister.wal.followed import FollowedSegment
from ister.wal.group_commit import GroupCommit
from ister.wal.leases import Leases
from ister.wal.opening import recover
from ister.wal.segment import FsyncPolicy
from ister.wal.tail import HotTail
from tests.replication.log_helpers import IDENTITY, leader_frames, new_disk, put_log
from tests.replication.test_three_replicas import agree, numbers


def figure(node: WorldNode, name: str) -> float:
    return node.broker.metrics.values()[name]


def followers(world: World, topic: str) -> list[WorldNode]:
    leader = world.leader_of(topic)
    replicas = leader.topic(topic).state.open_segment.replicas
    return [node for node in world.up if node is not leader and node.member in replicas]


async def read(log: ister.Log, start: int, end: int) -> list[bytes | None]:
    """Without asking anybody where the topic ends."""
    return [record.value async for record in log.read("t", start=start, end=end, read_from="any")]


async def fetch(log: ister.Log, offset: int, *, wait_ms: int = 0) -> tuple[FetchAnswer, int]:
    """One answer, and how many bytes of frames came with it."""
    request = Fetch("default/t", offset, 1 << 20, wait_ms, read_from_any=True)
    answer = await log.requests.call("a fetch", Kind.FETCH, encode_header(request), wait_s=wait_ms / 1000)
    return decode_header(FetchAnswer, answer.header), len(answer.payload)


def test_a_follower_answers_from_its_own_copy() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await log.append("t", numbers(20))
        await agree(world, "t", 20)
        follower = followers(world, "t")[0]
        async with world.connect(follower.node_id) as log:
            assert await read(log, 0, 20) == numbers(20)
            told, _ = await fetch(log, 0)
        assert (told.served_by, told.end_offset) == (follower.node_id, 20)
        assert figure(follower, "forwarded_requests_total") == 0
        assert figure(world.leader_of("t"), "records_out_total") == 0

    run_story(story, replicas=3)


def test_the_leader_answers_unless_any_replica_may() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await log.append("t", numbers(20))
        await agree(world, "t", 20)
        follower = followers(world, "t")[0]
        async with world.connect(follower.node_id) as log:
            assert [record.value async for record in log.read("t", start=0, end=20)] == numbers(20)
        assert figure(follower, "records_out_total") == 0

    run_story(story, replicas=3)


def test_a_reader_that_waits_at_a_follower_gets_what_comes() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await log.append("t", numbers(1))
            await agree(world, "t", 1)
            follower = followers(world, "t")[0]
            async with world.connect(follower.node_id) as reading:
                records = aiter(reading.read("t", start=0, follow=True, read_from="any"))
                found = [(await anext(records)).value]
                for number in range(1, 10):
                    await log.append("t", numbers(1, number))
                    found.append((await anext(records)).value)
        assert found == numbers(10)
        assert figure(follower, "forwarded_requests_total") == 0

    run_story(story, replicas=3)


def test_what_a_follower_has_synced_and_nobody_has_committed_is_not_read() -> None:
    """F5. The leader does not hear how far they are: both followers have the record, and it is not
    committed."""

    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await log.append("t", numbers(5))
            await agree(world, "t", 5)
            leader, follower = world.leader_of("t"), followers(world, "t")[0]
            uid = leader.topic("t").state.open_segment.uid
            streams = leader.broker.replication.streams
            heard = streams.answered

            def say_only_who_follows(member: int, header: bytes) -> None:
                answer = decode_header(Replicated, header)
                if answer.question:
                    heard(member, encode_header(replace(answer, end_offset=5)))

            streams.answered = say_only_who_follows  # type: ignore[method-assign]
            appending = asyncio.get_running_loop().create_task(log.append("t", numbers(1, 5)))
            copy = follower.broker.replication.copies.follower(uid)
            assert copy is not None
            async with asyncio.timeout(4):
                while copy.durable_end < 6:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert not appending.done()
            async with world.connect(follower.node_id) as reading:
                told, size = await fetch(reading, 5)
                assert (told.end_offset, size) == (5, 0)
                streams.answered = heard  # type: ignore[method-assign]
                await log.append("t", numbers(1, 6))
                await appending
                assert await read(reading, 5, 7) == numbers(2, 5)

    run_story(story, replicas=3)


def test_a_follower_that_is_behind_the_reader_asks_the_leader() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await log.append("t", numbers(5))
            await agree(world, "t", 5)
            leader, behind = world.leader_of("t"), followers(world, "t")[0]
            stop_sending(leader, behind)
            await log.append("t", numbers(10, 5))
            async with world.connect(behind.node_id) as reading:
                assert await read(reading, 7, 15) == numbers(8, 7)
                told, size = await fetch(reading, 5)
                assert (told.served_by, told.end_offset) == (behind.node_id, 15)
                assert size

    run_story(story, replicas=3)


def test_a_reader_at_a_follower_that_hears_nothing_more_is_not_left_waiting() -> None:
    """The follower takes its silence for the end; when the wait is over the leader is asked."""

    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await log.append("t", numbers(5))
            await agree(world, "t", 5)
            leader, behind = world.leader_of("t"), followers(world, "t")[0]
            stop_sending(leader, behind)
            await log.append("t", numbers(3, 5))
            async with world.connect(behind.node_id) as reading:
                records = aiter(reading.read("t", start=5, follow=True, read_from="any"))
                assert [(await anext(records)).value for _ in range(3)] == numbers(3, 5)

    run_story(story, replicas=3)


def test_a_node_without_a_replica_passes_such_a_read_to_a_follower() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await log.append("t", numbers(20))
        leader = world.leader_of("t")
        replicas = leader.topic("t").state.open_segment.replicas
        other = next(node for node in world.up if node.member not in replicas)
        async with asyncio.timeout(10):
            while any(  # noqa: ASYNC110
                (copy := node.topic("t").places.followed) is None or copy.committed_end < 20
                for node in followers(world, "t")
            ):
                await asyncio.sleep(0.01)
        async with world.connect(other.node_id) as log:
            assert await read(log, 0, 20) == numbers(20)
        assert figure(leader, "records_out_total") == 0

    run_story(story, nodes=4, replicas=3)


def test_a_reader_goes_on_through_the_death_of_the_node_it_reads_from_and_of_the_leader() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log, world.connect() as reading:
            await log.append("t", numbers(5))
            await agree(world, "t", 5)
            records = aiter(reading.read("t", start=0, follow=True, read_from="any"))
            found = [(await anext(records)).value for _ in range(5)]
            for first, victim in ((5, "leader"), (25, "follower")):
                node = world.leader_of("t") if victim == "leader" else followers(world, "t")[0]
                node.kill()
                await log.append("t", numbers(10, first))
                await node.start()
                await world.settle()
                await log.append("t", numbers(10, first + 10))
                found += [(await anext(records)).value for _ in range(20)]
        assert found == numbers(45)

    run_story(story, replicas=3)


def test_a_damaged_copy_of_an_open_segment_sends_its_readers_to_the_leader() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await log.append("t", numbers(5))
            await agree(world, "t", 5)
        leader, follower = world.leader_of("t"), followers(world, "t")[0]
        state = leader.topic("t").state
        segment = state.open_segment
        copy = follower.topic("t").places.followed
        assert copy is not None
        copy.tail.clear()
        path = f"segments/{state.uid:016d}/{segment.segment:08d}-{segment.uid:016d}.log"
        follower.disk.rot(path, 2)
        async with world.connect(follower.node_id) as reading:
            assert await read(reading, 0, 5) == numbers(5)
        assert figure(leader, "records_out_total") > 0

    run_story(story, replicas=3)


def test_what_an_earlier_process_of_a_follower_synced_is_committed_when_the_leader_says_so() -> None:
    """F5. It may have been sent what nobody has committed, and the promise of F3 is about what it knows."""

    async def work(loop: VirtualLoop) -> None:
        disk = new_disk().mount()
        frames = leader_frames(4)
        put_log(disk, b"".join(frames))
        copy = FollowedSegment(
            IDENTITY,
            recover(disk, IDENTITY, [], 0, is_follower=True),
            owner=_Nobody(),
            leases=Leases(),
            commits=GroupCommit(disk, interval_ms=100),
            tail=HotTail(1 << 20).of_segment(),
            policy=FsyncPolicy.FSYNC,
        )
        end = IDENTITY.base_offset + 12
        assert (copy.durable_end, copy.committed_end, copy.known_commit) == (end, 100, 100)
        copy.commit_told(end - 3)
        assert (copy.committed_end, copy.known_commit) == (100, end - 3)
        copy.commit_told(end)
        assert copy.committed_end == end

    simulate(work, seed=1)


def test_there_is_no_other_place_to_read_from() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            with pytest.raises(BadRequest, match="read_from is 'nearest'"):
                log.read("t", read_from="nearest")

    run_story(story)


class _Nobody:
    def committed(self, segment: object) -> None: ...

    def failed(self, segment: object, job: object) -> None: ...

    def stopped(self, segment: object) -> None: ...


def stop_sending(leader: WorldNode, follower: WorldNode) -> None:
    """Frames and news of commits to this follower are lost on the way; all else goes on."""
    streams = leader.broker.replication.streams
    send = streams.send

    def lossy(member: int, *args: Any) -> None:
        if member != follower.member:
            send(member, *args)

    streams.send = lossy  # type: ignore[assignment,method-assign]
