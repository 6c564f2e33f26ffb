"""What becomes of records that are not acknowledged: later, elsewhere, and in the end as the policy says."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from ister.errors import BadRequest
from ister.protocol.subscriptions import FailurePolicy
from ister.testing.cluster import World, run_story
from tests.broker.broker_helpers import SimNode, simulated
from tests.subscriptions.test_consuming import append, connect

QUICK = FailurePolicy(max_redeliveries=2, backoff_ms=1000, backoff_max_ms=4000)


def dead(max_redeliveries: int = 2, backoff_ms: int = 500) -> FailurePolicy:
    return FailurePolicy(max_redeliveries=max_redeliveries, backoff_ms=backoff_ms, on_failure="dead-letter")


def test_a_refused_record_comes_back_after_its_pause_which_doubles() -> None:
    async def scenario(node: SimNode) -> None:
        loop = asyncio.get_running_loop()
        async with connect(node) as log:
            await append(log, 0, 2)
            await log.create_subscription("t", "s", kind="shared", start="earliest", policy=QUICK)
            came: list[float] = []
            async with log.subscribe("t", "s") as subscription:
                async for message in subscription:
                    if message.offset == 1:
                        await message.ack()
                        continue
                    came.append(loop.time())
                    assert (message.attempt, message.may_repeat) == (len(came), len(came) > 1)
                    if len(came) == 5:
                        await message.ack(durable=True)
                        break
                    await message.nack(delay_s=7.0 if len(came) == 1 else None, reason="not today")
            pauses = [later - earlier for earlier, later in pairwise(came)]
            expected = [7.0, 2.0, 4.0, 4.0]  # asked for, doubled, and then blocked: the longest, each time
            pairs = list(zip(expected, pauses, strict=True))
            assert all(least <= found < least + 1.2 for least, found in pairs), pauses
            assert [one.cursor for one in await log.subscriptions()] == [2]

    simulated(scenario)


def test_what_is_not_acknowledged_in_time_goes_to_another_consumer() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node, "slow") as slow, connect(node, "other") as other:
            policy = FailurePolicy(ack_timeout_ms=5000, backoff_ms=0)
            await slow.create_topic("t")
            await slow.create_subscription("t", "s", kind="shared", policy=policy)
            stalled = slow.subscribe("t", "s")
            await stalled.open()
            await append(slow, 0, 5)
            had = await stalled.next()
            assert had is not None and (had.start, had.end) == (0, 5)
            async with other.subscribe("t", "s") as subscription:
                assert await subscription.next(4.0) is None
                again = await subscription.next(3.0)
                assert again is not None and (again.start, again.attempt) == (0, 2)
                await had.ack(durable=True)  # it has dealt with them, late: that is what counts
                assert [one.cursor for one in await slow.subscriptions()] == [5]

    simulated(scenario)


def test_what_fails_too_often_goes_to_the_dead_letters_with_why() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await log.append("t", [b"0", b"1", b"2"], keys=[b"k0", b"k1", b"k2"])
            await log.create_subscription("t", "s", kind="shared", start="earliest", policy=dead())
            attempts = 0
            async with log.subscribe("t", "s") as subscription:
                while (batch := await subscription.next(15.0)) is not None:
                    for message in batch.messages():
                        if message.offset == 1:
                            attempts += 1
                            await message.nack(reason="poison")
                        else:
                            await message.ack()
            assert attempts == 3
            (found,) = await log.subscriptions()
            assert (found.cursor, found.dead_letter_topic) == (3, "default/t.s.dead")
            (letter,) = [record async for record in log.read(found.dead_letter_topic)]
            assert (letter.key, letter.value) == (b"k1", b"1")
            assert dict(letter.headers) == {
                "x-original-topic": b"default/t",
                "x-original-offset": b"1",
                "x-original-subscription": b"s",
                "x-failure-reason": b"poison",
                "x-delivery-attempt": b"3",
            }

    simulated(scenario)


def test_what_fails_too_often_is_dropped_only_if_that_is_the_policy() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await append(log, 0, 3)
            policy = FailurePolicy(max_redeliveries=1, backoff_ms=100, on_failure="drop")
            async with log.subscribe("t", "s", kind="shared", start="earliest", policy=policy) as taken:
                seen = 0
                while (batch := await taken.next(5.0)) is not None:
                    seen += len(batch)
                    await batch.nack(reason="no")
            assert seen == 6
            assert [one.cursor for one in await log.subscriptions()] == [3]

    simulated(scenario)


def test_a_policy_that_means_nothing_is_refused() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await log.create_topic("t")
            for policy, about in (
                (FailurePolicy(on_failure="panic"), "block, drop, dead-letter"),
                (FailurePolicy(backoff_ms=50, backoff_max_ms=10), "50 to"),
                (FailurePolicy(max_redeliveries=-1), "0 to"),
                (FailurePolicy(dead_letter_topic="x"), "dead-letter"),
            ):
                with pytest.raises(BadRequest) as refused:
                    await log.create_subscription("t", "s", policy=policy)
                assert about in refused.value.hint

    simulated(scenario)


def test_attempts_outlive_a_change_of_owner() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.create_topic("t", replicas=3)
            await append(log, 0, 1)
            policy = dead(max_redeliveries=3, backoff_ms=100)
            await log.create_subscription("t", "s", kind="shared", start="earliest", policy=policy)
            attempts: list[int] = []
            async with log.subscribe("t", "s") as subscription:
                for _ in range(2):
                    batch = await subscription.next(30.0)
                    assert batch is not None
                    attempts.append(batch.attempt)
                    await batch.nack(delay_s=10.0, reason="no")
                await asyncio.sleep(6)  # stored
                (found,) = await log.subscriptions()
                world.nodes[found.owner].kill()
                while (batch := await subscription.next(60.0)) is not None:
                    attempts.append(batch.attempt)
                    await batch.nack(reason="no")
            assert attempts == [1, 2, 3, 4]
            letters = [record async for record in log.read("t.s.dead")]
            assert [dict(letter.headers)["x-delivery-attempt"] for letter in letters] == [b"4"]

    run_story(story, replicas=3)
