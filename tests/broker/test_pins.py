"""Readers that say how far they are: kept by the metadata, waited for by retention, shown to people."""

from __future__ import annotations

import asyncio

import pytest
from broker_helpers import SimNode, simulated

import ister
from ister.cli.lag import ReaderLags, reader_lags
from ister.cli.terminal import Paint
from ister.client.lag import lag_of
from ister.errors import BadRequest, Overloaded, UnknownTopic
from ister.metadata.pins import MAX_PINS


def connect(node: SimNode) -> ister.Log:
    host, port = node.address
    return ister.connect(f"{host}:{port}", network=node.world.host("client"), clock=node.clock)


def test_a_pin_is_listed_with_its_place_its_rate_and_its_last_renewal() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await log.append("t", [b"x"] * 100)
            await log.pin("t", "reader", 10, about="a test")
            await asyncio.sleep(10)
            before_us = node.clock.now_us()
            pinned = await log.pin("t", "reader", 60, ttl_s=30)
            (found,) = await log.pins()
            assert (found.topic, found.name, found.offset, found.about) == ("default/t", "reader", 60, "")
            assert before_us <= found.renewed_at_us <= node.clock.now_us()
            assert found.expires_at_us == pinned.expires_at_us == found.renewed_at_us + 30_000_000
            assert (round(found.rate), found.is_live, pinned.start_offset) == (5, True, 0)
            await asyncio.sleep(31)
            assert [pin.is_live for pin in await log.pins("default/t")] == [False]
            assert await log.pins("other/") == []
            await log.unpin("t", "reader")
            await log.unpin("t", "reader")
            assert await log.pins() == []

    simulated(scenario)


def test_retention_waits_for_a_live_pin_and_goes_on_when_it_runs_out() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await log.create_topic("t", segment_records=10, retention_ms=60_000)
            for _ in range(4):
                await log.append("t", [b"x"] * 10)
            await log.pin("t", "slow", 15, ttl_s=100)
            await asyncio.sleep(80)
            assert (await log.describe_topic("t")).start_offset == 10, "only what the reader has read went"
            await asyncio.sleep(30)
            assert (await log.describe_topic("t")).start_offset == 40

    simulated(scenario, monitor_check_ms=5000)


def test_a_pin_that_is_renewed_for_ever_holds_twice_the_retention_and_no_more() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await log.create_topic("t", segment_records=10, retention_ms=60_000)
            await log.append("t", [b"x"] * 20)
            for _ in range(10):
                await log.pin("t", "stuck", 0, ttl_s=60)
                await asyncio.sleep(11)
            assert (await log.pin("t", "stuck", 0, ttl_s=60)).start_offset == 0
            for _ in range(3):
                await asyncio.sleep(10)
                came_late = await log.pin("t", "stuck", 0, ttl_s=60)
            assert came_late.start_offset == 20
            lag = await lag_of(log, "t", 0, node.clock.now_us())
            assert (lag.records, lag.lost) == (20, 20)

    simulated(scenario, monitor_check_ms=5000)


def test_i3_a_pin_of_a_topic_that_was_made_again_is_none_of_the_new_one() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            uid = (await log.create_topic("t")).uid
            await log.pin("t", "reader", 3, uid=uid)
            await log.delete_topic("t")
            await log.create_topic("t")
            assert await log.pins() == []
            with pytest.raises(UnknownTopic):
                await log.pin("t", "reader", 3, uid=uid)

    simulated(scenario)


def test_many_readers_that_renew_at_once_share_a_few_commands() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await log.append("t", [b"x"])
            before = node.broker.metadata.state.applied_index
            await asyncio.gather(*(log.pin("t", f"{n}", 1, ttl_s=600) for n in range(MAX_PINS)))
            assert len(await log.pins()) == MAX_PINS
            assert node.broker.metadata.state.applied_index - before < MAX_PINS / 4
            with pytest.raises(Overloaded, match=f"has {MAX_PINS} pins"):
                await log.pin("t", "one-more", 1)

    simulated(scenario)


@pytest.mark.parametrize(
    ("name", "offset", "ttl_s"),
    [("", 0, 60), ("x" * 201, 0, 60), ("a\nb", 0, 60), ("p", -1, 60), ("p", 0, 0.5), ("p", 0, 3601)],
)
def test_what_can_be_no_pin_is_refused(name: str, offset: int, ttl_s: float) -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await log.append("t", [b"x"])
            with pytest.raises(BadRequest, match="the pin"):
                await log.pin("t", name, offset, ttl_s=ttl_s)

    simulated(scenario)


def test_the_lag_is_told_in_records_and_in_time() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await log.append("t", [b"x"] * 4)
            await asyncio.sleep(100)
            await log.append("t", [b"y"] * 4)
            await asyncio.sleep(20)
            await log.pin("t", "a", 4, about="query orders")
            await log.pin("t", "b", 8)
            now_us = node.clock.now_us()
            assert round((await lag_of(log, "t", 2, now_us)).seconds or 0) == 120
            readers = await reader_lags(log, "default/t")
            told = {one.pin.name: one.lag for one in readers if one.lag is not None}
            assert (told["a"].records, told["b"].records, told["b"].seconds) == (4, 0, 0.0)
            text = ReaderLags(readers).to_text(Paint(on=False))
            assert text.splitlines()[0].split() == (
                ["READER", "TOPIC", "OFFSET", "END", "BEHIND", "TIME", "BEHIND", "RATE", "RENEWED", "NOTES"]
            )
            assert "query orders" in text
            (entry,) = [entry for entry in ReaderLags(readers).to_objects() if entry["reader"] == "a"]
            assert (entry["records_behind"], entry["end_offset"], entry["is_live"]) == (4, 8, True)

    simulated(scenario)


def test_nobody_with_a_pin_is_said_so() -> None:
    assert ReaderLags([]).to_text(Paint(on=False)).startswith("No reader has a pin.")
