"""What nobody can finish exactly ends with an error that says so, never with a duplicate or a loss."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.spark.sink_world import (
    QUERY,
    Died,
    Pause,
    commit,
    dies_at,
    flat,
    forget_producers,
    lines,
    records_of,
    stage,
)

import ister
from ister.errors import (
    CommitInDoubt,
    InvalidTopicName,
    MessageTooLarge,
    OtherCluster,
    StagedRecordsGone,
    StaleBatch,
    UnknownTopic,
)
from ister.spark.sink.ledger import read_ledger
from ister.spark.sink.origin import make_ledger
from ister.spark.sink.records import encode_entry
from ister.testing.cluster import World, run_story


async def cut_short(log: ister.Log, batch: int, count: int, step: str = "half-appended") -> None:
    with pytest.raises(Died):
        await commit(log, batch, await stage(log, *lines(batch, count)), reach=dies_at(step))
    await asyncio.sleep(1)  # what was on its way arrives


async def fill_and_trim(log: ister.Log, topic: str = "t") -> None:
    for _ in range(12):
        await log.append(topic, [b"other"] * 5)
    assert await log.trim_topic(topic, 1 << 40) > 30


@pytest.mark.parametrize("step", ["half-appended", "appended"])
@pytest.mark.parametrize("batch", [0, 1])
def test_a_target_trimmed_meanwhile_is_finished_while_its_log_knows_the_producer(
    step: str, batch: int
) -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            if batch:
                await commit(log, 0, await stage(log, *lines(0, 5)))
            await cut_short(log, batch, 40, step)
            there = await records_of(log)
            await fill_and_trim(log)
            await commit(log, batch)
            await commit(log, batch + 1, await stage(log, *lines(batch + 1, 3)))
            missing = flat(lines(batch, 40))[len(there) - 5 * batch :]
            assert await records_of(log) == missing + flat(lines(batch + 1, 3))

    run_story(story, nodes=1, segment_records=10)


@pytest.mark.parametrize("batch", [0, 1])
def test_a_target_trimmed_and_a_producer_forgotten_is_in_doubt(batch: int) -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            if batch:
                await commit(log, 0, await stage(log, *lines(0, 5)))
            await cut_short(log, batch, 40)
            await forget_producers(log, "t", 10)
            assert await log.trim_topic("t", 1 << 40) > 30
            before = await records_of(log)
            for _ in range(2):
                with pytest.raises(
                    CommitInDoubt, match=f"batch {batch} .* of the batch's 40 records"
                ) as told:
                    await commit(log, batch)
            assert "new checkpoint" in told.value.hint
            assert await records_of(log) == before

    run_story(story, nodes=1, segment_records=10)


@pytest.mark.parametrize("again", [False, True])
def test_a_target_deleted_meanwhile_is_in_doubt_also_if_it_was_made_again(again: bool) -> None:
    """I3: another topic has the name, and other records."""

    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await cut_short(log, 0, 40)
            await log.delete_topic("t")
            if again:
                await log.append("t", [b"new"])
            with pytest.raises(CommitInDoubt, match="made again" if again else "deleted"):
                await commit(log, 0)
            if again:
                assert await records_of(log) == [b"new"]

    run_story(story, nodes=1)


def test_a_batch_that_was_decided_on_another_cluster_is_not_carried_out_on_this_one() -> None:
    """I1: names and uids may be the same on both, with a ledger that was copied to the other one."""

    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await cut_short(log, 0, 40)
            half = await records_of(log)
            (decided,) = (await read_ledger(log, QUERY.ledger)).decided
            assert decided.manifest.cluster == log.cluster_id
            await log.delete_topic(QUERY.ledger)
            copied = msgspec.structs.replace(decided.manifest, cluster="another")
            await make_ledger(log, QUERY.ledger)
            await log.append(QUERY.ledger, [encode_entry(copied)])
            for batch in (0, 1):
                staged = await stage(log, *lines(batch, 40))
                with pytest.raises(OtherCluster, match=r"batch 0 .* cluster another, and this is cluster"):
                    await commit(log, batch, staged)
            assert await records_of(log) == half

    run_story(story, nodes=1)


@pytest.mark.parametrize("how", ["trimmed", "deleted", "made again"])
def test_staged_records_that_are_gone_are_said_to_be(how: str) -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await log.create_topic(QUERY.stage, segment_records=4)
            staged = await stage(log, *lines(0, 40))
            await cut_short(log, 0, 40)
            half = await records_of(log)
            late = await stage(log, *lines(1, 8))
            if how == "trimmed":
                assert await log.trim_topic(QUERY.stage, 1 << 40) > 80
            else:
                await log.delete_topic(QUERY.stage)
            if how == "made again":
                await stage(log, *lines(7, 80))
            with pytest.raises(StagedRecordsGone):
                await commit(log, 0, staged)
            with pytest.raises(StagedRecordsGone):
                await commit(log, 1, late)
            assert await records_of(log) == half

    run_story(story, nodes=1)


def test_what_was_staged_and_dropped_before_it_was_decided_is_staged_anew() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await log.create_topic(QUERY.stage, segment_records=4)
            staged = await stage(log, *lines(0, 40))
            await log.trim_topic(QUERY.stage, 1 << 40)
            with pytest.raises(StagedRecordsGone):
                await commit(log, 0, staged)
            await commit(log, 0, await stage(log, *lines(0, 40)))
            assert await records_of(log) == flat(lines(0, 40))

    run_story(story, nodes=1)


def test_a_batch_that_another_driver_finished_and_trimmed_meanwhile_is_done() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log, world.connect(1) as other:
            await log.create_topic(QUERY.stage, segment_records=4)
            pause = Pause("manifest")
            sleeper = asyncio.create_task(commit(log, 0, await stage(log, *lines(0, 40)), reach=pause))
            await pause.reached.wait()
            await commit(other, 0)
            assert (await log.describe_topic(QUERY.stage)).start_offset > 30
            pause.go_on.set()
            assert (await sleeper).counts == {"default/t": 40}
            assert await records_of(log) == flat(lines(0, 40))

    run_story(story, nodes=1)


def test_a_batch_older_than_the_ledger_knows_is_refused() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await commit(log, 5, await stage(log, *lines(5, 2)))
            with pytest.raises(StaleBatch, match=r"batch 4 .* batch 5 already"):
                await commit(log, 4, await stage(log, *lines(4, 2)))
            assert await records_of(log) == flat(lines(5, 2))

    run_story(story, nodes=1)


def test_a_frame_too_large_for_its_target_is_refused_before_anything_is_decided() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await log.create_topic("t", max_message_bytes=2048)
            staged = [await stage(log, *lines(0, 3)), await stage(log, [b"x" * 3000])]
            with pytest.raises(MessageTooLarge, match="max_message_bytes is 2048"):
                await commit(log, 0, *staged)
            assert await records_of(log) == []
            await commit(log, 0, staged[0])
            assert await records_of(log) == flat(lines(0, 3))

    run_story(story, nodes=1)


def test_a_system_topic_is_no_target() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            with pytest.raises(InvalidTopicName, match="Ister's own"):
                await stage(log, [b"x"], topic="_ister/mine")
            with pytest.raises(UnknownTopic):
                await log.describe_topic("_ister/mine")

    run_story(story, nodes=1)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("batch", [0, 1])
def test_a_target_deleted_between_manifest_and_append_gets_nothing_also_if_it_was_made_again(
    batch: int, again: bool
) -> None:
    """I3: the manifest is of a topic, not of a name. The first frame of an identity would be taken by any."""

    async def story(world: World) -> None:
        async with world.connect(1) as log, world.connect(2) as other:
            await log.create_topic("t")
            if batch:
                await commit(log, 0, await stage(log, *lines(0, 5)))
            pause = Pause("manifest")
            driver = asyncio.create_task(commit(log, batch, await stage(log, *lines(batch, 40)), reach=pause))
            await pause.reached.wait()
            await other.delete_topic("t")
            if again:
                await other.append("t", [b"new"])
            pause.go_on.set()
            with pytest.raises(CommitInDoubt, match=rf"batch {batch} .* was deleted"):
                await driver
            if again:
                assert await records_of(log) == [b"new"]
            else:
                assert await log.list_topics("default/") == []

    run_story(story, nodes=2)
