"""The ancestors' mistakes at a seal, put into a cluster on purpose, and the scenarios that must see them.

A scenario runs against `ister.testing.cluster`; without a plant it holds, with its plant it fails: so
the tests of the holes know that they look in the right place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from ister.broker.topic import handoff as steps
from ister.broker.topic.handing_off import HandingOff
from ister.metadata.applying import TO_TOPICS
from ister.metadata.commands import Command, Outcome, SealSegment
from ister.metadata.state import ClusterState, TopicState
from ister.protocol.codec import decode_appended
from ister.testing.cluster import CLIENT_PORT, World, WorldNode, read_all
from ister.wal.group_commit import FlushJob
from ister.wal.leases import Leases
from ister.wal.segment import Segment
from tests.broker.broker_helpers import RawClient, append_request, frame_of

# What a scenario needs.


def numbers(count: int) -> list[bytes | None]:
    return [b"%d" % number for number in range(count)]


async def fill(world: World, topic: str, count: int, start: int = 0) -> None:
    """Append numbers, one by one; returns when the handoffs that they caused are over."""
    async with world.connect(*[node.node_id for node in world.up]) as log:
        for number in range(start, start + count):
            assert (await log.append(topic, [b"%d" % number])).base_offset == number
    await asyncio.sleep(1)
    await world.settle()


async def make_topic(world: World, *, on_metadata_leader: bool = False) -> str:
    """A topic whose first segment is, or is not, on the node that leads the metadata."""
    async with world.connect(*world.nodes) as log:
        for number in range(100):
            name = f"t{number}"
            await log.create_topic(name)
            await world.settle()
            if (world.leader_of(name) is world.metadata_leader()) == on_metadata_leader:
                return name
    raise AssertionError("no topic is led where it should be")


async def raw_client(world: World, node: WorldNode, name: str = "raw") -> RawClient:
    """One that retries nothing, so that a refusal is seen."""
    client = await world.network.host(name).connect(RawClient, node.host, CLIENT_PORT)
    assert isinstance(client, RawClient)
    await client.greet()
    return client


def when_applied(node: WorldNode, kind: type[Command], call: Callable[[], None]) -> None:
    """Do something, once, at the very moment at which a node applies a command of a kind."""
    due = [call]

    def watch(command: Command | None, outcome: Outcome) -> None:
        if isinstance(command, kind) and outcome.ok and due:
            due.pop()()

    node.broker.metadata.watch(watch)


async def until(holds: Callable[[], bool]) -> None:
    """For what is spread over several nodes, or happens within one: there is no event to wait for."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 (see above)
            await asyncio.sleep(0.001)


def write_in_the_worker(node: WorldNode) -> None:
    """As under load: what is admitted is durable some time later, and not on the spot."""
    node.broker.commits._may_run_inline = lambda jobs: False  # type: ignore[method-assign]


async def check_line(world: World, topic: str, acknowledged: dict[int, bytes]) -> None:
    """Every node reads one line without a gap, and what was acknowledged is where it was said to be."""
    for node in world.up:
        async with world.connect(node.node_id) as log:
            line = await read_all(log, topic)
            found = {offset: line[offset] if offset < len(line) else None for offset in acknowledged}
            assert found == acknowledged, f"through node {node.node_id}"


# Producers race the seal (W2, D9).


async def producers_race_the_seals(world: World) -> None:
    """The disk is slow, so that at every seal there are appends that were admitted and are not durable."""
    acknowledged: dict[int, bytes] = {}
    # Without sequences: nothing but the handoff itself stands between an offset and its second use.
    options: dict[str, Any] = {"linger_ms": 0, "batch_records": 1, "idempotent": False}
    for node in world.up:
        write_in_the_worker(node)
        node.disk.slow(0.005)

    async def produce(node_id: int, who: int) -> None:
        async with world.connect(node_id) as log, log.producer("t", **options) as producer:
            sent = [asyncio.ensure_future(producer.send(b"%d-%d" % (who, turn))) for turn in range(40)]
            for turn, offset in enumerate(await asyncio.gather(*sent)):
                assert offset not in acknowledged, f"offset {offset} was given to two records"
                acknowledged[offset] = b"%d-%d" % (who, turn)

    await asyncio.gather(*(produce(1 + who % 3, who) for who in range(6)))
    for node in world.up:
        node.disk.faults.clear()
    assert sorted(acknowledged) == list(range(240))
    assert len(world.nodes[1].topic("t").state.segments) > 3, "there were seals to race"
    await check_line(world, "t", acknowledged)


def the_count_is_captured_before_the_drain() -> AbstractContextManager[Any]:
    """W2: what is proposed as the end is what was committed when the segment was found full."""
    drain = HandingOff.drain

    async def early(self: HandingOff, segment: Segment) -> list[steps.Effect]:
        end = segment.committed_end
        await drain(self, segment)
        self._led.handoff.end_offset = end
        return [steps.ProposeSeal(end)]

    return mock.patch.object(HandingOff, "drain", early)


def in_flight_appends_are_not_waited_for() -> AbstractContextManager[Any]:
    """D9: the end is taken while the writer goes on; what it writes then is acknowledged all the same."""

    async def hasty(self: HandingOff, segment: Segment) -> list[steps.Effect]:
        return self._led.handoff.step(steps.Drained(segment.committed_end))

    return mock.patch.object(HandingOff, "drain", hasty)


# Two proposals of one rollover (W3).


async def one_rollover_is_proposed_twice(world: World) -> None:
    """The same seal again, through another node, when the next segment already has records of its own."""
    topic = await make_topic(world)
    seals: list[SealSegment] = []

    def watch(command: Command | None, outcome: Outcome) -> None:
        if isinstance(command, SealSegment):
            seals.append(command)

    world.nodes[1].broker.metadata.watch(watch)
    async with world.connect(1, 2, 3) as log:
        for number in range(10):
            await log.append(topic, [b"%d" % number])
        await until(lambda: bool(seals))
        for number in range(10, 13):
            await log.append(topic, [b"%d" % number])
        outcomes = await asyncio.gather(*(node.broker.metadata.propose(seals[0]) for node in world.up))
        await check_line(world, topic, {number: b"%d" % number for number in range(13)})
        assert not any(outcome.ok for outcome in outcomes), "a rollover was applied a second time"
        for number in range(13, 16):
            await log.append(topic, [b"%d" % number])
    await check_line(world, topic, {number: b"%d" % number for number in range(16)})


def a_seal_is_applied_without_comparing() -> AbstractContextManager[Any]:
    """W3: whichever segment is open is sealed with the end that was counted for another one."""
    seal = TO_TOPICS[SealSegment]

    def careless(state: ClusterState, index: int, topic: TopicState, command: SealSegment) -> Outcome:
        fields = {name: getattr(command, name) for name in command.__struct_fields__}
        fields["segment"] = topic.open_segment.segment
        fields["end_offset"] = max(command.end_offset, topic.open_segment.base_offset)
        return seal(state, index, topic, SealSegment(**fields))

    return mock.patch.dict(TO_TOPICS, {SealSegment: careless})


# The lease goes while an append waits (W4).


async def the_lease_goes_while_an_append_waits(world: World) -> None:
    """The append was admitted with a lease and waits behind a write; then the lease is taken away."""
    topic = await make_topic(world)
    leader = world.leader_of(topic)
    first, second = [node.node_id for node in world.up if node is not leader]
    async with world.connect(first) as log, world.connect(second) as other:
        assert (await log.append(topic, [b"0"])).base_offset == 0
        segment = await leader.topic(topic).led.ensure_open()
        write_in_the_worker(leader)
        leader.disk.slow(0.5)
        sending = [asyncio.ensure_future(log.append(topic, [b"1"]))]
        await until(lambda: leader.broker.commits._running is not None)
        sending.append(asyncio.ensure_future(other.append(topic, [b"2"])))
        await until(lambda: segment.end_offset == 3)
        assert leader.broker.commits._running is not None and segment.committed_end == 1
        leader.broker.revoke_leases(topic)
        leader.disk.faults.clear()
        await asyncio.sleep(3)
        written = leader.topic(topic).reads.end_offset
        assert written <= 2, "written after the lease was gone (A4)"
        leader.broker.restore_leases()
        assert sorted(appended.base_offset for appended in await asyncio.gather(*sending)) == [1, 2]
        line = await read_all(log, topic)
        assert (line[0], sorted(filter(None, line[1:]))) == (b"0", [b"1", b"2"])


def a_lease_is_asked_for_before_the_wait_only() -> AbstractContextManager[Any]:
    """W4: checked when the append arrives, never again."""
    take = Segment.take

    def trusting(self: Segment, *, sync: bool = False) -> FlushJob | None:
        with mock.patch.object(Leases, "holds", lambda *_: True):
            return take(self, sync=sync)

    return mock.patch.object(Segment, "take", trusting)


# The leader's process stands still at the worst moment of its handoff (W4).


async def a_leader_is_paused_at_its_seal(world: World) -> None:
    """SIGSTOP when the seal is committed and its proposer does not know it; appends for it come meanwhile.

    With one replica nobody but the leader seals its segment: this is as stale as a leader can be.
    """
    topic = await make_topic(world)
    paused = world.leader_of(topic)
    process = paused.process
    assert process is not None
    write_in_the_worker(paused)
    when_applied(world.metadata_leader(), SealSegment, process.freeze)
    client = await raw_client(world, paused)
    acknowledged: dict[int, bytes] = {}
    for number in range(10):
        acknowledged[(await client.append(topic, frame_of(b"%d" % number))).base_offset] = b"%d" % number
    await until(lambda: process.frozen)
    client.send(*(append_request(number, topic, frame_of(b"late %d" % number)) for number in range(3)))
    others = [node for node in world.up if node is not paused]
    await until(lambda: all(len(node.topic(topic).state.segments) == 2 for node in others))
    assert others[0].topic(topic).state.segments[0].end_offset == 10
    async with world.connect(*[node.node_id for node in others]) as log:
        appended = await log.append(topic, [b"meanwhile"])
        acknowledged[appended.base_offset] = b"meanwhile"
    process.thaw()
    for number, answer in (await client.answers(3)).items():
        offset = decode_appended(answer.header).base_offset if answer.kind == 0 else -1
        assert offset not in acknowledged, f"offset {offset} was given to two records"
        acknowledged[offset] = b"late %d" % number
    await world.settle()
    assert sorted(acknowledged) == list(range(14))
    await check_line(world, topic, acknowledged)
    assert not paused.fatal


def a_leader_admits_while_it_seals() -> AbstractContextManager[Any]:
    """The segment takes appends, and writes them, until the answer to its seal is there."""
    step = steps.Handoff.step

    def lax(self: steps.Handoff, event: steps.Event) -> list[steps.Effect]:
        effects = step(self, event)
        self.admits = self.phase is not steps.Phase.SEALED
        return effects

    return mock.patch.object(steps.Handoff, "step", lax)
