"""What is told of an append whose first attempt may have taken effect."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_broker import AppendFault, FakeBroker, Fault
from test_append import run

import ister
from ister.client.retry import leaves_doubt
from ister.errors import (
    ConfigError,
    IsterError,
    NodeUnreachable,
    NotLeader,
    Overloaded,
    RequestTimeout,
)
from ister.frame import FrameHeader


@pytest.mark.parametrize("last", [NodeUnreachable("node 2 is down"), NotLeader("moved"), Overloaded("busy")])
def test_an_append_that_may_be_in_the_log_is_not_given_up_as_one_that_is_not(last: IsterError) -> None:
    """docs/internals/cluster.md: after these the client may conclude that nothing was appended."""

    async def body(broker: FakeBroker, log: ister.Log) -> None:
        seen: list[int] = []

        def fault(header: FrameHeader) -> AppendFault:
            seen.append(header.sequence)
            return Fault.DROP_AFTER if len(seen) == 1 else last

        broker.on_append = fault
        with pytest.raises(IsterError) as told:
            await log.append("orders", [b"a"])
        assert broker.topics["default/orders"].values() == [b"a"], "it is there"
        assert leaves_doubt(told.value), f"and its caller was told {told.value!r}"

    run(body, retry_deadline_s=0.3)


def never_answer_the_second(broker: FakeBroker) -> None:
    """Frame of the first identity: it is not stored, and those behind it are refused as ahead of it."""
    identities: list[int] = []

    def fault(header: FrameHeader) -> AppendFault:
        identities.append(header.producer_id)
        return Fault.SILENCE if (header.producer_id, header.sequence) == (identities[0], 1) else None

    broker.on_append = fault


def test_a_batch_that_timed_out_says_that_it_may_land_behind_later_ones() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        never_answer_the_second(broker)
        async with log.producer("orders", linger_ms=0) as producer:
            assert await producer.send(b"a") == 0
            with pytest.raises(IsterError) as told:
                await producer.send(b"b")
            assert "behind what is sent after it" in told.value.hint
            assert await producer.send(b"c") == 1, "it goes on"

    run(body, retry_deadline_s=0.3)


def test_a_producer_that_is_to_fail_sends_nothing_behind_a_batch_that_timed_out() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        never_answer_the_second(broker)
        producer = log.producer("orders", linger_ms=0, on_timeout="fail")
        assert await producer.send(b"a") == 0
        waiting = asyncio.ensure_future(producer.send(b"b"))
        await asyncio.sleep(0.1)
        behind = asyncio.ensure_future(producer.send(b"c"))
        for sending in (waiting, behind):
            with pytest.raises(RequestTimeout):
                await sending
        with pytest.raises(RequestTimeout):
            await producer.send(b"d")
        assert broker.topics["default/orders"].values() == [b"a"]
        assert len({header.producer_id for header in broker.topics["default/orders"].headers}) == 1

    run(body, retry_deadline_s=0.3)


@pytest.mark.parametrize("options", [{"on_timeout": "wait"}, {"on_timeout": "fail", "idempotent": False}])
def test_a_producer_that_cannot_keep_its_order_is_not_opened(options: dict[str, Any]) -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        with pytest.raises(ConfigError):
            log.producer("orders", **options)

    run(body)
