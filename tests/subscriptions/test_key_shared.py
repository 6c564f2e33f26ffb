"""Key-shared subscriptions: the records of a key in order, while consumers come and go."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

import ister
from ister.protocol.subscriptions import FailurePolicy
from ister.testing.cluster import World, run_story
from tests.broker.broker_helpers import SimNode, simulated
from tests.subscriptions.test_consuming import connect

KEYS = [b"key-%d" % number for number in range(20)]


async def append(log: ister.Log, first: int, count: int, keys: list[bytes] = KEYS) -> None:
    for start in range(first, first + count, 10):
        offsets = range(start, min(start + 10, first + count))
        await log.append("t", [b"%d" % o for o in offsets], keys=[keys[o % len(keys)] for o in offsets])


def test_each_key_has_one_consumer_and_its_order() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await log.create_topic("t")
            await log.create_subscription("t", "s", kind="key-shared")
            seen: dict[bytes | None, list[int]] = defaultdict(list)
            by: dict[bytes | None, set[int]] = defaultdict(set)

            async def consume(number: int) -> None:
                async with connect(node, f"c{number}") as mine, mine.subscribe("t", "s") as subscription:
                    async for message in subscription:
                        seen[message.key].append(message.offset)
                        by[message.key].add(number)
                        await message.ack()

            tasks = [asyncio.ensure_future(consume(number)) for number in range(3)]
            await asyncio.sleep(1)
            await append(log, 0, 400)
            await asyncio.sleep(5)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert sum(map(len, seen.values())) == 400
            assert all(offsets == sorted(offsets) for offsets in seen.values())
            assert all(len(owners) == 1 for owners in by.values())
            assert len(set.union(*by.values())) == 3
            assert [one.cursor for one in await log.subscriptions()] == [400]

    simulated(scenario)


def test_a_key_waits_until_its_last_owner_has_acknowledged_or_is_gone() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node, "old") as old, connect(node, "new") as new:
            await old.create_topic("t")
            await old.create_subscription("t", "s", kind="key-shared")
            first = old.subscribe("t", "s")
            await first.open()
            await append(old, 0, 20)
            had = {}
            while len(had) < 20:
                batch = await first.next(5.0)
                assert batch is not None
                had.update({message.offset: message for message in batch.messages()})
            async with new.subscribe("t", "s", window=100) as second:
                await asyncio.sleep(1)
                await append(old, 20, 20)  # each key once more
                assert await second.next(5.0) is None, "the old owner has earlier records of each key"
                got: list[int] = []
                for message in had.values():
                    if message.offset < 10:
                        await message.ack()
                while (batch := await second.next(3.0)) is not None:
                    got += range(batch.start, batch.end)
                    await batch.ack()
                assert got and all(20 <= offset < 30 for offset in got)
                node.world.kill("old")  # it acknowledges no more
                while (batch := await second.next(15.0)) is not None:
                    got += range(batch.start, batch.end)
                    await batch.ack()
                rest = [offset for offset in got if offset not in range(20, 30)]
                assert set(range(10, 20)) <= set(rest)
                for offset in range(30, 40):
                    assert rest.index(offset - 20) < rest.index(offset)

    simulated(scenario)


def test_a_refused_record_holds_its_key_back_and_no_other() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await log.create_topic("t")
            policy = FailurePolicy(backoff_ms=5000)
            await log.create_subscription("t", "s", kind="key-shared", policy=policy)
            async with log.subscribe("t", "s") as subscription:
                await append(log, 0, 2, [b"a", b"b"])
                got: list[tuple[int, int]] = []
                refused = False
                while (batch := await subscription.next(12.0)) is not None:
                    for message in batch.messages():
                        got.append((message.offset, message.attempt))
                        if message.offset == 0 and not refused:
                            refused = True
                            await message.nack(reason="not yet")
                            await asyncio.sleep(0.1)
                            await append(log, 2, 2, [b"a", b"b"])
                        else:
                            await message.ack()
                assert got == [(0, 1), (1, 1), (3, 1), (0, 2), (2, 1)]

    simulated(scenario)


def test_records_without_a_key_go_to_whoever_asks() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await log.create_topic("t")
            await log.create_subscription("t", "s", kind="key-shared")
            by: Counter[int] = Counter()

            async def consume(number: int) -> None:
                async with (
                    connect(node, f"c{number}") as mine,
                    mine.subscribe("t", "s", window=20) as subscription,
                ):
                    async for message in subscription:
                        by[number] += 1
                        await message.ack()

            tasks = [asyncio.ensure_future(consume(number)) for number in range(3)]
            await asyncio.sleep(1)
            for start in range(0, 300, 10):
                await log.append("t", [b"x"] * 5 + [b"y"] * 5, keys=[None] * 5 + [KEYS[start // 10 % 20]] * 5)
            await asyncio.sleep(5)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert sum(by.values()) == 300 and len(by) == 3

    simulated(scenario)


def test_a_new_owner_of_the_subscription_goes_on_with_what_is_earliest_of_each_key() -> None:
    """S3."""

    async def story(world: World) -> None:
        async with world.connect() as log, world.connect() as other:
            await log.create_topic("t", replicas=3)
            await log.create_subscription("t", "s", kind="key-shared", start="earliest")
            await append(log, 0, 100)
            async with log.subscribe("t", "s", window=50) as one, other.subscribe("t", "s", window=50) as two:
                got = 0
                while got < 60:
                    for subscription in (one, two):
                        batch = await subscription.next(1.0)
                        for message in batch.messages() if batch is not None else ():
                            got += 1
                            if message.offset % 3 and got < 50:
                                await message.ack()
                await asyncio.sleep(7)
                (found,) = await log.subscriptions()
                world.nodes[found.owner].kill()
                after: dict[bytes | None, list[int]] = defaultdict(list)
                done = {offset for start, end in found.beyond for offset in range(start, end)}
                while sum(map(len, after.values())) < 100 - found.cursor - len(done):
                    for subscription in (one, two):
                        batch = await subscription.next(1.0)
                        if batch is None or batch.epoch == found.epoch:
                            continue
                        for message in batch.messages():
                            after[message.key].append(message.offset)
                            await message.ack()
            assert all(offsets == sorted(offsets) for offsets in after.values())
            assert {o for offsets in after.values() for o in offsets} == set(range(found.cursor, 100)) - done

    run_story(story, replicas=3)
