"""Danube's holes (D..) as a cluster could have them: what it did is in each docstring."""

from __future__ import annotations

import asyncio

import pytest

from ister.errors import (
    InvariantBroken,
    IsterError,
    MessageTooLarge,
    NodeUnreachable,
    NotLeader,
    OutOfSequence,
    RequestTimeout,
    StorageFailed,
    UnknownProducer,
    UnknownTopic,
)
from ister.metadata.changes import Change, StateAt
from ister.metadata.commands import CreateTopic
from ister.protocol.messages import AlterTopic, Kind
from ister.testing import Loss
from ister.testing.cluster import World, WorldNode, read_all, run_story
from tests.broker.broker_helpers import RawClient, frame_of
from tests.holes import cluster_plants as plants
from tests.holes.cluster_plants import fill, numbers

WEEK_SECONDS = 7 * 24 * 3600


def test_d9_a_publish_in_flight_at_the_seal_keeps_its_offset() -> None:
    """D9: the end was taken before the writer stopped; what it wrote was acknowledged, and overwritten."""
    run_story(plants.producers_race_the_seals, segment_records=7, seed=9)


def test_d9_an_end_taken_before_appends_in_flight_are_flushed_and_the_check_can_see_it() -> None:
    with plants.in_flight_appends_are_not_waited_for(), pytest.raises((AssertionError, InvariantBroken)):
        run_story(plants.producers_race_the_seals, segment_records=7, seed=9)


def test_d9_an_empty_topic_that_is_sealed_goes_on_at_0() -> None:
    """D9: an empty topic was sealed as offset 0 and resumed at 1."""

    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            await log.create_topic("t")
            for _ in range(3):
                before = len(world.nodes[1].topic("t").state.segments)
                leader = world.leader_of("t").topic("t")
                await leader.led.ensure_open()
                leader.handing_off.start()
                await plants.until(lambda b=before: len(world.nodes[1].topic("t").state.segments) > b)  # type: ignore[misc]
                await world.settle()
            chain = world.nodes[1].topic("t").state.segments
            assert [(segment.base_offset, segment.end_offset) for segment in chain[:-1]] == [(0, 0)] * 3
            assert len({segment.leader for segment in chain}) == 3
            assert await log.offsets_at("t", "latest") == 0
            assert await read_all(log, "t") == []
            assert (await log.append("t", [b"0"])).base_offset == 0
            assert await read_all(log, "t") == [b"0"]

    run_story(story)


def test_d10_a_node_that_cannot_ask_the_metadata_does_not_begin_anew() -> None:
    """D10: an error while reading the metadata started a topic at offset 0, and an old sealed marker
    outranked the newer log."""

    async def story(world: World) -> None:
        topic = await plants.make_topic(world)
        leader = world.leader_of(topic)
        await fill(world, topic, 5)
        for node in world.up:
            node.kill(power=True, loss=Loss.ALL)
        await leader.start()  # alone: nobody can say what the cluster knew last
        async with world.connect(leader.node_id, retry_deadline_s=1) as log:
            with pytest.raises((NotLeader, RequestTimeout)) as caught:
                await log.append(topic, [b"no"])
            assert caught.value.hint
            with pytest.raises((NotLeader, RequestTimeout)):
                await read_all(log, topic)
            with pytest.raises(IsterError) as unknown:
                await log.describe_topic("never-made")
            assert not isinstance(unknown.value, UnknownTopic)
        for node in world.nodes.values():
            if not node.is_up:
                await node.start()
        await world.settle()
        await fill(world, topic, 5, start=5)
        await plants.check_line(world, topic, {number: b"%d" % number for number in range(10)})

    run_story(story)


def test_d17_snapshots_are_kept_before_the_log_behind_them_goes() -> None:
    """D17: snapshots were never persisted while the log was purged: after ~1000 entries no restart worked."""

    async def story(world: World) -> None:
        for turn in range(3):
            await fill(world, "t", 40, start=40 * turn)
            await world.settle()
            state = world.nodes[1].broker.metadata.state.to_bytes()
            assert all(node.broker.metadata.status().snapshot_index > 0 for node in world.up)
            assert len(world.nodes[1].topic("t").state.segments) > 5 * (turn + 1), (
                "more than is kept of the log"
            )
            for node in world.up:
                node.kill(power=True, loss=Loss.ALL)
            for node in world.nodes.values():
                await node.start()
            await world.settle()
            found = world.nodes[2].broker.metadata.state
            assert found.topics == type(found).from_bytes(state).topics
            async with world.connect(3) as log:
                assert await read_all(log, "t") == numbers(40 * (turn + 1))

    run_story(story, segment_records=5, snapshot_entries=10)


def test_d18_no_clock_takes_part_in_what_is_applied_and_no_silence_expires_a_node() -> None:
    """D18: expiry read the local clock while applying: nodes disagreed, and a live one could be dropped."""

    async def story(world: World) -> None:
        topic = await plants.make_topic(world)
        silent = world.leader_of(topic)
        await fill(world, topic, 8)
        silent.kill()
        for number, node in enumerate(world.up):
            node.clock.jump((-1) ** number * (number + 1) * WEEK_SECONDS)
        rest = [node.node_id for node in world.up]
        async with world.connect(*rest) as log:
            for number in range(20):
                await log.append(f"other-{number}", [b"x"])
            await asyncio.sleep(60)
            assert silent.node_id in [node.node_id for node in (await log.cluster()).nodes]
        assert len({node.broker.metadata.state.to_bytes() for node in world.up}) == 1
        await silent.start()
        await world.settle()
        assert len({node.broker.metadata.state.to_bytes() for node in world.up}) == 1
        await fill(world, topic, 8, start=8)
        await plants.check_line(world, topic, {number: b"%d" % number for number in range(16)})

    run_story(story, segment_records=5)


def test_d19_a_watcher_goes_on_with_another_node_from_the_index_that_it_had() -> None:
    """D19: watches had no start and could not be resumed: what came while nobody listened was lost."""

    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            await log.create_topic("t0")
            seen = await changes_until(world.nodes[1], 0, "t0")
            world.nodes[1].kill()
            await log.create_topic("t1")
            await log.create_topic("t2")
        resumed = await changes_until(world.nodes[2], seen[-1].index, "t2")
        whole = await changes_until(world.nodes[3], 0, "t2")
        assert not any(isinstance(item, StateAt) for item in resumed)
        told = [item.index for item in (*seen, *resumed)]
        assert told == sorted(set(told)), "nothing came twice, all of it in order"
        assert [item.index for item in whole if isinstance(item, Change) and item.index not in told] == []
        assert [
            item.command.name
            for item in (*seen, *resumed)
            if isinstance(item, Change) and isinstance(item.command, CreateTopic)
        ] == ["default/t0", "default/t1", "default/t2"]

    run_story(story)


async def changes_until(node: WorldNode, after: int, topic: str) -> list[Change | StateAt]:
    """What this node tells from there on, until it has told of a topic."""
    found: list[Change | StateAt] = []
    async for item in node.broker.metadata.changes.follow(after):
        found.append(item)
        command = item.command if isinstance(item, Change) else None
        if isinstance(command, CreateTopic) and command.name == f"default/{topic}":
            break
    return found


def test_d21_a_topic_is_found_by_its_whole_name_on_every_node() -> None:
    """D21: a lookup matched substrings: /ns/a matched /ns/ab."""

    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await log.append("ns/ab", [b"ab"])
            await log.append("ab", [b"default ab"])
        for node in world.up:
            async with world.connect(node.node_id) as log:
                for wrong in ("ns/a", "ns/b", "ns/abc", "a", "b", "s/ab", "ab/ab"):
                    with pytest.raises(UnknownTopic):
                        await log.describe_topic(wrong)
                    with pytest.raises(UnknownTopic):
                        await read_all(log, wrong)
        async with world.connect(2) as log:
            assert (await log.append("ns/a", [b"a"])).base_offset == 0
            assert await read_all(log, "ns/a") == [b"a"]
            await log.delete_topic("ns/a")
        async with world.connect(3) as log:
            assert await read_all(log, "ns/ab") == [b"ab"]
            assert await read_all(log, "ab") == [b"default ab"]
            assert [topic.topic for topic in await log.list_topics()] == ["default/ab", "ns/ab"]

    run_story(story)


def test_d22_every_failure_of_an_append_keeps_its_name_through_another_node() -> None:
    """D22: whatever failed in a publish was answered as PermissionDenied."""

    async def story(world: World) -> None:
        topic = await plants.make_topic(world)
        leader = world.leader_of(topic)
        other = next(node for node in world.up if node is not leader)
        client = await plants.raw_client(world, other)
        await client.call(Kind.ALTER_TOPIC, AlterTopic(topic, {"max_message_bytes": 200_000}))
        await client.append(topic, frame_of(b"0", producer=7, sequence=0))
        assert await failure(client, topic, frame_of(b"x", producer=7, sequence=5)) is OutOfSequence
        assert await failure(client, topic, frame_of(b"x", producer=8, sequence=5)) is UnknownProducer
        assert await failure(client, topic, frame_of(b"x" * 300_000)) is MessageTooLarge
        assert await failure(client, "never-made", frame_of(b"x")) is UnknownTopic
        leader.kill()
        await asyncio.sleep(1)  # what was sent to it before its death is known would be in doubt instead
        assert await failure(client, topic, frame_of(b"x")) is NodeUnreachable
        await leader.start()
        await world.settle()
        await asyncio.sleep(1)  # who could not be reached is not tried again at once
        room = leader.disk.free_bytes()
        leader.disk.capacity -= room
        assert await failure(client, topic, frame_of(b"x" * 150_000)) is StorageFailed
        leader.disk.capacity += room
        await world.settle()
        async with world.connect(other.node_id) as log:
            assert await read_all(log, topic) == [b"0"]

    async def failure(client: RawClient, topic: str, frame: bytes) -> type[IsterError]:
        with pytest.raises(IsterError) as caught:
            await client.append(topic, frame)
        assert caught.value.message and caught.value.hint
        return type(caught.value)

    run_story(story, auto_create_topics=False)
