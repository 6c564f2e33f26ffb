"""Small objects become one large one: the same bytes, replaced at once, whoever reads, trims or dies."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress

import pytest

import ister
from ister.errors import CorruptSegment
from ister.history import sweeping
from ister.history.merging import merge, plan_merges
from ister.history.sweeping import REPLACED_SECONDS
from ister.testing.cluster import World, read_all, run_story
from ister.testing.object_store import TIMED_OUT
from tests.history.merging_helpers import LARGE, compact
from tests.history.test_export import all_exported
from tests.history.test_hybrid_reading import all_released, files_are_gone, pass_seconds
from tests.history.test_sweeping import named, stored
from tests.moves.moving_helpers import a_node_other_than, moved, written
from tests.replication.repair_helpers import fill, newest, numbers, sealed, until

OLD = {"segment_records": 4, "local_retention_ms": 30_000, "export_after_ms": 0}
SOON = 20.0


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is replaced may go after a moment: an hour is long to play."""
    monkeypatch.setattr(sweeping, "REPLACED_SECONDS", SOON)


async def swept(world: World, log: ister.Log) -> None:
    await pass_seconds(world, SOON)
    await log.sweep_history("t")
    assert stored(world) == named(world)


async def released(world: World, records: int = 18, segments: int = 3) -> None:
    """A topic whose sealed segments only the history has."""
    await fill(world, records)
    await until(lambda: all_released(world, segments) and files_are_gone(world))


def test_many_objects_become_one_and_each_record_is_read_as_before_from_any_offset() -> None:
    async def story(world: World) -> None:
        assert world.store is not None
        await released(world)
        async with world.connect() as log:
            before = [(r.offset, r.value, r.timestamp_us) async for r in log.read("t")]
            old = (await log.history("t")).entries
            (done,) = await compact(log, world.store.client("job"))
            assert not done.problem
            assert named(world) == {done.name}
            new = (await log.history("t")).entries
            kept = ["uid", "start_offset", "end_offset", "size", "crc", "frames_size", "first_append_time_us"]
            for one, other in zip(old, new, strict=True):
                assert [getattr(one, each) for each in kept] == [getattr(other, each) for each in kept]
            assert [entry.position for entry in new[:3]] == [0, new[0].size, new[0].size + new[1].size]
            assert {entry.stored_size for entry in new[:3]} == {done.size}
            assert len(world.store.peek(done.name)) == done.size
            for entry in new[:3]:
                assert not (await log.verify_object("t", done_uid(world), entry.uid)).problem
            for first in range(18):
                read = [(r.offset, r.value, r.timestamp_us) async for r in log.read("t", start=first)]
                assert read == before[first:]
                found = await log.offsets_at("t", before[first][2])
                assert before[found][2] == before[first][2]

    run_story(story, has_store=True, **OLD)


def done_uid(world: World) -> int:
    return newest(world).topic("t").state.uid


def test_what_was_replaced_stays_for_its_time_and_goes_then() -> None:
    async def story(world: World) -> None:
        assert world.store is not None
        await released(world)
        old = stored(world)
        async with world.connect() as log:
            (done,) = await compact(log, world.store.client("job"))
            assert stored(world) == old | {done.name}
            assert await log.sweep_history("t") == []
            await pass_seconds(world, REPLACED_SECONDS / 2)
            assert stored(world) == old | {done.name}
            await until(lambda: stored(world) == {done.name}, seconds=REPLACED_SECONDS)
            assert await read_all(log, "t") == numbers(18)

    run_story(story, nodes=1, has_store=True, seconds=20_000, **OLD)


@pytest.mark.parametrize("wrong", ["who merges", "who sweeps"])
def test_a_clock_that_is_hours_off_has_nothing_swept_early(wrong: str) -> None:
    async def story(world: World) -> None:
        assert world.store is not None
        await released(world)
        old = stored(world)
        merges, sweeps = world.nodes[1], world.nodes[2]
        merges.clock.jump(-7200.0 if wrong == "who merges" else 0.0)
        sweeps.clock.jump(7200.0 if wrong == "who sweeps" else 0.0)
        await pass_seconds(world, 10)
        async with world.connect(1) as log:
            (done,) = await compact(log, world.store.client("job"))
        async with world.connect(2) as log:
            assert await log.sweep_history("t") == []
            assert stored(world) == old | {done.name}

    run_story(story, has_store=True, **OLD)


def test_what_is_swept_early_by_a_clock_that_jumps_is_read_where_it_is_by_then() -> None:
    """A reader has an old descriptor, and asks for a range of its object just when that goes."""

    async def story(world: World) -> None:
        store = world.store
        assert store is not None
        await released(world)
        old = stored(world)
        async with world.connect() as log, world.connect() as other:
            listed, cluster = await log.history("t"), (await log.cluster()).cluster_id
            (wanted,) = plan_merges(listed, cluster, LARGE)
            await merge(store.client("job"), wanted)
            late = store.faults.add("get", delay=20.0)
            reading = asyncio.ensure_future(read_all(other, "t"))
            await until(lambda: late.struck > 0)
            store.faults.remove(late)
            told = await log.merge_objects("t", listed.topic_uid, wanted.name.attempt, wanted.replaced())
            world.nodes[1].clock.jump(7200.0)
            assert not told.problem and set(await log.sweep_history("t")) == old
            assert not reading.done() and await reading == numbers(18)

    run_story(story, nodes=1, has_store=True, **OLD)


def test_of_two_that_merge_the_same_one_wins_and_the_other_is_told(soon: None) -> None:
    async def story(world: World) -> None:
        assert world.store is not None
        await released(world)
        async with world.connect() as log:
            listed, cluster = await log.history("t"), (await log.cluster()).cluster_id
            (whole,) = plan_merges(listed, cluster, LARGE)
            pair = whole._replace(
                parts=whole.parts[:2], name=whole.name._replace(end_offset=whole.parts[1].end_offset)
            )
            first, second = world.store.client("one"), world.store.client("two")
            await asyncio.gather(merge(first, whole), merge(second, pair))
            told = [
                await log.merge_objects("t", listed.topic_uid, one.name.attempt, one.replaced())
                for one in (whole, whole, pair)
            ]
            assert [one.problem for one in told[:2]] == ["", ""], "the answer was lost, and it came again"
            assert (
                "was replaced meanwhile: it is in" in told[2].problem and whole.name.topic in told[2].problem
            )
            assert named(world) == {str(whole.name)}
            await swept(world, log)
            assert await read_all(log, "t") == numbers(18)

    run_story(story, nodes=1, has_store=True, seconds=20_000, **OLD)


def test_an_upload_that_was_swept_is_never_named_and_the_next_run_has_another_name() -> None:
    async def story(world: World) -> None:
        assert world.store is not None
        await released(world)
        async with world.connect() as log:
            listed, cluster = await log.history("t"), (await log.cluster()).cluster_id
            (wanted,) = plan_merges(listed, cluster, LARGE)
            name = await merge(world.store.client("job"), wanted)
            assert await log.sweep_history("t") == [str(name)]
            world.store.put(str(name), b"x" * wanted.size)  # the upload of one that was killed lands late
            told = await log.merge_objects("t", listed.topic_uid, name.attempt, wanted.replaced())
            assert "was abandoned" in told.problem
            (done,) = await compact(log, world.store.client("job"))
            assert not done.problem and done.name != str(name)
            assert await read_all(log, "t") == numbers(18)

    run_story(story, has_store=True, **OLD)


def test_retention_drops_segments_of_a_merged_object_and_the_object_goes_with_the_last_of_them(
    soon: None,
) -> None:
    async def story(world: World) -> None:
        assert world.store is not None
        await released(world)
        async with world.connect() as log:
            (done,) = await compact(log, world.store.client("job"))
            behind = sealed(world)[0].end_offset
            assert behind is not None
            await log.trim_topic("t", behind)
            await swept(world, log)
            assert stored(world) == {done.name}, "two segments are in it yet"
            assert [r.offset async for r in log.read("t")] == list(range(behind, 18))
            await fill(world, 12, first=18)
            await until(lambda: all_released(world, 4))
            (again,) = await compact(log, world.store.client("job"))
            assert not again.problem and again.size < done.size + again.size
            await swept(world, log)
            assert [r.offset async for r in log.read("t")] == list(range(behind, 30))
            await log.trim_topic("t", newest(world).topic("t").state.open_segment.base_offset)
            await swept(world, log)
            assert not stored(world)

    run_story(story, nodes=1, has_store=True, seconds=60_000, **OLD)


def test_damage_in_a_merged_object_is_that_of_one_segment() -> None:
    async def story(world: World) -> None:
        assert world.store is not None
        await released(world)
        async with world.connect() as log:
            (done,) = await compact(log, world.store.client("job"))
            first, second, third = (await log.history("t")).entries[:3]
            await pass_seconds(world, 100)
            world.store.rot(done.name, second.position + 30)
            problems = [
                (await log.verify_object("t", done_uid(world), one.uid)).problem
                for one in (first, second, third)
            ]
            assert not problems[0] and not problems[2]
            assert f"offset {second.start_offset}" in problems[1]
            with pytest.raises(CorruptSegment):
                await read_all(log, "t")
            rest = [r.offset async for r in log.read("t", start=second.end_offset)]
            assert rest == list(range(second.end_offset, 18))
            assert await compact(log, world.store.client("job")) == [], "one object is not merged with itself"

    run_story(story, has_store=True, **OLD)


def test_what_is_rotten_or_not_there_is_not_merged_and_is_named() -> None:
    async def story(world: World) -> None:
        assert world.store is not None
        await released(world)
        async with world.connect() as log:
            entries = (await log.history("t")).entries
            before = named(world)
            world.store.rot(entries[1].name, entries[1].size - 30)
            with pytest.raises(CorruptSegment, match="damaged") as found:
                await compact(log, world.store.client("job"))
            assert found.value.offsets == (entries[1].start_offset, entries[1].end_offset)
            world.store.lose(entries[0].name)
            with pytest.raises(CorruptSegment, match="is not in"):
                await compact(log, world.store.client("job"))
            assert named(world) == before

    run_story(story, has_store=True, **OLD)


@pytest.mark.parametrize("operation", ["put", "piece", "get", "head"])
@pytest.mark.parametrize("applied", [False, True], ids=["refused", "applied"])
def test_a_job_that_dies_in_a_request_leaves_all_as_it_was_and_the_next_one_ends_it(
    soon: None, operation: str, applied: bool
) -> None:
    async def story(world: World) -> None:
        assert world.store is not None
        await released(world)
        before = named(world)
        async with world.connect() as log:
            for skipped in range(8):
                job = world.store.client("job")
                rule = world.store.faults.add(operation, error=TIMED_OUT, applied=applied, probability=0.4)
                work = asyncio.ensure_future(compact(log, job))
                with suppress(TimeoutError, Exception):
                    await asyncio.wait_for(work, 0.02 * skipped)
                world.store.faults.remove(rule)
                assert await read_all(log, "t") == numbers(18)
            assert len(named(world)) == 1 or named(world) == before
            job = world.store.client("job")
            await job.sweep_unfinished()
            told = await compact(log, job)
            assert len(named(world)) == 1 and not any(one.problem for one in told)
            await swept(world, log)
            assert not world.store.unfinished()
            assert await read_all(log, "t") == numbers(18)

    run_story(story, nodes=1, has_store=True, seconds=20_000, **OLD)


def test_a_node_that_missed_the_change_reads_the_old_object_and_one_that_holds_it_too_long_the_new() -> None:
    async def story(world: World) -> None:
        assert world.store is not None
        await released(world, segments=3)
        old = stored(world)
        async with world.connect() as log:
            slow = world.store.faults.add("get", delay=5.0)
            reading = asyncio.ensure_future(read_all(log, "t"))
            await asyncio.sleep(1.0)
            world.store.faults.remove(slow)
            (done,) = await compact(log, world.store.client("job"))
            assert not done.problem
            for name in old:
                world.store.lose(name)
            assert await reading == numbers(18)

    run_story(story, has_store=True, **OLD)


def test_a_topic_that_moves_and_is_written_to_meanwhile_keeps_every_record_once() -> None:
    async def story(world: World) -> None:
        assert world.store is not None
        await fill(world, 18)
        await until(lambda: all_exported(world, 3))
        async with world.connect() as log, written(log, "t") as appended:
            slow = world.store.faults.add("get", delay=0.5)
            merging = asyncio.ensure_future(compact(log, world.store.client("job")))
            await moved(log, "t", a_node_other_than(world, "t"))
            world.store.faults.remove(slow)
            (done,) = await merging
            assert not done.problem
        async with world.connect() as log:
            found = [record.offset async for record in log.read("t")]
            assert found == list(range(len(found))) and set(appended) <= set(found)

    run_story(story, has_store=True, **OLD)


def test_objects_that_are_large_enough_are_left_as_they_are_and_none_gets_larger_than_was_asked() -> None:
    async def story(world: World) -> None:
        assert world.store is not None
        await released(world, 30, 6)
        async with world.connect() as log:
            size = max(entry.size for entry in (await log.history("t")).entries)
            assert await compact(log, world.store.client("job"), object_bytes=size) == []
            told = await compact(log, world.store.client("job"), object_bytes=3 * size)
            assert len(told) >= 2 and all(one.size <= 3 * size for one in told)
            assert await compact(log, world.store.client("job"), object_bytes=3 * size) == []
            assert await read_all(log, "t") == numbers(30)

    run_story(story, has_store=True, **OLD)


def test_a_store_that_is_down_is_told_and_nothing_is_replaced() -> None:
    async def story(world: World) -> None:
        assert world.store is not None
        await released(world)
        async with world.connect(retry_deadline_s=1.0) as log:
            listed, cluster = await log.history("t"), (await log.cluster()).cluster_id
            (wanted,) = plan_merges(listed, cluster, LARGE)
            name = await merge(world.store.client("job"), wanted)
            world.store.lose(str(name))
            told = await log.merge_objects("t", listed.topic_uid, name.attempt, wanted.replaced())
            assert "is not in" in told.problem
            down = world.store.faults.add("put", error=errno.EIO)
            with pytest.raises(Exception, match="put"):
                await compact(log, world.store.client("job"))
            world.store.faults.remove(down)
            assert len(named(world)) == 3

    run_story(story, has_store=True, **OLD)
