"""Bugs put in on purpose: each of these ways to lose history is found by a story that is clean without it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

from ister.broker.node import upkeep
from ister.broker.node.retention import first_offset_to_keep
from ister.errors import CorruptSegment
from ister.history import exporting, objects, releasing
from ister.history.format import Exported, WholeObject
from ister.history.merging import merge, plan_merges
from ister.history.names import ObjectName, parse_name
from ister.history.objects import PartOf, Published, Stored
from ister.history.sweeping import Sweeping
from ister.metadata import history as metadata_history
from ister.metadata import merging as metadata_merging
from ister.metadata.commands import Outcome, ReleaseCopies, ReplaceObjects, Result
from ister.metadata.copies import listed
from ister.metadata.state import SegmentState, TopicState
from ister.metadata.topics import HistoryObject
from ister.testing.cluster import World, read_all, run_story
from tests.history.merging_helpers import LARGE, compact
from tests.history.test_export import all_exported, published
from tests.history.test_hybrid_reading import OLD, all_released, pass_seconds
from tests.planting import shows
from tests.replication import repair_helpers
from tests.replication.repair_helpers import fill, newest, numbers, sealed

Planted = contextlib.AbstractContextManager[Any]


async def until(holds: Callable[[], bool], seconds: float = 100) -> None:
    """Not for long: with the bug put in, what is waited for never comes."""
    await repair_helpers.until(holds, seconds)


# Stories.


def a_sweep_while_an_export_is_under_way() -> None:
    """The sweeper takes an object for nobody's that is about to be published."""

    def wants_all(self: Sweeping, name: ObjectName) -> bool:
        topic = self._metadata.state.topic_by_uid(name.topic_uid)
        segments = topic.segments if topic is not None else []
        return any(one.uid == name.segment_uid and one.history is None for one in segments)

    async def story(world: World) -> None:
        assert world.store is not None
        async with world.connect() as log:
            store = world.store
            late = [
                store.faults.add("get", delay=1.0),
                store.faults.add("delete", delay=20.0, suffix="-0.ister"),
            ]
            await fill(world, 5)
            await until(lambda: any(parse_name(name) is not None for name in store.stored()))
            await log.sweep_history("t")
            for rule in late:
                store.faults.remove(rule)
            await until(lambda: all_exported(world, 1))
            for segment in published(world):
                assert segment.history is not None
                store.peek(segment.history.name)

    with mock.patch.object(Sweeping, "_is_orphan", wants_all):
        run_story(story, has_store=True, segment_records=4)


def a_store_that_takes_nothing_for_a_while() -> None:
    async def story(world: World) -> None:
        assert world.store is not None
        down = [world.store.faults.add(what) for what in ("put", "piece")]
        await fill(world, 9)
        await pass_seconds(world, 200)
        assert world.leader_of("t").topic("t").state.start_offset == 0
        for segment in sealed(world):
            assert segment.replicas
        for rule in down:
            world.store.faults.remove(rule)
        await until(lambda: all_exported(world, 2))

    run_story(story, has_store=True, retention_ms=60_000, **OLD)


def a_topic_with_the_name_of_one_that_was_deleted() -> None:
    async def story(world: World) -> None:
        await fill(world, 5)
        await until(lambda: all_exported(world, 1))
        async with world.connect() as log:
            await log.delete_topic("t")
            await world.settle()
            await fill(world, 5, first=100)
            await until(
                lambda: all_exported(world, 1) and newest(world).topic("t").state.segments[0].is_released
            )
            assert await read_all(log, "t") == numbers(5, 100)

    run_story(story, has_store=True, **OLD)


def merged_objects_and_retention() -> None:
    """Objects are merged; then retention drops the first segments."""

    async def story(world: World) -> None:
        store = world.store
        assert store is not None
        await fill(world, 18)
        await until(lambda: all_released(world, 3))
        async with world.connect() as log:
            listed, cluster = await log.history("t"), (await log.cluster()).cluster_id
            (wanted,) = plan_merges(listed, cluster, LARGE)
            old = {one.history.name for one in published(world) if one.history is not None}
            await merge(store.client("job"), wanted)
            await log.merge_objects("t", listed.topic_uid, wanted.name.attempt, wanted.replaced())
            await log.sweep_history("t")
            assert old <= set(store.stored()), "readers may hold them"
            for attempt in range(2):
                await log.trim_topic("t", wanted.parts[attempt].end_offset)
                await pass_seconds(world, 100)
                await log.sweep_history("t")
                for segment in published(world):
                    assert segment.history is not None
                    store.peek(segment.history.name)
                start = wanted.parts[attempt].end_offset
                assert [one.offset async for one in log.read("t")] == list(range(start, 18))

    run_story(story, nodes=1, has_store=True, segment_records=4, local_retention_ms=30_000, export_after_ms=0)


def two_jobs_that_merge_the_same() -> None:
    async def story(world: World) -> None:
        store = world.store
        assert store is not None
        await fill(world, 18)
        await until(lambda: all_released(world, 3))
        async with world.connect() as log:
            listed, cluster = await log.history("t"), (await log.cluster()).cluster_id
            (wanted,) = plan_merges(listed, cluster, LARGE)
            end = wanted.parts[1].end_offset
            pair = wanted._replace(parts=wanted.parts[:2], name=wanted.name._replace(end_offset=end))
            for one in (wanted, pair):
                await merge(store.client("job"), one)
                await log.merge_objects("t", listed.topic_uid, one.name.attempt, one.replaced())
            with mock.patch("ister.history.sweeping.REPLACED_SECONDS", 0.0):
                await log.sweep_history("t")
            assert [one.offset async for one in log.read("t")] == list(range(18))

    run_story(story, nodes=1, has_store=True, segment_records=4, local_retention_ms=30_000, export_after_ms=0)


def a_rotten_object_that_is_merged() -> None:
    async def story(world: World) -> None:
        store = world.store
        assert store is not None
        await fill(world, 18)
        await until(lambda: all_released(world, 3))
        first = published(world)[0].history
        assert first is not None
        store.rot(first.name, 40)
        async with world.connect() as log:
            with contextlib.suppress(CorruptSegment):
                await compact(log, store.client("job"))
        assert published(world)[0].history == first, "it was merged"

    run_story(story, nodes=1, has_store=True, segment_records=4, local_retention_ms=30_000, export_after_ms=0)


# Bugs.


def sweeping_without_abandoning() -> Planted:
    """E3: what is listed is deleted, whatever the metadata would say."""

    async def delete(self: Sweeping, name: ObjectName) -> bool:
        await self._store.delete(str(name))
        return True

    return mock.patch.object(Sweeping, "_delete", delete)


@contextlib.contextmanager
def releasing_before_publishing() -> Iterator[None]:
    """E1: copies go by age alone."""

    def release(index: int, topic: TopicState, segment: SegmentState, command: ReleaseCopies) -> Outcome:
        listed(index, segment, [], [])
        return Outcome(Result.APPLIED, index, topic_uid=topic.uid)

    async def let_go(self: releasing.Releasing, topic: TopicState, segment: SegmentState) -> bool:
        command = ReleaseCopies(topic.uid, segment.uid, "", segment.replicas)
        return (await self._metadata.propose(command)).ok

    def due(topic: TopicState, *_: object) -> list[SegmentState]:
        return [one for one in topic.segments if one.is_sealed and one.replicas]

    with (
        mock.patch.object(metadata_history, "_release", release),
        mock.patch.object(releasing.Releasing, "release", let_go),
        mock.patch.object(releasing, "due", due),
    ):
        yield


def retention_of_what_is_not_exported() -> Planted:
    """E4: by age alone."""

    def keep(topic: TopicState, size: int, now_us: int, *, has_store: bool = False) -> int:
        return first_offset_to_keep(topic, size, now_us)

    return mock.patch.object(upkeep, "first_offset_to_keep", keep)


@contextlib.contextmanager
def names_without_uids() -> Iterator[None]:
    """I3, E2: an object is adopted by its name, and nobody looks whose it is."""

    def name_of(segment: Exported, attempt: int) -> str:
        return f"{segment.cluster_id}/{segment.topic}/{segment.start_offset:020d}-{attempt}"

    async def believe(self: exporting.Exporting, name: str, wanted: Exported) -> objects.Verified:
        size = (await self._store.head(name)).size
        trailer, footer = await objects.load_ending(self._store, name, size)
        return objects.Verified(size, trailer.object_crc, footer)

    with (
        mock.patch.object(exporting, "name_of", name_of),
        mock.patch.object(exporting.Exporting, "verify", believe),
        mock.patch("ister.history.objects.check_is_of", lambda *_: None),
        mock.patch.object(releasing.Releasing, "release", _release_unseen),
    ):
        yield


async def _release_unseen(self: releasing.Releasing, topic: TopicState, segment: SegmentState) -> bool:
    assert segment.history is not None
    command = ReleaseCopies(topic.uid, segment.uid, segment.history.name, segment.replicas)
    return (await self._metadata.propose(command)).ok


@contextlib.contextmanager
def merged_objects_are_their_first_segments() -> Iterator[None]:
    """E3: what begins with a segment that is gone is taken for nobody's."""

    def object_from(topic: TopicState, segment_uid: int) -> HistoryObject | None:
        return next((one.history for one in topic.segments if one.uid == segment_uid), None)

    with (
        mock.patch.object(metadata_history, "object_from", object_from),
        mock.patch("ister.history.sweeping.object_from", object_from),
    ):
        yield


def replacing_without_comparing() -> Planted:
    """E5: whoever comes last has its object named, whatever is published by then."""

    def apply(index: int, topic: TopicState, command: ReplaceObjects) -> Outcome:
        uids = [part.segment_uid for part in command.parts]
        segments = [one for one in topic.segments if one.uid in uids]
        metadata_merging._replace(
            segments, [one.history for one in segments if one.history is not None], command
        )
        return Outcome(Result.APPLIED, index)

    return mock.patch("ister.metadata.applying.replace_objects", apply)


def deleting_what_was_replaced_at_once() -> Planted:
    """E5: a reader that holds an old descriptor finds nothing."""
    return mock.patch("ister.history.sweeping.REPLACED_SECONDS", 0.0)


def parts_read_from_the_start_of_the_object() -> Planted:
    def seen_in(store: Stored, found: Published) -> Stored:
        return PartOf(store, 0, found.size, found.stored_size) if found.stored_size else store

    return mock.patch("ister.history.reading.seen_in", seen_in)


def merging_without_looking() -> Planted:
    """Bytes are copied, whatever they are."""
    return mock.patch.object(WholeObject, "end", lambda self: None)


PLANTED: list[tuple[Callable[[], Planted], Callable[[], None]]] = [
    (sweeping_without_abandoning, a_sweep_while_an_export_is_under_way),
    (releasing_before_publishing, a_store_that_takes_nothing_for_a_while),
    (retention_of_what_is_not_exported, a_store_that_takes_nothing_for_a_while),
    (names_without_uids, a_topic_with_the_name_of_one_that_was_deleted),
    (merged_objects_are_their_first_segments, merged_objects_and_retention),
    (replacing_without_comparing, two_jobs_that_merge_the_same),
    (deleting_what_was_replaced_at_once, merged_objects_and_retention),
    (parts_read_from_the_start_of_the_object, merged_objects_and_retention),
    (merging_without_looking, a_rotten_object_that_is_merged),
]


@pytest.mark.parametrize(("plant", "story"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_bug_is_found(plant: Callable[[], Planted], story: Callable[[], None]) -> None:
    story()
    with plant():
        assert shows(story)
