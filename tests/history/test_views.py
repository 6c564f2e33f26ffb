"""The metadata in the layout of the document it comes from, and where one record is."""

from __future__ import annotations

import json
import logging

import pytest

import ister
from ister.protocol.peer import node_of
from ister.testing.cluster import World, run_story
from tests.history.test_export import all_exported
from tests.history.test_hybrid_reading import OLD, all_released
from tests.replication.repair_helpers import fill, sealed, until


async def value(log: ister.Log, path: str) -> object:
    found = await log.look_up(path)
    assert found.is_there, path
    return json.loads(found.value)


def test_the_paths_of_the_document_show_this_system() -> None:
    async def story(world: World) -> None:
        await fill(world, 10)
        await until(lambda: all_exported(world, 2))
        first, last = sealed(world)
        assert first.history is not None and last.end_offset is not None and first.end_offset is not None
        base = "/storage/topics/default/t"
        async with world.connect() as log:
            assert (await log.look_up("/")).below == ["cluster", "storage", "topics"]
            starts = [f"{one.base_offset:020d}" for one in (first, last)]
            assert (await log.look_up(f"{base}/segments")).below == [*starts, "cur"]
            assert await value(log, f"{base}/segments/cur") == starts[-1]
            described = await value(log, f"{base}/segments/{starts[0]}")
            assert isinstance(described, dict)
            assert (described["start_offset"], described["end_offset"]) == (0, first.end_offset - 1)
            assert (described["object"], described["size"]) == (first.history.name, first.history.size)
            state = await value(log, f"{base}/state")
            assert isinstance(state, dict)
            assert (state["sealed"], state["last_committed_offset"]) == (True, last.end_offset - 1)
            assert state["broker_id"] == node_of(last.sealed_by)
            assert await value(log, "/topics/default/t/delivery") == "Reliable"
            await log.create_subscription("t", "subs_reliable", start=6)
            assert (await log.look_up("/topics/default/t/subscriptions")).below == ["subs_reliable"]
            cursor = "/topics/default/t/subscriptions/subs_reliable/cursor"
            assert await value(log, cursor) == 5, "the last one that was acknowledged"
            leader = world.leader_of("t").node_id
            assert await value(log, f"/cluster/brokers/{leader}/default/t") is None
            assert not (await log.look_up("/cluster/unassigned/default/t")).is_there
            assert (await log.look_up("/cluster/brokers")).below == ["1", "2", "3"]
            assert not (await log.look_up(f"{base}/segments/1")).is_there
            assert not (await log.look_up("/storage/topics/default/other/state")).is_there

    run_story(story, has_store=True, segment_records=4)


def test_in_local_mode_descriptors_name_nodes() -> None:
    async def story(world: World) -> None:
        await fill(world, 5)
        await until(lambda: bool(sealed(world)))
        (only,) = sealed(world)
        async with world.connect() as log:
            described = await value(log, f"/storage/topics/default/t/segments/{0:020d}")
            assert isinstance(described, dict)
            assert described["object"] is None
            assert described["nodes"] == [node_of(member) for member in only.replicas]
            assert await value(log, "/storage/topics/default/t/segments/cur") == f"{0:020d}"

    run_story(story, segment_records=4)


def test_why_says_where_a_record_is_and_what_its_frame_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ister")

    async def story(world: World) -> None:
        await fill(world, 10)
        await until(lambda: all_released(world, 2))
        first, second = sealed(world)
        assert first.history is not None
        leader = world.leader_of("t")
        async with world.connect(leader.node_id) as log:
            old = await log.explain("t", 1)
            assert (old.tier, old.object_name, old.replicas) == ("history", first.history.name, [])
            assert (old.frame_offset, old.frame_count, old.segment) == (1, 1, 1)
            assert old.hot_start_offset == second.end_offset
            cuts = [getattr(one, "fields", {}).get("hot_start_offset") for one in caplog.records]
            assert second.end_offset in cuts, "where a reader cuts over is in the logs too"
            new = await log.explain("t", 9)
            assert (new.tier, new.object_name, new.leader) == ("log, hot tail", "", leader.node_id)
            assert (await log.explain("t", 10)).tier == "not written yet"
            times = {one.offset: one.timestamp_us async for one in log.read("t")}
            assert old.append_time_us == times[1]
            assert world.store is not None
            world.store.lose(first.history.name)
            gone = await log.explain("t", 1)
            assert "is not in" in gone.trouble or gone.frame_count

    run_story(story, has_store=True, **OLD)
