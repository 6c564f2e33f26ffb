"""A topic is read as one line, whatever of it is in the history and whatever on nodes."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from ister.broker.topic.location import Here, History
from ister.errors import CorruptSegment, IsterError
from ister.frame import HEADER_SIZE
from ister.history.reading import LOOK_AGAIN_SECONDS
from ister.protocol.peer import node_of
from ister.testing import MemoryStore
from ister.testing.cluster import World, read_all, run_story
from tests.history.bad_objects import cut_short, flipped, of_another_topic, with_other_records
from tests.history.test_export import all_exported, published
from tests.replication.repair_helpers import durable, fill, numbers, sealed, until

OLD = {"segment_records": 4, "local_retention_ms": 60_000}
"""Copies go after a minute."""


def all_released(world: World, segments: int) -> bool:
    found = [one for one in sealed(world) if not one.is_empty]
    return len(found) >= segments and all(one.is_released for one in found)


def files_are_gone(world: World) -> bool:
    return all(not durable(world, node, one) for node in world.up for one in sealed(world))


@pytest.mark.parametrize("replicas", [1, 3])
def test_what_was_written_sealed_exported_and_released_is_read_from_the_first_to_the_last(
    replicas: int,
) -> None:
    async def story(world: World) -> None:
        await fill(world, 18)
        await until(lambda: all_released(world, 3) and files_are_gone(world))
        for node in world.up:
            log = world.connect(node.node_id)
            async with log:
                assert await read_all(log, "t") == numbers(18)
            assert isinstance(node.topic("t").places.locate(7), History)
        async with world.connect() as log:
            await log.append("t", [b"18"])
            assert await read_all(log, "t") == numbers(19)

    run_story(story, has_store=True, replicas=replicas, **OLD)


def test_it_begins_anywhere_and_is_found_by_time() -> None:
    async def story(world: World) -> None:
        await fill(world, 18)
        await until(lambda: all_released(world, 3))
        async with world.connect() as log:
            times = {record.offset: record.timestamp_us async for record in log.read("t")}
            for first in range(18):
                read = [record.offset async for record in log.read("t", start=first)]
                assert read == list(range(first, 18))
                found = await log.offsets_at("t", times[first])
                assert found <= first and times[found] == times[first]
            assert await log.offsets_at("t", "latest") == 18

    run_story(story, has_store=True, **OLD)


def test_a_store_that_is_down_is_a_retriable_error_and_what_is_on_nodes_is_read() -> None:
    async def story(world: World) -> None:
        await fill(world, 10)
        await until(lambda: all_released(world, 2))
        assert world.store is not None
        down = [world.store.faults.add(what, error=errno.EIO) for what in ("get", "head", "put", "piece")]
        async with world.connect(retry_deadline_s=3.0) as log:
            with pytest.raises(IsterError) as caught:
                await read_all(log, "t")
            assert caught.value.retriable, caught.value
            base = sealed(world)[-1].end_offset
            assert base is not None
            assert [record.offset async for record in log.read("t", start=base)] == list(range(base, 10))
            await log.append("t", [b"10"])
            for rule in down:
                world.store.faults.remove(rule)
            assert await read_all(log, "t") == numbers(11)

    run_story(story, has_store=True, **OLD)


@pytest.mark.parametrize("byte", [20, HEADER_SIZE + 1])
def test_a_damaged_or_missing_object_is_an_error_with_its_offsets_and_never_an_end(byte: int) -> None:
    async def story(world: World) -> None:
        await fill(world, 14)
        await until(lambda: all_released(world, 3) and files_are_gone(world))
        assert world.store is not None
        second, third = published(world)[1:3]
        assert second.history is not None and third.history is not None
        world.store.rot(second.history.name, byte)
        world.store.lose(third.history.name)
        behind = third.end_offset
        assert behind is not None
        async with world.connect() as log:
            for start, hit in ((0, second.base_offset), (third.base_offset, third.base_offset)):
                read: list[int] = []
                with pytest.raises(CorruptSegment) as caught:
                    async for record in log.read("t", start=start):
                        read.append(record.offset)  # noqa: PERF401 (what came before the error counts)
                assert read == list(range(start, hit))
                assert caught.value.offsets is not None and caught.value.offsets[0] == hit
            assert [record.offset async for record in log.read("t", start=behind)] == list(range(behind, 14))

    run_story(story, has_store=True, **OLD)


BAD: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "other records": (with_other_records, "is not the one that was published"),
    "another topic's": (of_another_topic, "and should be"),
    "cut short": (cut_short, "is cut short"),
    "bit of the footer": (flipped(-60), "the checksum of its footer"),
    "bit of the trailer": (flipped(-10), "the checksum of its last 24 bytes"),
}


@pytest.mark.parametrize("bad", BAD)
def test_what_is_put_in_the_place_of_an_object_is_named_and_nothing_of_it_is_served(bad: str) -> None:
    spoil, said = BAD[bad]

    async def story(world: World) -> None:
        await fill(world, 9)
        await until(lambda: all_released(world, 2) and files_are_gone(world))
        store, second = world.store, published(world)[1]
        assert store is not None and second.history is not None
        put_in_its_place(store, second.history.name, spoil)
        async with world.connect() as log:
            for start in (0, second.base_offset, second.base_offset + 1):
                read: list[int] = []
                with pytest.raises(CorruptSegment, match=second.history.name) as caught:
                    async for record in log.read("t", start=start):
                        read.append(record.offset)  # noqa: PERF401 (what came before the error counts)
                assert read == list(range(start, second.base_offset))
                assert said in caught.value.message
                assert caught.value.offsets == (second.base_offset, second.end_offset)
            with pytest.raises(CorruptSegment):
                await log.offsets_at("t", second.last_append_time_us)
            behind = second.end_offset
            assert behind is not None
            assert [record.offset async for record in log.read("t", start=behind)] == list(range(behind, 9))

    run_story(story, has_store=True, **OLD)


@pytest.mark.parametrize("bad", ["other records", "another topic's"])
def test_what_is_put_in_the_place_of_an_object_that_is_open_is_found_by_who_reads_on(bad: str) -> None:
    """Nothing of it is remembered but where its frames lie."""

    async def story(world: World) -> None:
        await fill(world, 5)
        await until(lambda: all_released(world, 1) and files_are_gone(world))
        store, (segment,) = world.store, published(world)
        assert store is not None and segment.history is not None
        async with world.connect(1) as log:
            assert await read_all(log, "t") == numbers(5)
            put_in_its_place(store, segment.history.name, BAD[bad][0])
            await pass_seconds(world, LOOK_AGAIN_SECONDS if bad == "other records" else 0)
            with pytest.raises(CorruptSegment, match=segment.history.name):
                await read_all(log, "t")

    run_story(story, has_store=True, history_cache_bytes=0, **OLD)


def put_in_its_place(store: MemoryStore, name: str, spoil: Callable[[bytes], bytes]) -> None:
    whole = store.peek(name)
    store.lose(name)
    store.put(name, spoil(whole))


def test_no_copy_is_released_for_an_object_that_is_no_good() -> None:
    async def story(world: World) -> None:
        await fill(world, 5)
        await until(lambda: all_exported(world, 1))
        assert world.store is not None
        (segment,) = published(world)
        assert segment.history is not None
        name = segment.history.name
        world.store.rot(name, 100)
        down = world.store.faults.add("piece", error=errno.EIO)  # so that it is not mended yet
        await until(lambda: any(one.history is not None and one.history.damaged for one in sealed(world)))
        await pass_seconds(world, 120)
        assert not sealed(world)[0].is_released
        async with world.connect() as log:
            assert await read_all(log, "t") == numbers(5)
            assert [entry.state for entry in (await log.history("t")).entries] == ["damaged", "open"]
            problems = {one.code: one for one in (await log.cluster()).problems}
            assert "default/t:1" in problems["damaged-objects"].what
            world.store.faults.remove(down)
            await until(lambda: all_released(world, 1), seconds=300)
            (again,) = published(world)
            assert again.history is not None and again.history.name != name
            assert (again.history.attempt, again.history.damaged) == (1, False)
            assert await read_all(log, "t") == numbers(5)
            assert "damaged-objects" not in {one.code for one in (await log.cluster()).problems}

    run_story(story, has_store=True, **OLD)


async def pass_seconds(world: World, seconds: float) -> None:
    end = world.loop.time() + seconds
    await until(lambda: world.loop.time() >= end, seconds + 10)


def test_what_a_reader_cannot_have_is_named_until_somebody_puts_it_back() -> None:
    """Nobody has a copy any more: nothing can be exported again."""

    async def story(world: World) -> None:
        await fill(world, 5)
        await until(lambda: all_released(world, 1) and files_are_gone(world))
        assert world.store is not None
        store, (segment,) = world.store, published(world)
        assert segment.history is not None
        name, data = segment.history.name, world.store.peek(segment.history.name)
        async with world.connect() as log:
            store.lose(name)
            with pytest.raises(CorruptSegment, match="cannot be read"):
                await read_all(log, "t")
            await until(lambda: any(one.history and one.history.damaged for one in published(world)))
            (problem,) = [one for one in (await log.cluster()).problems if one.code == "damaged-objects"]
            assert "no node has a whole copy" in problem.what and name in problem.what
            await pass_seconds(world, 120)
            await store.client("somebody").put_if_absent(name, data)
            uid = (await log.history("t")).topic_uid
            assert (await log.verify_object("t", uid, segment.uid)).problem == ""
            await until(lambda: not any(one.history and one.history.damaged for one in published(world)))
            assert await read_all(log, "t") == numbers(5)

    run_story(story, has_store=True, **OLD)


def test_an_object_that_is_gone_when_the_copies_are_to_go_keeps_one_and_lists_it_again() -> None:
    async def story(world: World) -> None:
        await fill(world, 5)
        await until(lambda: all_exported(world, 1))
        assert world.store is not None
        store, (segment,) = world.store, published(world)
        assert segment.history is not None
        late = store.faults.add("head", delay=5.0, after=1)
        await until(lambda: sealed(world)[0].is_released, seconds=300)
        store.lose(segment.history.name)
        store.faults.remove(late)
        await until(lambda: bool(sealed(world)[0].replicas), seconds=300)
        async with world.connect() as log:
            assert await read_all(log, "t") == numbers(5)

    run_story(story, has_store=True, **OLD)


def test_a_rotten_only_copy_is_read_from_the_history() -> None:
    async def story(world: World) -> None:
        await fill(world, 5)
        await until(lambda: all_exported(world, 1))
        (segment,) = published(world)
        holder = world.nodes[node_of(segment.replicas[0])]
        assert isinstance(holder.topic("t").places.locate(0), Here)
        holder.disk.rot(f"segments/{holder.topic('t').state.uid:016d}/00000001-{segment.uid:016d}.log", 100)
        async with world.connect() as log:
            assert await read_all(log, "t") == numbers(5)

    run_story(story, has_store=True, segment_records=4)


def test_what_a_dead_node_alone_had_is_read_from_the_history() -> None:
    async def story(world: World) -> None:
        await fill(world, 9)
        await until(lambda: all_exported(world, 2))
        leader = world.leader_of("t")
        lost = next(
            (
                node
                for node in world.up
                if node is not leader and any(node.member in one.replicas for one in sealed(world))
            ),
            None,
        )
        assert lost is not None
        lost.kill()
        async with world.connect(leader.node_id) as log:
            assert await read_all(log, "t") == numbers(9)

    run_story(story, has_store=True, segment_records=4)


def test_retention_drops_nothing_that_is_not_in_the_history() -> None:
    async def story(world: World) -> None:
        assert world.store is not None
        down = [world.store.faults.add(what, error=errno.EIO) for what in ("put", "piece")]
        await fill(world, 9)
        await pass_seconds(world, 300)
        assert world.leader_of("t").topic("t").state.start_offset == 0
        for rule in down:
            world.store.faults.remove(rule)
        await until(lambda: len(world.leader_of("t").topic("t").state.segments) == 1)
        assert world.leader_of("t").topic("t").state.start_offset > 0

    run_story(story, has_store=True, segment_records=4, retention_ms=60_000)


def test_a_drained_node_lets_go_of_what_is_in_the_history() -> None:
    async def story(world: World) -> None:
        await fill(world, 14)
        await until(lambda: all_exported(world, 3))
        drained = next(
            node
            for node in world.up
            if node is not world.metadata_leader()
            and any(node.member in one.replicas for one in sealed(world))
        )
        async with world.connect() as log:
            await log.drain_node(drained.node_id)
            await until(lambda: not any(drained.member in one.replicas for one in sealed(world)))
            assert any(one.is_released for one in sealed(world))
            assert await read_all(log, "t") == numbers(14)

    run_story(story, has_store=True, segment_records=4)
