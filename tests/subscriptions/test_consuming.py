"""Consuming from one broker, and from a cluster whose nodes die: nothing is skipped, ever."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import ister
from ister.client.deliveries import Batch
from ister.errors import (
    BadRequest,
    StaleDelivery,
    SubscriptionBusy,
    SubscriptionExists,
    UnknownSubscription,
)
from ister.testing.cluster import World, run_story
from tests.broker.broker_helpers import Node, SimNode, on_real_disk, simulated


def connect(node: SimNode, name: str = "client", **options: float) -> ister.Log:
    host, port = node.address
    return ister.connect(f"{host}:{port}", network=node.world.host(name), clock=node.clock, **options)


async def take(
    log: ister.Log, count: int, *, topic: str = "t", acks: bool = True, **options: str
) -> list[int]:
    """So many records of the subscription `s`, by offset; acknowledged as they come."""
    offsets: list[int] = []
    async with log.subscribe(topic, "s", **options) as subscription:  # type: ignore[arg-type]
        async for message in subscription:
            assert message.value == b"%d" % message.offset
            offsets.append(message.offset)
            if acks:
                await message.ack()
            if len(offsets) == count:
                break
    return offsets


async def append(log: ister.Log, first: int, count: int, batch: int = 10) -> None:
    for start in range(first, first + count, batch):
        await log.append("t", [b"%d" % offset for offset in range(start, min(start + batch, first + count))])


def test_what_is_acknowledged_is_not_delivered_again_after_a_restart() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await append(log, 0, 100)
            await log.create_subscription("t", "s", start="earliest")
            assert await take(log, 35) == list(range(35))
            assert await take(log, 15) == list(range(35, 50))
        await node.stop()
        again = await node.launch_again()
        try:
            async with connect(again) as log:
                assert await take(log, 50) == list(range(50, 100))
                (found,) = await log.subscriptions()
                assert (found.topic, found.name, found.kind) == ("default/t", "s", "exclusive")
        finally:
            await again.stop()

    simulated(scenario)


def test_a_subscription_begins_at_the_end_unless_it_is_told_otherwise() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await append(log, 0, 20)
            made = await log.create_subscription("t", "latest")
            assert made.cursor == 20
            assert (await log.create_subscription("t", "first", start="earliest")).cursor == 0
            assert (await log.create_subscription("t", "there", start=7)).cursor == 7
            with pytest.raises(BadRequest, match="0 to 20"):
                await log.create_subscription("t", "beyond", start=21)
            with pytest.raises(SubscriptionExists):
                await log.create_subscription("t", "latest")
            with pytest.raises(SubscriptionExists, match="exclusive, not shared"):
                await log.create_subscription("t", "latest", kind="shared", if_absent=True)
            await log.delete_subscription("t", "there")
            with pytest.raises(UnknownSubscription):
                await log.delete_subscription("t", "there")

    simulated(scenario)


def test_a_cursor_is_stored_by_a_timer_though_nobody_acknowledges_again() -> None:
    """D12: Danube stores one only with the next acknowledgement."""

    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await append(log, 0, 20)
            await log.create_subscription("t", "s", start="earliest")
            async with log.subscribe("t", "s") as subscription:
                batch = await subscription.next()
                assert batch is not None
                await batch.ack(start=0, end=7)
                await asyncio.sleep(7)
                (found,) = await log.subscriptions()
                assert found.cursor == 7
                await batch.ack(start=9, end=12, durable=True)
                (found,) = await log.subscriptions()
                assert (found.cursor, found.beyond) == (7, [(9, 12)])

    simulated(scenario)


def test_records_arrive_as_they_are_appended_and_closing_lets_others_have_the_rest() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log, connect(node, "other") as other:
            await log.create_topic("t")
            await log.create_subscription("t", "s", kind="shared")
            first = log.subscribe("t", "s")
            await first.open()
            await append(log, 0, 30)
            had = await first.next()
            assert had is not None and had.start == 0
            await had.ack(start=0, end=5)
            await first.close()
            async with asyncio.timeout(5):
                assert await take(other, 25) == list(range(5, 30))

    simulated(scenario)


def test_an_exclusive_subscription_has_one_consumer_and_the_next_when_that_is_gone() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node, "one") as one, connect(node, "two", retry_deadline_s=2.0) as two:
            await append(one, 0, 10)
            await one.create_subscription("t", "s", start="earliest")
            async with one.subscribe("t", "s") as first:
                assert await first.next() is not None
                with pytest.raises(SubscriptionBusy):
                    await take(two, 1)
                node.world.kill("one")  # no word of it: nobody closes anything
                await asyncio.sleep(12)
                assert await take(two, 10) == list(range(10))

    simulated(scenario)


def test_shared_consumers_get_each_record_once_while_nothing_fails() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await log.create_topic("t")
            await log.create_subscription("t", "s", kind="shared")
            seen: Counter[int] = Counter()
            by: Counter[int] = Counter()
            done = asyncio.Event()

            async def consume(number: int) -> None:
                async with connect(node, f"c{number}") as mine, mine.subscribe("t", "s") as subscription:
                    async for message in subscription:
                        seen[message.offset] += 1
                        by[number] += 1
                        await message.ack()
                        if len(seen) == 400:
                            done.set()

            tasks = [asyncio.ensure_future(consume(number)) for number in range(4)]
            await asyncio.sleep(1)
            await append(log, 0, 400)
            async with asyncio.timeout(20):
                await done.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert seen == Counter(range(400))
            assert len(by) == 4, f"some got nothing: {by}"

    simulated(scenario)


def test_a_full_window_holds_delivery_back_until_something_is_acknowledged() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await append(log, 0, 100)
            await log.create_subscription("t", "s", start="earliest")
            async with log.subscribe("t", "s", window=25) as subscription:
                got: list[Batch] = []
                while (batch := await subscription.next(2.0)) is not None:
                    got.append(batch)
                assert (got[0].start, got[-1].end) == (0, 25)
                await got[0].ack(start=3, end=6)
                batch = await subscription.next(2.0)
                assert batch is not None and (batch.start, batch.end) == (25, 28)

    simulated(scenario)


def test_acknowledgements_of_every_other_record_are_more_than_one_request_holds() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await append(log, 0, 9_000, batch=1_000)
            await log.create_subscription("t", "s", start="earliest")
            async with log.subscribe("t", "s") as subscription:
                end = 0
                while end < 9_000:
                    batch = await subscription.next(5.0)
                    assert batch is not None
                    end = batch.end
                    for offset in range(batch.start, batch.end):
                        if offset % 2:
                            await batch.ack(start=offset, end=offset + 1)
                        elif offset < 200:
                            await batch.nack(start=offset, end=offset + 1, reason="x" * 1_000)
            (found,) = await log.subscriptions()
            assert (found.cursor, len(found.beyond)) == (0, 4_500)

    simulated(scenario)


def test_nothing_is_skipped_when_the_owner_is_killed_and_the_consumer_finds_the_next_by_itself() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.create_topic("t", replicas=3)
            await log.create_subscription("t", "s", kind="shared", start="earliest")
            seen: Counter[int] = Counter()

            async def consume() -> None:
                async for message in log.subscribe("t", "s"):
                    if message.offset in seen:
                        assert message.may_repeat, f"offset {message.offset} came again, and does not say so"
                    seen[message.offset] += 1
                    await message.ack()

            task = asyncio.ensure_future(consume())
            await append(log, 0, 200)
            await asyncio.sleep(7)  # stored by now
            await append(log, 200, 100)
            await asyncio.sleep(0.2)
            (found,) = await log.subscriptions()
            assert found.owner and found.epoch == 1
            world.nodes[found.owner].kill()
            await append(log, 300, 100)
            async with asyncio.timeout(60):
                while len(seen) < 400:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            assert set(seen) == set(range(400))
            assert all(seen[offset] == 1 for offset in range(200)), "what was stored came again"
            (after,) = await log.subscriptions()
            assert after.owner != found.owner and after.epoch > 1
            await asyncio.sleep(7)
            assert [one.cursor for one in await log.subscriptions()] == [400]
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run_story(story, replicas=3)


def test_an_acknowledgement_from_before_a_change_of_owner_counts_for_nothing() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.create_topic("t", replicas=3)
            await append(log, 0, 10)
            await log.create_subscription("t", "s", start="earliest")
            async with log.subscribe("t", "s") as subscription:
                old = await subscription.next()
                assert old is not None
                (found,) = await log.subscriptions()
                world.nodes[found.owner].kill()
                again = await subscription.next()
                assert again is not None and again.may_repeat and again.start == 0
                with pytest.raises(StaleDelivery):
                    await old.ack(durable=True)
                await again.ack(durable=True)
                assert [one.cursor for one in await log.subscriptions()] == [again.end]

    run_story(story, replicas=3)


def test_the_synchronous_face_has_the_same_names(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        host, port = node.address

        def work() -> list[int]:
            with ister.sync.connect(f"{host}:{port}") as log:
                log.append("t", [b"%d" % number for number in range(20)])
                log.create_subscription("t", "s", start="earliest")
                found: list[int] = []
                with log.subscribe("t", "s") as subscription:
                    for message in subscription:
                        found.append(message.offset)
                        message.ack(durable=message.offset == 19)
                        if len(found) == 20:
                            break
                assert [one.cursor for one in log.subscriptions()] == [20]
                log.delete_subscription("t", "s")
                assert log.subscriptions() == []
                return found

        assert await asyncio.to_thread(work) == list(range(20))

    on_real_disk(tmp_path, scenario)
