"""Holes of both ancestors in what a consumer is promised: what they did is in each docstring."""

from __future__ import annotations

import asyncio

import pytest

from ister.errors import OffsetOutOfRange
from ister.metadata.commands import FlushRow, FlushSubscriptions
from ister.testing.cluster import World, run_story
from tests.broker.broker_helpers import SimNode, simulated
from tests.subscriptions.test_consuming import append, connect


def test_w6_a_record_whose_consumer_vanished_goes_to_the_next_one() -> None:
    """W6: the cursor was stored before the reply left, so that a client that went away took its record
    along."""

    async def scenario(node: SimNode) -> None:
        async with connect(node, "first") as first, connect(node, "second") as second:
            await append(first, 0, 3)
            await first.create_subscription("t", "s", kind="shared", start="earliest")
            vanishing = first.subscribe("t", "s")
            await vanishing.open()
            had = await vanishing.next()
            assert had is not None and (had.start, had.end) == (0, 3)
            node.world.kill("first")
            async with second.subscribe("t", "s") as subscription:
                again = await subscription.next(20.0)
                assert again is not None and again.start == 0 and again.may_repeat

    simulated(scenario)


def test_d12_a_cursor_is_stored_by_a_timer_and_a_restart_never_goes_on_at_the_latest() -> None:
    """D12: a cursor was stored by the next acknowledgement only, and where there was none the newest record
    was the next one."""

    async def story(world: World) -> None:
        async with world.connect() as log:
            await append(log, 0, 30)
            await log.create_subscription("t", "acknowledged", start="earliest")
            await log.create_subscription("t", "untouched", start=3)
            async with log.subscribe("t", "acknowledged") as subscription:
                batch = await subscription.next()
                assert batch is not None
                await batch.ack(end=5)
                await asyncio.sleep(6)  # and not a word more: the timer is all there is
                world.nodes[1].kill(power=True)
        await world.nodes[1].start()
        async with world.connect() as log:
            await log.append("t", [b"30"])
            for name, place in (("acknowledged", 5), ("untouched", 3)):
                async with log.subscribe("t", name) as subscription:
                    first = await subscription.next(20.0)
                    assert first is not None and first.start == place

    run_story(story, nodes=1)


def test_d13_a_consumer_that_cannot_keep_up_is_waited_for_and_loses_nothing() -> None:
    """D13: beyond its rate the dispatcher dropped reliable messages."""

    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await log.create_topic("t")
            await log.create_subscription("t", "s", kind="shared")
            seen: list[int] = []
            async with log.subscribe("t", "s", window=3) as subscription:
                await append(log, 0, 500, batch=50)
                while len(seen) < 500 and (batch := await subscription.next(10.0)) is not None:
                    assert len(batch) <= 3
                    seen += range(batch.start, batch.end)
                    await asyncio.sleep(0.01)
                    await batch.ack()
            assert seen == list(range(500))

    simulated(scenario)


def test_d20_a_cursor_ahead_of_the_log_is_an_error_and_never_the_latest() -> None:
    """D20: offsets of a dead broker were given out again, so that cursors sat ahead of the log, and what was
    written up to there was skipped."""

    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await append(log, 0, 10)
            made = await log.create_subscription("t", "s", start="earliest")
            async with log.subscribe("t", "s") as subscription:
                assert await subscription.next() is not None
                (found,) = await log.subscriptions()
                ahead = FlushRow(made.topic_uid, made.uid, found.epoch, 25, [], [])
                metadata = node.broker.metadata
                assert (await metadata.propose(FlushSubscriptions(metadata.member, [ahead]))).ok
        await node.stop()
        again = await node.launch_again()
        try:
            async with connect(again) as log:
                async with log.subscribe("t", "s") as subscription:
                    with pytest.raises(OffsetOutOfRange, match="25"):
                        await subscription.next(30.0)
                await append(log, 10, 20)  # nobody takes these for read
                assert [one.cursor for one in await log.subscriptions()] == [25]
                await log.seek_subscription("t", "s", 10)
                async with log.subscribe("t", "s") as subscription:
                    first = await subscription.next(30.0)
                    assert first is not None and first.start == 10
        finally:
            await again.stop()

    simulated(scenario)
