"""Interleavings of handoffs that dice seldom reach, one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ister.errors import RequestTimeout
from ister.metadata.commands import Command, Outcome, Result, SealSegment
from ister.raft import driver
from ister.testing.checkers import check_history
from tests.cluster.node import ClusterNode
from tests.cluster.small import World, play


def keep_back_seals(node: ClusterNode) -> list[SealSegment]:
    """From now on this process's seals go nowhere: they are on the wire, as far as it knows."""
    kept: list[SealSegment] = []
    metadata = node.running.metadata
    propose = metadata.propose

    async def delayed(command: Command, *args: Any, **options: Any) -> Outcome:
        if isinstance(command, SealSegment):
            kept.append(command)
            await asyncio.sleep(5)
            raise RequestTimeout("nobody knows")
        return await propose(command, *args, **options)

    metadata.propose = delayed  # type: ignore[method-assign]
    return kept


async def lead_elsewhere(world: World, topic: str = "t", **settings: Any) -> tuple[int, int]:
    """A topic, the node that leads it, and another one that leads the metadata."""
    async with world.at(1) as log:
        await log.create_topic(topic, **settings)
    await world.agree()
    leader = world.leader(topic)
    other = next(number for number in world.nodes if number != leader)
    await world.elect(other)
    return leader, other


def test_a_seal_that_a_dead_process_proposed_does_not_cut_what_its_successor_appends() -> None:
    """Promise 4: the proposal is on its way while its process is killed and started again, and arrives when
    the segment has grown past the end that it names."""

    async def script(world: World) -> Result:
        leader, other = await lead_elsewhere(world, segment_records=3)
        kept = keep_back_seals(world.nodes[leader])
        async with world.at(other) as log:
            await world.send(log, "t", b"1", b"2", b"3")
            await world.until(lambda: bool(kept))
            world.nodes[leader].kill()
            await world.nodes[leader].start()
            await log.alter_topic("t", segment_records=100)
            await world.send(log, "t", b"4", b"5")
            assert kept[0].end_offset == 3
            outcome = await world.nodes[other].running.metadata.propose(kept[0])
            await world.send(log, "t", b"6")
        await world.judge("t")
        return outcome.result

    assert play(script) is Result.REFUSED


def test_a_start_that_could_not_be_numbered_on_a_full_disk_is_another_start_all_the_same() -> None:
    """As above, but the number of the start is not written, for the disk is full: the next process reads the
    same old number, and must still not be taken for the one before it."""

    async def script(world: World) -> None:
        leader, other = await lead_elsewhere(world, segment_records=3)
        node = world.nodes[leader]
        async with world.at(other) as log:
            await world.send(log, "t", b"1")
            node.kill()
            node.disk.capacity -= node.disk.free_bytes()
            await node.start()
            await node.running.metadata.announced.wait()
            node.disk.capacity += 1 << 20
            kept = keep_back_seals(node)
            await world.send(log, "t", b"2", b"3")
            await world.until(lambda: bool(kept))
            node.kill()
            node.disk.capacity -= node.disk.free_bytes()
            await node.start()
            node.disk.capacity += 1 << 20
            await log.alter_topic("t", segment_records=100)
            await world.send(log, "t", b"4", b"5")
            await world.nodes[other].running.metadata.propose(kept[0])
            await world.send(log, "t", b"6")
        await world.judge("t")

    play(script)


def test_appends_find_the_leader_through_a_node_that_knows_neither_of_the_last_handoffs() -> None:
    """The node asked hears nothing of the metadata: it passes on to one that led once, and knows more."""

    async def script(world: World) -> None:
        leader, other = await lead_elsewhere(world, segment_records=2)
        behind = next(number for number in world.nodes if number not in (leader, other))
        world.network.partition(f"node-{other}", f"node-{behind}")
        async with world.at(leader) as log, world.at(behind, "client-2.y") as through:
            for number in range(10):
                await world.send(log, "t", b"%d" % number)
            known = len(world.topic(behind).state.segments)
            assert known < len(world.topic(leader).state.segments)
            await world.send(through, "t", b"through a node that is behind")
        world.network.heal()
        await world.agree()
        await world.judge("t")

    play(script, size=3, election_min_ms=60_000, election_max_ms=120_000)


def test_a_retry_through_another_node_is_the_same_append() -> None:
    """The node first asked passes the append on and is cut off before it hears the answer; the client times
    out and asks another one. The record is there once (A5)."""

    async def script(world: World) -> list[bytes | None]:
        leader, other = await lead_elsewhere(world)
        first = next(number for number in world.nodes if number not in (leader, other))
        async with world.at(first) as log, world.at(other, "client-2.y") as another:
            await world.send(log, "t", b"first")  # so that the way to the leader is open
            world.network.partition(f"node-{leader}", f"node-{first}", one_way=True)
            sending = asyncio.ensure_future(world.send(log, "t", b"once"))
            await world.until(lambda: world.topic(leader).reads.end_offset == 2)
            # What a client that knows several nodes does after the timeout: the same frame, another way.
            log._sequencers["default/t"]._routes = another.requests.routes
            await sending
        world.network.heal()
        await world.judge("t")
        return await world.read(first, "t")

    assert play(script) == [b"first", b"once"]


@pytest.mark.parametrize("kept_entries", [0, 3])
def test_a_snapshot_that_comes_in_the_middle_of_a_handoff_tells_that_it_is_done(
    monkeypatch: pytest.MonkeyPatch, kept_entries: int
) -> None:
    """The seal is applied elsewhere, its answer is lost, and what the leader then gets is no entry but a
    whole state: it must find in it that its segment is sealed, and pass on what it held."""
    monkeypatch.setattr(driver, "KEPT_BEHIND_SNAPSHOT", kept_entries)

    async def script(world: World) -> int:
        leader, other = await lead_elsewhere(world, segment_records=4)
        node = world.nodes[leader]
        async with world.at(leader) as log, world.at(other, "client-2.y") as far:
            await world.send(log, "t", b"1", b"2", b"3")
            restores = world.watch.restores
            segment = world.topic(leader).state.open_segment.segment
            # Its proposal arrives, and nothing comes back: neither the answer nor the entries.
            sending = asyncio.ensure_future(world.send(log, "t", b"4"))
            cut_when(world, lambda: node.running.leases.held, f"node-{other}", node.name)
            await world.until(lambda: world.topic(other).state.open_segment.segment > segment)
            held = asyncio.ensure_future(world.send(log, "t", b"5"))
            for number in range(60):
                await far.alter_topic("t", retention_bytes=1_000_000 + number)
            await asyncio.sleep(20)  # until what was held on the way is given up
            world.network.heal()
            await asyncio.gather(sending, held)
            restored = world.watch.restores - restores
        await world.judge("t")
        return restored

    assert play(script, size=3, snapshot_entries=10) >= 1


def cut_when(world: World, holds: Callable[[], object], a: str, b: str) -> None:
    """Cut the way from a to b as soon as the seal that b proposes has left it."""
    metadata = world.nodes[int(b[-1])].running.metadata
    propose = metadata.propose

    async def cutting(command: Command, *args: Any, **options: Any) -> Outcome:
        if isinstance(command, SealSegment):
            world.loop.call_later(0.0001, lambda: world.network.partition(a, b, one_way=True))
        return await propose(command, *args, **options)

    metadata.propose = cutting  # type: ignore[method-assign]


def test_a_frozen_leader_wakes_and_nothing_that_it_says_is_wrong() -> None:
    """Checker 7: it was away for longer than any timeout, and appends, seals and fetches come all at once."""

    async def script(world: World) -> None:
        leader, other = await lead_elsewhere(world, segment_records=4)
        async with world.at(other) as log:
            await world.send(log, "t", b"1", b"2", b"3")
            sending = [asyncio.ensure_future(world.send(log, "t", b"%d" % n)) for n in range(4, 10)]
            await asyncio.sleep(0.001)
            world.nodes[leader].freeze()
            await asyncio.sleep(20)
            world.nodes[leader].thaw()
            await asyncio.gather(*sending)
        await world.judge("t")

    play(script)


def test_a_node_that_joins_gets_its_turn_and_every_node_reads_all_of_it() -> None:
    async def script(world: World) -> set[int]:
        await lead_elsewhere(world, segment_records=1)
        world.nodes[4] = world.make(4)
        await world.nodes[4].start()
        await world.nodes[4].running.metadata.announced.wait()
        async with world.at(4) as log:
            for number in range(12):
                await world.send(log, "t", b"%d" % number)
        await world.agree()
        await world.judge("t")
        return {segment.leader for segment in world.topic(1).state.segments}

    assert len(play(script)) == 4


def test_a_broken_disk_hands_its_topic_to_another_node() -> None:
    """P1: the segment ends at its last good end, and the next one is opened where the disk is well."""

    async def script(world: World) -> None:
        leader, other = await lead_elsewhere(world)
        async with world.at(other) as log:
            await world.send(log, "t", b"good")
            world.nodes[leader].disk.faults.add("sync", prefix="segments/", suffix=".log")
            for number in range(5):
                await world.send(log, "t", b"%d" % number)
        assert world.leader("t", seen_by=leader) != leader
        assert all(send.outcome.value == "acknowledged" for send in world.history.sends)
        await world.judge("t")
        check_history(world.history)

    play(script)


def test_a_segment_that_was_given_away_unopened_and_then_opened_is_not_sealed_as_empty() -> None:
    """A node cannot make the log of a segment and proposes to end it where it begins; the proposal is on its
    way when the disk is well again, the log made, and records acknowledged."""

    async def script(world: World) -> list[bytes | None]:
        leader, other = await lead_elsewhere(world, "first")
        node = world.nodes[leader]
        kept = keep_back_seals(node)
        rule = node.disk.faults.add("open", prefix="segments/", suffix=".log")
        async with world.at(other) as log:
            names = (f"t{number}" for number in range(100))
            while True:
                name = next(names)
                await log.create_topic(name)
                if world.leader(name, seen_by=other) == leader:
                    break
            sending = asyncio.ensure_future(world.send(log, name, b"1", b"2"))
            await world.until(lambda: bool(kept))
            node.disk.faults.remove(rule)
            await sending
            assert world.history.sends[-1].offsets == [0, 1]
            await world.nodes[other].running.metadata.propose(kept[0])
            await world.send(log, name, b"3")
        await world.judge(name)
        return await world.read(other, name)

    assert play(script) == [b"1", b"2", b"3"]


def test_a_time_is_found_across_a_segment_whose_last_appends_were_refused() -> None:
    """The refused ones had a later append time than any record of their segment: by it a time that lies in
    the next segment, on another node, would be looked for here, and then skipped."""

    async def script(world: World) -> tuple[int, int]:
        leader, other = await lead_elsewhere(world)
        node = world.nodes[leader]
        async with world.at(other) as log:
            await world.send(log, "t", b"good")
            rule = node.disk.faults.add("sync", prefix="segments/", suffix=".log")
            node.clock.jump(3600)
            await world.send(log, "t", b"refused there, and taken by the next leader")
            node.disk.faults.remove(rule)
            appended = await log.append("t", [b"later"])
            await log.append("t", [b"last"])
            found = await log.offsets_at("t", appended.append_time_us)
        await world.judge("t")
        return found, appended.base_offset

    found, expected = play(script)
    assert found == expected


@pytest.mark.parametrize("apart_s", [(0, 7200, 3600), (0, 3600, 0), (3600, 0, 3600)])
def test_topics_settle_at_nodes_whose_clocks_agree(apart_s: tuple[int, int, int]) -> None:
    """A6: a node whose clock is wrong hands over what it leads, once, and is given nothing any more. Where
    all differ the one in the middle leads; no topic goes round and round, a segment longer each time."""

    async def script(world: World) -> None:
        for number, seconds in enumerate(apart_s, 1):
            world.nodes[number].clock.jump(seconds)
        await asyncio.sleep(2)  # until they have heard each other's clocks
        async with world.at(1) as log:
            for number in range(6):
                await log.create_topic(f"t{number}", segment_records=3)
                await world.send(log, f"t{number}", b"%d" % number)
            await asyncio.sleep(5)
            await world.agree()
            lengths = {
                name: len(topic.state.segments) for name, topic in world.nodes[1].running.topics.items()
            }
            await asyncio.sleep(60)
            await world.agree()
            middle = sorted(apart_s)[1]
            for name, topic in world.nodes[1].running.topics.items():
                assert len(topic.state.segments) == lengths[name]
                leader = topic.state.open_segment.leader
                assert apart_s[(leader >> 31) - 1] == middle
            for _ in range(6):
                await log.append("t0", [b"1", b"2", b"3"])
            await asyncio.sleep(5)
            await world.agree()
            late = world.topic(1, "t0").state.segments[lengths["default/t0"] :]
            assert {apart_s[(segment.leader >> 31) - 1] for segment in late} == {middle}

    play(script, monitor_check_ms=200)
