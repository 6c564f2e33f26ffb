"""What is bounded of a subscription: at each bound it waits, which its lag shows, and drops nothing."""

from __future__ import annotations

import asyncio

import pytest

from ister.broker.subscriptions import handing_out, service
from ister.cli.lag import subscription_lags
from ister.errors import BadRequest, Overloaded
from tests.broker.broker_helpers import SimNode, simulated
from tests.subscriptions.test_consuming import append, connect


@pytest.mark.parametrize(
    ("bound", "kind"),
    [("MAX_PIECES", "shared"), ("MAX_UNACKNOWLEDGED", "shared"), ("MAX_KEYS", "key-shared")],
)
def test_at_a_bound_nothing_new_is_handed_out_until_something_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch, bound: str, kind: str
) -> None:
    monkeypatch.setattr(handing_out, bound, 10)

    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await log.create_topic("t")
            await log.create_subscription("t", "s", kind=kind)
            for start in range(0, 60, 2):
                values = [b"%d" % offset for offset in (start, start + 1)]
                await log.append("t", values, keys=values)
            seen: list[int] = []
            async with log.subscribe("t", "s", max_bytes=1) as subscription:
                held = []
                while (batch := await subscription.next(5.0)) is not None:
                    held.append(batch)
                had = sum(map(len, held))
                assert 10 <= had < 30, "at the bound it waits"
                (shown,) = await subscription_lags(log, "default/t")
                assert shown.records == 60, "and its lag says so"
                while held or (batch := await subscription.next(5.0)) is not None:
                    batch = held.pop(0) if held else batch
                    assert batch is not None
                    seen += range(batch.start, batch.end)
                    await batch.ack()
            assert sorted(seen) == list(range(60)), "nothing is dropped"

    simulated(scenario)


def test_the_subscriptions_of_a_topic_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_SUBSCRIPTIONS", 3)

    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await append(log, 0, 1)
            for number in range(3):
                await log.create_subscription("t", f"s{number}")
            with pytest.raises(Overloaded, match="3 subscriptions"):
                await log.create_subscription("t", "one-too-many")
            await log.delete_subscription("t", "s0")
            await log.create_subscription("t", "one-too-many")

    simulated(scenario)


def test_a_window_below_one_record_is_refused() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            with pytest.raises(BadRequest, match="window is 0"):
                log.subscribe("t", "s", window=0)

    simulated(scenario)


def test_a_consumer_that_keeps_its_own_offset_needs_no_subscription() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await append(log, 0, 10)
            seen: list[int] = []

            async def follow(start: int) -> None:
                async for frame in log.read("t", start=start, follow=True).frames():
                    seen.extend(range(max(start, frame.header.base_offset), frame.header.end_offset))

            task = asyncio.ensure_future(follow(4))
            await asyncio.sleep(1)
            await append(log, 10, 5)
            await asyncio.sleep(1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert seen == list(range(4, 15))
            assert await log.subscriptions() == []

    simulated(scenario)
