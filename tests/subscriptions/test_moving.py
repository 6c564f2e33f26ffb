"""A subscription that is sent elsewhere, paused, taken over by a standby, and waited for by retention."""

from __future__ import annotations

import asyncio

import pytest

from ister.cli.lag import subscription_lags
from ister.cli.terminal import Paint
from ister.errors import BadRequest, StaleDelivery
from ister.metadata.commands import FlushRow, FlushSubscriptions, Result
from ister.testing.cluster import World, run_story
from tests.broker.broker_helpers import SimNode, simulated
from tests.history.test_hybrid_reading import OLD, all_released, files_are_gone
from tests.replication.repair_helpers import fill, until
from tests.subscriptions.test_consuming import append, connect


def test_a_seek_moves_all_consumers_and_nothing_from_before_undoes_it() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log, connect(node, "operator") as operator:
            await append(log, 0, 50)
            await log.create_subscription("t", "s", start="earliest")
            async with log.subscribe("t", "s", window=20) as subscription:
                old = await subscription.next()
                assert old is not None and old.start == 0
                moved = await operator.seek_subscription("t", "s", 40)
                assert moved.cursor == 40
                seen = [await subscription.next(20.0) for _ in range(1)]
                while seen[-1] is not None and seen[-1].epoch == old.epoch:
                    seen.append(await subscription.next(20.0))
                assert seen[-1] is not None and seen[-1].start == 40
                with pytest.raises(StaleDelivery):
                    await old.ack(durable=True)
                await subscription.seek("earliest")
                again = await subscription.next(20.0)
                assert again is not None and again.start == 0 and again.may_repeat
                await again.ack(durable=True)
                with pytest.raises(BadRequest, match="0 to 50"):
                    await operator.seek_subscription("t", "s", 51)

    simulated(scenario)


def test_a_flush_from_before_a_seek_does_not_undo_it() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await append(log, 0, 50)
            await log.create_subscription("t", "s", start="earliest")
            async with log.subscribe("t", "s") as subscription:
                assert await subscription.next() is not None
                (before,) = await log.subscriptions()
                await log.seek_subscription("t", "s", 10)
                metadata = node.broker.metadata
                late = FlushRow(before.topic_uid, before.uid, before.epoch, 30, [], [])
                outcome = await metadata.propose(FlushSubscriptions(metadata.member, [late]))
                assert outcome.result is Result.STALE
                assert [one.cursor for one in await log.subscriptions()] == [10]

    simulated(scenario)


def test_an_old_owners_late_flush_changes_nothing() -> None:
    """S1."""

    async def story(world: World) -> None:
        async with world.connect() as log:
            await append(log, 0, 50)
            await log.create_subscription("t", "s", kind="shared", start="earliest")
            async with log.subscribe("t", "s", window=10) as subscription:
                batch = await subscription.next()
                assert batch is not None
                await batch.ack(end=1, durable=True)
                (before,) = await log.subscriptions()
                world.nodes[before.owner].kill()
                while batch is not None and batch.epoch == before.epoch:
                    batch = await subscription.next(20.0)
                assert batch is not None
            metadata = world.up[0].broker.metadata
            old = world.nodes[before.owner].member
            late = FlushRow(before.topic_uid, before.uid, before.epoch, 30, [], [])
            outcome = await metadata.propose(FlushSubscriptions(old, [late]))
            assert outcome.result is Result.STALE
            assert [one.cursor for one in await log.subscriptions()] == [1]

    run_story(story, replicas=3)


def test_a_paused_subscription_hands_out_nothing_until_it_is_resumed() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await log.create_topic("t")
            await log.create_subscription("t", "s")
            async with log.subscribe("t", "s") as subscription:
                await append(log, 0, 10)
                had = await subscription.next()
                assert had is not None
                await subscription.pause()
                await append(log, 10, 10)
                await had.ack(durable=True)
                assert await subscription.next(5.0) is None
                assert [one.paused for one in await log.subscriptions()] == [True]
                await subscription.resume()
                more = await subscription.next(5.0)
                assert more is not None and more.start == 10

    simulated(scenario)


def test_a_standby_takes_a_failover_subscription_over_and_gets_nothing_before() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node, "first") as first, connect(node, "standby") as standby:
            await first.create_topic("t")
            await first.create_subscription("t", "s", kind="failover")
            async with first.subscribe("t", "s") as active:
                await asyncio.sleep(1)
                async with standby.subscribe("t", "s") as second:
                    await append(first, 0, 30)
                    had = await active.next()
                    assert had is not None and had.start == 0
                    await had.ack(start=0, end=4, durable=True)
                    assert await second.next(5.0) is None
                    node.world.kill("first")
                    taken = await second.next(20.0)
                    assert taken is not None and taken.start == 4 and taken.may_repeat

    simulated(scenario)


def test_retention_waits_for_a_cursor_within_its_bound() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await log.create_topic("t", segment_records=10, retention_ms=60_000)
            await log.create_subscription("t", "s", start="earliest")
            await append(log, 0, 40)
            async with log.subscribe("t", "s") as subscription:
                batch = await subscription.next()
                while batch is not None and batch.end < 15:
                    await batch.ack()
                    batch = await subscription.next()
                assert batch is not None
                await batch.ack(end=15, durable=True)
            (shown,) = await subscription_lags(log, "default/t")
            assert (shown.records, shown.to_object()["offset"]) == (25, 15)
            assert any("25" in cell for cell in shown.to_row(Paint(on=False)))
            await asyncio.sleep(80)
            assert (await log.describe_topic("t")).start_offset == 10, "only what was acknowledged went"
            await asyncio.sleep(60)
            assert (await log.describe_topic("t")).start_offset == 40
            async with log.subscribe("t", "s") as subscription:
                await append(log, 40, 1)
                after = await subscription.next(10.0)
                assert after is not None and after.start == 40, "it goes on behind what is gone, and says so"

    simulated(scenario, monitor_check_ms=5000)


def test_a_subscription_notices_nothing_of_rollovers_and_reads_sealed_segments() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.create_topic("t", segment_records=20, replicas=3)
            await log.create_subscription("t", "s", kind="shared")
            seen: list[int] = []
            async with log.subscribe("t", "s") as subscription:
                await append(log, 0, 200, batch=5)
                while len(seen) < 200 and (batch := await subscription.next(20.0)) is not None:
                    seen += range(batch.start, batch.end)
                    assert (batch.attempt, batch.epoch) == (1, 1)
                    await batch.ack()
            assert sorted(seen) == list(range(200))
            assert len((await log.describe_topic("t")).segments) > 5

    run_story(story, replicas=3)


def test_a_cursor_older_than_the_hot_log_is_read_through_the_history() -> None:
    async def story(world: World) -> None:
        await fill(world, 18)
        async with world.connect() as log:
            await log.create_subscription("t", "s", start="earliest")
            await until(lambda: all_released(world, 3) and files_are_gone(world))
            seen: list[int] = []
            async with log.subscribe("t", "s") as subscription:
                while len(seen) < 18 and (batch := await subscription.next(20.0)) is not None:
                    seen += range(batch.start, batch.end)
                    await batch.ack()
            assert seen == list(range(18))
            assert [one.cursor for one in await log.subscriptions()] == [18]

    run_story(story, has_store=True, replicas=3, **OLD)


def test_unloading_a_topic_stores_its_cursors_at_once() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await append(log, 0, 50)
            await log.create_subscription("t", "s", start="earliest")
            async with log.subscribe("t", "s", window=10) as subscription:
                batch = await subscription.next()
                assert batch is not None
                await batch.ack()
                await asyncio.sleep(0.2)
                (found,) = await log.subscriptions()
                assert (found.cursor, found.owner) == (0, world.leader_of("t").node_id)
                await log.unload_topic("t")
                await asyncio.sleep(0.5)  # the timer would take 5 s
                world.nodes[found.owner].kill()
                async with world.connect() as other:
                    assert [one.cursor for one in await other.subscriptions()] == [batch.end]

    run_story(story, replicas=3)
