"""What a cluster with replicas must survive that its ancestors did not, and mistakes that make it fail.

As in `cluster_plants`: a scenario holds without a plant, and with its plant it fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from ister.broker.topic.handing_off import HandingOff
from ister.broker.topic.leadership import Leadership
from ister.metadata.commands import SealSegment
from ister.protocol.peer import node_of
from ister.replication.recovery.recovering import Attempt
from ister.replication.stream.progress import Progress
from ister.testing.cluster import World, WorldNode
from ister.wal.segment import Segment
from tests.holes.cluster_plants import check_line, fill, numbers, until, when_applied
from tests.text.test_text_on_a_cluster import talk

RETRY_SECONDS = 20.0
"""More than any failover takes, so that who waits longer waits for ever."""


def gone_for_good(node: WorldNode) -> None:
    """Its power, and then its disk: nobody starts it again."""
    node.kill(power=True)
    node.wipe()


def rest_of(world: World) -> list[int]:
    return [node.node_id for node in world.up]


class Given:
    """Which record each offset was given to."""

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}

    async def append(self, log: Any, topic: str, value: bytes) -> int:
        offset: int = (await log.append(topic, [value])).base_offset
        taken = self.records.setdefault(offset, value)
        assert taken == value, f"offset {offset} was given to two records, {taken!r} and {value!r}"
        return offset


# W1: a leader is gone for good.


async def the_leader_and_its_disk_are_gone(world: World) -> None:
    """A reader follows all the while. The topic is written on, and read from its first record to its last."""
    await fill(world, "t", 23)
    leader, seen = world.leader_of("t"), []
    others = [node.node_id for node in world.up if node is not leader]
    assert len({segment.leader for segment in leader.topic("t").state.segments}) == 3

    async with world.connect(*others, retry_deadline_s=RETRY_SECONDS) as log:

        async def follow() -> None:
            async for record in log.read("t", follow=True):
                seen.append(record.value)
                if len(seen) == 46:
                    return

        following = asyncio.ensure_future(follow())
        await until(lambda: len(seen) == 23)
        gone_for_good(leader)
        for number in range(23, 46):
            assert (await log.append("t", [b"%d" % number])).base_offset == number
        await following
    assert seen == numbers(46)
    await check_line(world, "t", {number: b"%d" % number for number in range(46)})


# D15: a leader is alive, and taken for dead.


async def a_live_leader_is_taken_for_dead(world: World) -> None:
    """It is cut off for a minute, with a client at its side: it keeps what it has, and gives out nothing."""
    given = Given()
    await fill(world, "t", 6)
    given.records = {number: b"%d" % number for number in range(6)}
    leader = world.leader_of("t")
    others = [node for node in world.up if node is not leader]
    kept = logs_on(leader)
    assert kept and all(kept.values())
    for other in others:
        world.network.partition(leader.host, other.host)
    inside, outside = world.connect(leader.node_id), world.connect(*[node.node_id for node in others])
    async with inside, outside:
        late = asyncio.ensure_future(given.append(inside, "t", b"through the old leader"))
        for number in range(6, 12):
            await given.append(outside, "t", b"%d" % number)
        await asyncio.sleep(60)
        for path, content in kept.items():
            assert logs_on(leader).get(path, b"").startswith(content), f"{path} is not what it was"
        world.network.heal()
        await late
    await world.settle()
    assert sorted(given.records) == list(range(13))
    first = leader.topic("t").state.segments[0]
    assert first.recovery and first.end_offset == 6, "it was taken for dead, and nothing was cut off"
    await check_line(world, "t", given.records)


def logs_on(node: WorldNode) -> dict[str, bytes]:
    """The records on a node's disk, as a loss of power would leave them; by the name of the file."""
    found: dict[str, bytes] = {}
    for topic in node.disk.list("segments"):
        for name in node.disk.list(f"segments/{topic}"):
            if name.endswith(".log"):
                path = f"segments/{topic}/{name}"
                found[path] = node.disk.durable_bytes(path).rstrip(b"\0")
    return found


def a_leader_needs_nobody() -> AbstractContextManager[Any]:
    """D15, D20: what is on the leader's own disk is acknowledged, and served."""

    def alone(self: Progress) -> None:
        self.quorum_end = max(self.quorum_end, self._own_synced)

    return mock.patch.object(Progress, "_advance", alone)


def who_cannot_lead_any_more_deletes_what_it_has() -> AbstractContextManager[Any]:
    """D15: a broker that was not the owner any more, as far as it knew, cleared its disk."""
    stop = Leadership.stop_leading

    def and_clear(self: Leadership, segment: Segment, why: str) -> None:
        stop(self, segment, why)
        self._storage.disk.remove(segment.identity.path + ".log")

    return mock.patch.object(Leadership, "stop_leading", and_clear)


# D16: somebody dies in the middle of a handoff.


Dies = Callable[[World], Awaitable[None]]
"""Fills the first segment, so that it is handed off, and lets a node die for good on the way."""


async def stops_at(world: World, step: str, before: Callable[[Any], Awaitable[object]] | None = None) -> None:
    """The leader fills its segment and never gets past this step of the handoff: it is gone for good."""
    reached = asyncio.Event()
    original = getattr(HandingOff, step)

    async def never(self: HandingOff, *args: Any) -> Any:
        if self._topic.state.open_segment.segment > 1:
            return await original(self, *args)
        if before is not None:
            await before(original(self, *args))
        reached.set()
        return await asyncio.Event().wait()

    with mock.patch.object(HandingOff, step, never):
        async with world.connect(*world.nodes) as log:
            for number in range(10):
                await log.append("t", [b"%d" % number])
        await reached.wait()
        gone_for_good(world.leader_of("t"))


async def dies_before_it_drains(world: World) -> None:
    await stops_at(world, "drain")


async def dies_before_it_proposes(world: World) -> None:
    await stops_at(world, "propose_seal")


async def dies_with_its_proposal_on_the_way(world: World) -> None:
    async def a_little(proposing: Any) -> None:
        task = asyncio.ensure_future(proposing)
        await asyncio.wait([task], timeout=0.0005)  # less than any message takes

    await stops_at(world, "propose_seal", a_little)


async def the_next_leader_dies_before_it_opens(world: World) -> None:
    """The old one is well, and knows of the seal; the one that it named has not made its log."""
    reached = asyncio.Event()
    for node in world.up:
        when_applied(node, SealSegment, reached.set)
    async with world.connect(*world.nodes) as log:
        for number in range(10):
            await log.append("t", [b"%d" % number])
    await reached.wait()
    gone_for_good(world.leader_of("t"))


async def who_recovers_dies_before_its_seal(world: World) -> None:
    """The leader is gone for good, and so is the replica that stands in for it, when it knows the end."""
    reached = asyncio.Event()
    seal = Attempt._seal

    async def never(self: Attempt, *args: Any) -> Any:
        if reached.is_set():
            return await seal(self, *args)
        reached.set()
        return await asyncio.Event().wait()

    await fill(world, "t", 7)
    with mock.patch.object(Attempt, "_seal", never):
        gone_for_good(world.leader_of("t"))
        await reached.wait()
        coordinator = world.up[0].topic("t").state.open_segment.coordinator
        gone_for_good(world.nodes[node_of(coordinator)])


async def the_topic_is_not_stranded(world: World, dies: Dies) -> None:
    await dies(world)
    assert len(world.up) < len(world.nodes)
    async with world.connect(*rest_of(world), retry_deadline_s=RETRY_SECONDS) as log:
        begin = await log.offsets_at("t", "latest")
        for number in range(begin, begin + 20):
            assert (await log.append("t", [b"%d" % number])).base_offset == number
    await check_line(world, "t", {number: b"%d" % number for number in range(begin + 20)})


# D20: what only a dead broker had, and cursors.


async def cursors_outlive_a_dead_broker(world: World) -> None:
    """The leader has a record that nobody else got when it dies with its disk. Who has read before it, by
    offset or by GET, is nowhere ahead of the log after it, and misses nothing."""
    given, seen = Given(), {}
    await fill(world, "t", 6)
    given.records = {number: b"%d" % number for number in range(6)}
    leader = world.leader_of("t")
    others = [node for node in world.up if node is not leader]
    getter = await talk(world, leader.node_id)
    got = [await getter.ask(b"GET t") for _ in range(4)]
    assert got == [b"OK %d" % number for number in range(4)]
    inside, reader = world.connect(leader.node_id, *rest_of(world)), world.connect(leader.node_id)
    async with inside, reader:

        async def follow() -> None:
            async for record in reader.read("t", follow=True):
                seen[record.offset] = record.value

        following = asyncio.ensure_future(follow())
        await until(lambda: len(seen) == 6)
        for other in others:
            world.network.partition(leader.host, other.host)
        late = asyncio.ensure_future(given.append(inside, "t", b"only the leader has it"))
        await asyncio.sleep(0.5)
        following.cancel()
        path = next(iter(logs_on(leader)))
        assert b"only the leader has it" in logs_on(leader)[path], "there is a record that can be lost"
        gone_for_good(leader)
        for other in others:
            world.network.reset(leader.host, other.host)  # what is still on the wire never comes
        world.network.heal()
        async with world.connect(*rest_of(world)) as outside:
            for number in range(6, 12):
                await given.append(outside, "t", b"%d" % number)
            await late
            end = await outside.offsets_at("t", "latest")
            cursor = max(seen) + 1
            assert cursor <= end, f"a reader stands at {cursor}, the log ends at {end}"
            rest = {record.offset: record.value async for record in outside.read("t", start=cursor)}
    assert sorted(given.records) == list(range(end))
    assert {**seen, **rest} == given.records, "what was read is what is there, and nothing is missing"
    await check_line(world, "t", given.records)
    await nothing_is_missed_by_get(world, given)


async def nothing_is_missed_by_get(world: World, given: Given) -> None:
    """It goes on behind what was stored of the cursor, or repeats; never past a record."""
    getter = await talk(world, rest_of(world)[0], "walrus-after")
    found: list[bytes] = []
    while (reply := await getter.ask(b"GET t")) != b"EMPTY":
        if not reply.startswith(b"ERR"):
            found.append(reply.removeprefix(b"OK "))
    line = [given.records[offset] for offset in sorted(given.records)]
    assert found and found == line[-len(found) :] and len(found) >= len(line) - 4
