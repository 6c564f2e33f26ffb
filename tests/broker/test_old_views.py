"""A leader that is behind: with the chain, or with its own part in it. It must not say what is not so."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest
from broker_helpers import RawClient

import ister
from ister.client.reader import reading_key
from ister.errors import CorruptSegment, NotLeader, UnknownTopic
from ister.frame import encode, frames_in
from ister.metadata.commands import Command, Outcome, SealSegment
from ister.protocol.codec import decode_header, encode_header, encode_message
from ister.protocol.messages import LATEST, Append, Fetch, Kind, ListOffsets, ListOffsetsAnswer
from ister.testing.cluster import CLIENT_PORT, World, WorldNode, run_story

LIMIT = 10
FULL = 4 * LIMIT
"""Where admission closes even if no metadata leader answers (A8)."""
END = FULL + 5


class Behind(NamedTuple):
    topic: str
    node: WorldNode
    client: RawClient


async def sealed_without_knowing(world: World) -> Behind:
    """The leader of a topic hears nothing of its peers; its seal is applied there, and others go on."""
    async with world.connect(1, 2, 3) as log:
        for name in (f"topic-{number}" for number in range(20)):
            await log.append(name, [b"0"])
            if world.leader_of(name) is not world.metadata_leader():
                break
    old = world.leader_of(name)
    others = [node for node in world.up if node is not old]
    for node in others:
        world.network.partition(node.host, old.host, one_way=True)
    async with world.connect(old.node_id) as log:
        for number in range(1, FULL):
            await log.append(name, [b"%d" % number])
    async with asyncio.timeout(30):
        while any(len(node.topic(name).state.segments) == 1 for node in others):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    async with world.connect(*(node.node_id for node in others)) as log:
        for number in range(FULL, END):
            assert (await log.append(name, [b"%d" % number])).base_offset == number
    assert len(old.topic(name).state.segments) == 1, "it does not know"
    client = await world.network.host("raw").connect(RawClient, old.host, CLIENT_PORT)
    assert isinstance(client, RawClient)
    await client.greet()
    return Behind(name, old, client)


def test_an_offset_that_others_have_is_never_said_to_be_out_of_range() -> None:
    async def story(world: World) -> None:
        behind = await sealed_without_knowing(world)
        request = Fetch(behind.topic, END - 2, 1 << 20)
        refused = await behind.client.ask(Kind.FETCH, request)
        assert refused.error.retriable, f"it was told {refused.error!r}"
        world.network.heal()
        await world.settle()
        frames = frames_in((await behind.client.call(Kind.FETCH, request)).payload)
        assert frames[0].header.base_offset == END - 2

    run_story(story, segment_records=LIMIT)


def test_the_end_is_not_told_while_another_may_have_a_later_one() -> None:
    async def story(world: World) -> None:
        behind = await sealed_without_knowing(world)
        request = ListOffsets(behind.topic, [LATEST])
        refused = await behind.client.ask(Kind.LIST_OFFSETS, request)
        assert refused.error.retriable, f"it was told {refused.error!r}"
        world.network.heal()
        await world.settle()
        answer = await behind.client.call(Kind.LIST_OFFSETS, request)
        assert decode_header(ListOffsetsAnswer, answer.header).offsets == [END]

    run_story(story, segment_records=LIMIT)


def test_what_it_has_itself_is_read_meanwhile() -> None:
    async def story(world: World) -> None:
        behind = await sealed_without_knowing(world)
        frames = await behind.client.fetch(behind.topic, 0)
        assert [record.value for frame in frames for record in frame.records()][:3] == [b"0", b"1", b"2"]

    run_story(story, segment_records=LIMIT)


def test_a_read_that_a_rollover_overtakes_is_not_taken_for_a_missing_file() -> None:
    """Between the look for the holder and the reading, the chain may grow by several segments."""

    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            for number in range(5 * LIMIT):
                await log.append("t", [b"%d" % number])
        await world.settle()
        elsewhere = 0
        for node in world.up:
            topic = node.topic("t")
            for segment in topic.state.segments[:-1]:
                if node.member not in segment.replicas:
                    elsewhere += 1
                    with pytest.raises(NotLeader, match="is on node"):
                        await topic.reads.read(segment.base_offset, 1 << 20)
        assert elsewhere > 3

    run_story(story, segment_records=LIMIT)


async def sealed_and_back_again(world: World, answered: asyncio.Event) -> Behind:
    """The answer to a leader's seal is late: it knows that the topic went round, and leads again, and still
    has the segment that it sealed."""
    async with world.connect(1, 2, 3) as log:
        await log.append("t", [b"0"])
    old = world.leader_of("t")
    propose = old.broker.metadata.propose

    async def propose_and_wait(command: Command, timeout: float = 10.0) -> Outcome:
        outcome = await propose(command, timeout)
        if isinstance(command, SealSegment):
            await answered.wait()
        return outcome

    old.broker.metadata.propose = propose_and_wait  # type: ignore[method-assign]
    others = [node.node_id for node in world.up if node is not old]
    while len(old.topic("t").state.segments) < 4:
        async with world.connect(*others) as log:
            await log.append("t", [b"more"])
        await asyncio.sleep(0.1)  # a rollover, if it was full, is done by now
    assert world.leader_of("t") is old
    client = await world.network.host("raw").connect(RawClient, old.host, CLIENT_PORT)
    assert isinstance(client, RawClient)
    await client.greet()
    return Behind("t", old, client)


def test_a_leader_that_still_has_the_segment_before_does_not_take_its_end_for_the_topic_s() -> None:
    async def story(world: World) -> None:
        answered = asyncio.Event()
        behind = await sealed_and_back_again(world, answered)
        end = behind.node.topic("t").state.open_segment.base_offset
        world.loop.call_later(1.0, answered.set)
        assert await behind.client.fetch("t", end) == []
        answer = await behind.client.call(Kind.LIST_OFFSETS, ListOffsets("t", [LATEST]))
        assert decode_header(ListOffsetsAnswer, answer.header).offsets == [end]

    run_story(story, segment_records=LIMIT)


def test_the_segment_that_was_sealed_is_read_meanwhile() -> None:
    async def story(world: World) -> None:
        behind = await sealed_and_back_again(world, asyncio.Event())
        frames = await behind.client.fetch("t", 3)
        assert frames[0].header.base_offset == 3

    run_story(story, segment_records=LIMIT)


def test_what_nobody_has_is_still_out_of_range() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await log.append("t", [b"0"])
        for node in world.up:
            client = await world.network.host("raw").connect(RawClient, node.host, CLIENT_PORT)
            assert isinstance(client, RawClient)
            await client.greet()
            refused = await client.ask(Kind.FETCH, Fetch("t", 7, 1 << 20))
            assert refused.error.code == "offset-out-of-range"
            assert "it has 0 to 0" in refused.error.message

    run_story(story)


async def cut_off_leader(world: World, log: ister.Log) -> tuple[str, WorldNode]:
    """A topic whose leader hears and reaches none of its peers any more; its clients reach it."""
    for name in (f"topic-{number}" for number in range(20)):
        await log.append(name, [b"old"])
        old = world.leader_of(name)
        if old is not world.metadata_leader():
            break
    for node in world.up:
        if node is not old:
            world.network.partition(node.host, old.host)
    return name, old


async def go_there(log: ister.Log, name: str, node: WorldNode) -> None:
    """As after a late answer that names this node as the one to ask."""
    topic = f"default/{name}"
    for key in (topic, reading_key(topic)):
        log.requests.routes.learned(key, node.node_id)
        async with asyncio.timeout(30):
            while (ready := log.requests.routes.ready(key)) is None or ready.address.host != node.host:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


def test_i3_what_is_appended_and_read_after_a_topic_was_made_again_is_of_the_new_one() -> None:
    """The leader of the old one has not heard that it is gone; its client knows better."""

    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            name, old = await cut_off_leader(world, log)
            await log.delete_topic(name)
            assert old.topic(name).reads.end_offset == 1, "it does not know"
            made = await log.create_topic(name)
            await go_there(log, name, old)
            assert (await log.append(name, [b"new"])).base_offset == 0
            await go_there(log, name, old)
            assert [record.value async for record in log.read(name)] == [b"new"]
            await go_there(log, name, old)
            assert await log.offsets_at(name, "latest") == 1
            assert (await log.describe_topic(name)).uid == made.uid

    run_story(story)


def test_i3_what_is_appended_after_a_topic_was_deleted_makes_it_anew() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            name, old = await cut_off_leader(world, log)
            await log.delete_topic(name)
            await go_there(log, name, old)
            assert (await log.append(name, [b"new"])).base_offset == 0
            world.network.heal()
            await world.settle()
            assert [record.value async for record in log.read(name)] == [b"new"]

    run_story(story)


def test_a_start_with_old_metadata_does_not_call_what_was_trimmed_damaged() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            for number in range(8):
                await log.append("t", [b"%d" % number] * 4)
        node = next(node for node in world.up if node.topic("t").state.segments[0].leader == node.member)
        first = node.topic("t").state.segments[0]
        assert first.end_offset is not None
        # Its last life has removed the file; what it knew of the trimming was not in its journal yet.
        path = f"segments/{node.topic('t').state.uid:016d}/{first.segment:08d}-{first.uid:016d}.log"
        node.kill()
        node.disk.mount().remove(path)
        for other in world.up:
            world.network.partition(node.host, other.host)
        await node.start()
        client = await world.network.host("raw").connect(RawClient, node.host, CLIENT_PORT)
        assert isinstance(client, RawClient)
        await client.greet()
        refused = await client.ask(Kind.FETCH, Fetch("t", 0, 1 << 20))
        assert isinstance(refused.error, NotLeader), f"it was told {refused.error!r}"
        world.network.heal()
        await world.settle()
        damaged = await client.ask(Kind.FETCH, Fetch("t", 0, 1 << 20))
        assert isinstance(damaged.error, CorruptSegment), "nothing was trimmed: now it knows"

    run_story(story, segment_records=4)


def test_i3_a_reader_that_was_made_before_reads_the_new_topic() -> None:
    """Each iteration begins anew."""

    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            name, old = await cut_off_leader(world, log)
            reader = log.read(name)
            await log.delete_topic(name)
            await log.create_topic(name)
            await log.append(name, [b"new"])
            await go_there(log, name, old)
            assert [record.value async for record in reader] == [b"new"]

    run_story(story)


def test_a_delete_that_a_node_behind_could_not_carry_out_is_not_taken_for_done() -> None:
    """That node knows an older topic of the name, and its answer times out: nothing was deleted there."""

    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log, world.connect(1, 2, 3) as other:
            name, old = await cut_off_leader(world, log)
            await other.delete_topic(name)
            await other.create_topic(name)
            await go_there(log, name, old)
            await log.delete_topic(name)
            with pytest.raises(UnknownTopic):
                await other.describe_topic(name)

    run_story(story)


def test_an_append_that_waits_is_not_overtaken_by_one_that_was_called_after_a_deletion() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await log.create_topic("t")
            world.nodes[1].broker.revoke_leases("t")
            first = asyncio.create_task(log.append("t", [b"first"]))
            await asyncio.sleep(6)
            await log.delete_topic("t")
            await log.create_topic("t")
            world.nodes[1].broker.restore_leases()
            await log.append("t", [b"second"])
            await asyncio.wait([first])
            values = [record.value async for record in log.read("t")]
            assert values in ([b"first", b"second"], [b"second"]), "the first may be of the old topic"

    run_story(story, nodes=1)


def test_an_append_that_waits_for_the_metadata_is_not_overtaken_on_its_connection() -> None:
    """The next one is read in the very turn of the loop in which the metadata is applied."""

    async def story(world: World) -> None:
        node = world.nodes[1]
        async with world.connect(1) as log:
            await log.create_topic("t")
            client = await world.network.host("raw").connect(RawClient, node.host, CLIENT_PORT)
            assert isinstance(client, RawClient)
            await client.greet()
            connection = list(node.server._connections)[-1]
            header = encode_header(Append("default/t", node.broker.metadata.state.applied_index + 1))

            def arrives(correlation: int, value: bytes) -> None:
                frame = bytes(encode([value]))
                data = bytes(encode_message(correlation, int(Kind.APPEND), header, len(frame))) + frame
                memoryview(connection.get_buffer(-1))[: len(data)] = data
                connection.buffer_updated(len(data))

            arrives(101, b"1")
            await asyncio.sleep(0.01)
            loop = asyncio.get_running_loop()

            def applied(command: Command | None, outcome: Outcome) -> None:
                loop.call_soon(arrives, 102, b"2")

            node.broker.metadata.watch(applied)
            await log.alter_topic("t", segment_records=1000)
            await asyncio.sleep(1)
            assert [record.value async for record in log.read("t")] == [b"1", b"2"]

    run_story(story, nodes=1)
