"""Sealed segments that lost a replica get another one: simulated clusters."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest

from ister.metadata.commands import Result, SetReplicas
from ister.metadata.state import SegmentState
from ister.protocol.peer import PeerKind
from ister.replication.copies import guests, repair
from ister.testing.cluster import World, WorldNode, read_all, run_story
from tests.replication.repair_helpers import (
    come_back_wiped,
    fill,
    has_files,
    holders,
    is_healed,
    is_whole,
    newest,
    numbers,
    path_of,
    replicas_of,
    sealed,
    until,
)


def test_a_node_that_comes_back_on_another_disk_gets_all_sealed_segments_again() -> None:
    async def story(world: World) -> None:
        await fill(world, 30)
        before = {segment.uid: segment.replicas for segment in sealed(world)}
        lost = world.nodes[3]
        old = lost.member
        await come_back_wiped(world, lost)
        await until(lambda: is_healed(world))
        for segment in sealed(world):
            assert old not in segment.replicas and lost.member in segment.replicas
            if segment.uid in before:
                assert old in before[segment.uid]
        async with world.connect(3) as log:
            assert await read_all(log, "t") == numbers(30)

    run_story(story, replicas=3, segment_records=4)


def test_a_silent_node_is_replaced_when_there_is_another_and_lets_go_of_its_files_when_it_is_back() -> None:
    async def story(world: World) -> None:
        await fill(world, 24)
        silent = world.nodes[2]
        mine = [one for one in sealed(world) if silent.member in one.replicas]
        assert mine
        member = silent.member
        silent.kill()
        await asyncio.sleep(15)
        now = {one.uid: one for one in sealed(world)}
        assert all(now[one.uid].replicas == one.replicas for one in mine), "it is waited for"
        await until(lambda: is_healed(world))
        assert not any(member in one.replicas for one in sealed(world))
        assert all(has_files(world, silent, one) for one in mine)
        await silent.start()
        await until(lambda: not any(has_files(world, silent, one) for one in mine))
        assert is_healed(world)
        async with world.connect(2) as log:
            assert await read_all(log, "t") == numbers(24)

    run_story(story, nodes=4, replicas=3, segment_records=4, repair_after_ms=30_000)


def test_a_silent_node_that_comes_back_in_time_stays() -> None:
    async def story(world: World) -> None:
        await fill(world, 12)
        before = {one.uid: one.replicas for one in sealed(world)}
        world.nodes[2].kill()
        await asyncio.sleep(15)
        await world.nodes[2].start()
        await asyncio.sleep(60)
        assert {one.uid: one.replicas for one in sealed(world) if one.uid in before} == before

    run_story(story, nodes=4, replicas=3, segment_records=4, repair_after_ms=30_000)


def test_a_running_node_that_is_dropped_removes_its_files_at_once_and_is_read_past() -> None:
    async def story(world: World) -> None:
        await fill(world, 12)
        segment = sealed(world)[0]
        node, other = (world.nodes[number] for number in holders(segment)[:2])
        uid = newest(world).topic("t").state.uid
        kept = [member for member in segment.replicas if member != node.member]
        before = list(segment.replicas)
        # Three replicas are wanted, so that it is brought back in the end; it must have gone before.
        outcome = await other.broker.metadata.propose(SetReplicas(uid, segment.segment, before, kept))
        assert outcome.result is Result.APPLIED
        await until(lambda: not has_files(world, node, segment), seconds=3)
        async with world.connect(node.node_id) as log:
            assert await read_all(log, "t") == numbers(12)
        await until(lambda: is_healed(world))

    run_story(story, replicas=3, segment_records=4)


def test_files_of_a_dropped_replica_are_removed_at_the_next_start_and_no_others() -> None:
    async def story(world: World) -> None:
        await fill(world, 12)
        away = world.nodes[3]
        dropped, *rest = [one for one in sealed(world) if away.member in one.replicas]
        opened = newest(world).topic("t").state.open_segment
        away.kill()
        uid = newest(world).topic("t").state.uid
        kept = [member for member in dropped.replicas if member != away.member]
        command = SetReplicas(uid, dropped.segment, dropped.replicas, kept)
        assert (await world.nodes[1].broker.metadata.propose(command)).result is Result.APPLIED
        path = path_of(world, dropped)
        for suffix in (".fence", ".copy.log", ".doubt"):
            away.disk.open(path + suffix, create=True).close()
        had = set(away.disk.list(path.rpartition("/")[0]))
        await away.start()
        await until(lambda: not has_files(world, away, dropped))
        gone = had - set(away.disk.list(path.rpartition("/")[0]))
        assert gone and all(name.startswith(path.rpartition("/")[2]) for name in gone)
        assert all(has_files(world, away, one) for one in rest)
        assert has_files(world, away, opened) == (away.member in opened.replicas)

    with mock.patch.object(repair, "CHECK_SECONDS", 3600):  # and so nobody brings it back at once
        run_story(story, replicas=3, segment_records=4, failover_after_ms=60_000, repair_after_ms=600_000)


async def repair_in_the_middle(world: World, segment: SegmentState) -> tuple[WorldNode, asyncio.Lock]:
    """The last replica dies. Returns when a node was asked to copy the segment, and is held up in that."""
    spare = [node for node in world.up if node.member not in segment.replicas]
    for node in spare:
        await node.broker.replication.guests._turn.acquire()
    world.nodes[holders(segment)[2]].kill()
    await until(lambda: any(node.broker.replication.guests.has(segment.uid) for node in spare))
    target = next(node for node in spare if node.broker.replication.guests.has(segment.uid))
    for node in spare:
        if node is not target:
            node.broker.replication.guests._turn.release()
    return target, target.broker.replication.guests._turn


def test_the_death_of_the_repairing_node_in_the_middle_leaves_the_repair_to_the_next() -> None:
    async def story(world: World) -> None:
        await fill(world, 8)
        segment = sealed(world)[0]
        first, second, _ = (world.nodes[number] for number in holders(segment))
        target, turn = await repair_in_the_middle(world, segment)
        first.kill(power=True)
        turn.release()
        await until(
            lambda: is_whole(world, target, segment) and target.member in replicas_of(world, segment.uid)
        )
        await first.start()
        await until(lambda: is_healed(world))
        async with world.connect(second.node_id) as log:
            assert await read_all(log, "t") == numbers(8)

    run_story(story, nodes=5, replicas=3, segment_records=4, repair_after_ms=5_000)


def test_a_target_that_dies_with_its_copy_is_replaced_by_another() -> None:
    async def story(world: World) -> None:
        await fill(world, 8)
        segment = sealed(world)[0]
        target, _ = await repair_in_the_middle(world, segment)
        target.kill(power=True)
        await until(lambda: is_healed(world))
        assert target.member not in replicas_of(world, segment.uid)

    run_story(story, nodes=5, replicas=3, segment_records=4, repair_after_ms=5_000)


@pytest.mark.slow
def test_several_that_repair_the_same_segment_make_one_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """F4: whoever comes second finds the list changed. Here all replicas think that it is their turn."""
    monkeypatch.setattr(repair, "TURN_SECONDS", 0.0)

    async def story(world: World) -> None:
        await fill(world, 40)
        world.nodes[1].kill()
        await until(lambda: is_healed(world))
        for segment in sealed(world):
            assert len(set(segment.replicas)) == 3
        repairs = [node.broker.replication.repairs for node in world.up]
        assert sum(one.repaired.value for one in repairs) <= len(sealed(world))
        await asyncio.sleep(guests.UNASKED_SECONDS + 2 * guests.SWEEP_SECONDS)
        for segment in sealed(world):  # and nobody keeps what it copied in vain
            for node in world.up if not segment.is_empty else ():
                assert has_files(world, node, segment) == (node.member in segment.replicas)

    run_story(story, nodes=5, replicas=3, segment_records=4, repair_after_ms=5_000)


def test_a_copy_that_nobody_asks_for_any_more_is_given_up() -> None:
    async def story(world: World) -> None:
        await fill(world, 8)
        segment = sealed(world)[0]
        target, turn = await repair_in_the_middle(world, segment)
        guests_of = target.broker.replication.guests
        for node in world.up:
            if node is not target:
                node.kill()
        turn.release()
        await until(lambda: has_files(world, target, segment))
        await until(lambda: not guests_of.has(segment.uid))
        await asyncio.sleep(10)
        assert has_files(world, target, segment), "nobody has said that it is whole elsewhere"
        for number in holders(segment):
            await world.nodes[number].start()
        await until(lambda: not has_files(world, target, segment))
        assert replicas_of(world, segment.uid) == segment.replicas

    run_story(story, nodes=4, replicas=3, segment_records=4, repair_after_ms=5_000)


def test_a_change_that_comes_after_the_copy_was_given_up_is_made_good() -> None:
    """A proposal may be applied long after it was made: the new replica finds that it has nothing."""

    async def story(world: World) -> None:
        await fill(world, 8)
        segment = sealed(world)[0]
        target = next(node for node in world.up if node.member not in segment.replicas)
        replicas = [*segment.replicas[:2], target.member]
        uid = newest(world).topic("t").state.uid
        command = SetReplicas(uid, segment.segment, segment.replicas, replicas)
        assert (await world.nodes[1].broker.metadata.propose(command)).result is Result.APPLIED
        await until(lambda: is_healed(world))
        assert target.member in replicas_of(world, segment.uid)

    run_story(story, nodes=4, replicas=3, segment_records=4, scrub_bytes_per_second=0)


def test_a_topic_that_wants_more_replicas_gets_them_for_what_is_sealed_too() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.create_topic("t", replicas=1)
            for value in numbers(12):
                await log.append("t", [value])
            await log.alter_topic("t", replicas=3)
            await until(lambda: is_healed(world))
            await log.alter_topic("t", replicas=2)
            await until(lambda: is_healed(world, copies=2))
            await until(
                lambda: all(
                    has_files(world, node, segment) == (node.member in segment.replicas)
                    for segment in sealed(world)
                    for node in world.up
                )
            )
            assert await read_all(log, "t") == numbers(12)

    run_story(story, replicas=3, segment_records=4)


def test_a_node_that_is_asked_about_its_copy_says_whether_it_is_whole() -> None:
    """Nobody is dropped from a list that is too long before those that stay have said so."""

    async def story(world: World) -> None:
        await fill(world, 8)
        segment = sealed(world)[0]
        asked: list[int] = []
        for node in world.up:
            replication = node.broker.replication

            async def ask(
                member: int, kind: PeerKind, header: bytes, timeout: float, to: Any = replication
            ) -> bytes:
                if kind is PeerKind.COPY:
                    asked.append(member)
                return bytes((await to._peers.request(member, kind, header, timeout=timeout)).header)

            replication.ask = ask  # type: ignore[method-assign]
        extra = next(node for node in world.up if node.member not in segment.replicas)
        replicas = [*segment.replicas, extra.member]
        uid = newest(world).topic("t").state.uid
        command = SetReplicas(uid, segment.segment, segment.replicas, replicas)
        assert (await world.nodes[1].broker.metadata.propose(command)).result is Result.APPLIED
        await until(lambda: len(replicas_of(world, segment.uid)) == 3)
        assert set(replicas[1:3]) <= set(asked)
        await until(lambda: not has_files(world, extra, segment))

    run_story(story, nodes=4, replicas=3, segment_records=4)
