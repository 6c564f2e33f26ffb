"""Exactly once, in order, through resets of the connection: simulated, over many seeds (A5)."""

from __future__ import annotations

import asyncio

import pytest
from fake_broker import AppendFault, FakeBroker, Fault

import ister
from ister.errors import ConnectionFailed, NotLeader, Overloaded, RequestTimeout
from ister.frame import FrameHeader
from ister.testing import SimClock, SimNetwork, VirtualLoop, simulate

TOPIC = "default/orders"
COUNT = 300


async def produce_through_trouble(loop: VirtualLoop) -> tuple[list[bytes | None], list[int], list[int]]:
    """What the log holds, the offsets that the producer was told, and what a reader saw."""
    network = SimNetwork(loop.fork("network"), trace=loop.trace)
    dice = loop.fork("faults")
    broker = FakeBroker(network.host("broker"))

    def misbehave(header: FrameHeader) -> AppendFault:
        faults: list[AppendFault] = [Fault.DROP_AFTER, Fault.DROP_BEFORE, Overloaded("x"), NotLeader("y")]
        return dice.choice(faults) if dice.random() < 0.1 else None

    broker.on_append = misbehave
    address = await broker.start("broker", 9091)
    clock = SimClock(loop, loop.fork("clock"))

    async def reset_now_and_then() -> None:
        while True:
            await asyncio.sleep(dice.uniform(0.001, 0.2))
            network.reset("client", "broker")

    seen: list[int] = []
    async with ister.connect(
        address, network=network.host("client"), clock=clock, retry_deadline_s=600
    ) as log:
        resetting = loop.create_task(reset_now_and_then())
        async with log.producer("orders", linger_ms=1, batch_records=7, max_in_flight=8) as producer:
            receipts = []
            for number in range(COUNT):
                receipts.append(await producer.submit(b"%d" % number))
                if dice.random() < 0.2:
                    await asyncio.sleep(dice.uniform(0, 0.01))
            offsets = [await receipt for receipt in receipts]
        async for record in log.read("orders", max_bytes=500):
            seen.append(record.offset)  # noqa: PERF401 (an async comprehension would hide the loop)
    resetting.cancel()
    await broker.stop()
    return broker.topics[TOPIC].values(), offsets, seen


@pytest.mark.parametrize("seed", range(30))
def test_a_producer_through_random_resets_is_exactly_once_and_in_order(seed: int) -> None:
    values, offsets, seen = simulate(produce_through_trouble, seed=seed, limit_seconds=3600)
    assert values == [b"%d" % number for number in range(COUNT)]
    assert offsets == list(range(COUNT))
    assert seen == list(range(COUNT))


async def lose_every_answer(loop: VirtualLoop) -> list[bytes | None]:
    """Three frames are appended and never answered; the first one's time is over before the others'."""
    network = SimNetwork(loop.fork("network"), trace=loop.trace)
    broker = FakeBroker(network.host("broker"))
    broker.on_append = lambda header: Fault.LOST_ANSWER
    address = await broker.start("broker", 9091)
    clock = SimClock(loop, loop.fork("clock"))
    client = network.host("client")
    async with ister.connect(
        address, network=client, clock=clock, request_timeout_s=2, retry_deadline_s=10
    ) as log:
        appends = [loop.create_task(log.append("orders", [b"0"]))]
        await asyncio.sleep(1)
        appends += [loop.create_task(log.append("orders", [value])) for value in (b"1", b"2")]
        results = await asyncio.gather(*appends, return_exceptions=True)
        assert all(isinstance(result, RequestTimeout | ConnectionFailed) for result in results), results
        broker.on_append = lambda header: None
        await log.append("orders", [b"3"])
    await broker.stop()
    return broker.topics[TOPIC].values()


@pytest.mark.parametrize("seed", range(5))
def test_frames_in_doubt_never_get_a_fresh_identity(seed: int) -> None:
    """Nobody knows whether they are in the log: under a new identity they would be there twice (A5)."""
    values = simulate(lose_every_answer, seed=seed, limit_seconds=3600)
    assert values == [b"0", b"1", b"2", b"3"]
