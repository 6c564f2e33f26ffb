"""The client against a real broker: nobody waits for ever, and a time that is now is a place to read from."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from broker_helpers import SimNode, frame_of, simulated

import ister
from ister.errors import CorruptSegment, IsterError, LogClosed


def connect(node: SimNode) -> ister.Log:
    host, port = node.address
    return ister.connect(f"{host}:{port}", network=node.world.host("client"), clock=node.clock)


def test_closing_the_log_while_it_reconnects_ends_its_readers() -> None:
    async def scenario(node: SimNode) -> str:
        async with connect(node) as log:
            await log.append("t", [b"one"])
            seen: list[bytes | None] = []

            async def follow() -> None:
                async for record in log.read("t", follow=True):
                    seen.append(record.value)  # noqa: PERF401

            reading = asyncio.ensure_future(follow())
            await asyncio.sleep(1)
            assert seen == [b"one"]
            node.world.partition("client", "broker")
            node.world.reset("client", "broker")
            while log.requests.routes._opening is None:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            await log.close()
            done, _ = await asyncio.wait([reading], timeout=300)
            node.world.heal()
            if not done:
                reading.cancel()
                return "waits for ever"
            return type(reading.exception()).__name__

    assert simulated(scenario) == "ConnectionFailed"


def test_a_closed_log_says_so_at_once() -> None:
    async def scenario(node: SimNode) -> float:
        async with connect(node) as log:
            await log.append("t", [b"one"])
        began = node.loop.time()
        with pytest.raises(IsterError):
            await log.append("t", [b"two"])
        return node.loop.time() - began

    assert simulated(scenario) < 1


def test_reading_from_a_time_while_others_append_is_no_error() -> None:
    """The places of one question are not seen at one moment: the time is looked up after the end was."""

    async def scenario(node: SimNode) -> list[bytes | None]:
        writer = await node.connect()
        await writer.append("t", frame_of(b"old"))
        await asyncio.sleep(1)
        async with connect(node) as log:
            since = node.clock.now_us()
            node.disk.slow(0.2, count=1)

            async def read() -> list[bytes | None]:
                moment = datetime.fromtimestamp(since / 1e6, UTC)
                return [record.value async for record in log.read("t", start=moment)]

            reading = asyncio.ensure_future(read())
            await asyncio.sleep(0.1)
            await writer.append("t", frame_of(b"new"))
            return await reading

    assert simulated(scenario) in ([], [b"new"])


def test_a_closed_log_says_what_will_not_pass() -> None:
    async def scenario(node: SimNode) -> None:
        async with connect(node) as log:
            await log.append("t", [b"one"])
        for work in (log.append("t", [b"two"]), log.describe_topic("t"), anext(aiter(log.read("t")))):
            with pytest.raises(LogClosed, match="this log is closed") as caught:
                await work
            assert not caught.value.retriable and "connect again" in caught.value.hint

    simulated(scenario)


@pytest.mark.parametrize("follow", [False, True])
def test_what_lies_before_a_damaged_open_segment_is_read_and_then_comes_the_error(follow: bool) -> None:
    """Promise 5: neither is the sealed part lost, nor does it look like the whole."""

    async def scenario(node: SimNode) -> list[bytes | None]:
        client = await node.connect()
        await client.create("t", segment_records=2)
        for number in range(3):
            await client.append("t", frame_of(b"%d" % number))
        topic = node.broker.topics["default/t"]
        path = topic.known.identity_of(topic.state.open_segment).path + ".log"
        await node.stop()
        node.disk.tear(path, 10)
        again = await node.launch_again()
        seen: list[bytes | None] = []
        async with connect(again) as log:
            with pytest.raises(CorruptSegment):
                async for record in log.read("t", follow=follow):
                    seen.append(record.value)  # noqa: PERF401
            with pytest.raises(CorruptSegment):
                await anext(aiter(log.read("t", start="latest", follow=follow)))
            with pytest.raises(CorruptSegment):
                await anext(aiter(log.read("t", last=1)))
        await again.stop()
        return seen

    assert simulated(scenario) == [b"0", b"1"]


def test_the_end_of_a_topic_is_told_only_of_the_one_that_is_meant() -> None:
    """I3: deleted and made again, the name is the same and the uid is not."""

    async def scenario(node: SimNode) -> list[dict[str, int | None]]:
        async with connect(node) as log:
            await log.append("t", [b"one", b"two"])
            first = {"t": (await log.describe_topic("t")).uid}
            seen = [await log.ends_of(first)]
            await log.delete_topic("t")
            seen.append(await log.ends_of(first))
            await log.append("t", [b"other"] * 5)
            seen.append(await log.ends_of(first))
            second = {"t": (await log.describe_topic("t")).uid}
            return [*seen, await log.ends_of(second)]

    assert simulated(scenario) == [{"t": 2}, {"t": None}, {"t": None}, {"t": 5}]


def test_waiting_for_records_ends_with_the_first_or_with_the_time() -> None:
    async def scenario(node: SimNode) -> list[tuple[bool, float]]:
        async with connect(node) as log:
            await log.append("t", [b"one"])
            await log.append("other", [b"one"])
            ends = {"t": 1, "other": 1}
            began = node.loop.time()
            seen = [(await log.wait_for_records(ends, 2), node.loop.time() - began)]
            began = node.loop.time()
            waiting = asyncio.ensure_future(log.wait_for_records(ends, 100))
            await asyncio.sleep(1)
            await log.append("other", [b"two"])
            return [*seen, (await waiting, node.loop.time() - began)]

    in_vain, not_in_vain = simulated(scenario)
    assert (in_vain[0], not_in_vain[0]) == (False, True)
    assert 1.9 < in_vain[1] < 3
    assert 1 <= not_in_vain[1] < 2


def test_waiting_for_records_of_a_topic_that_is_deleted_ends_with_it() -> None:
    async def scenario(node: SimNode) -> bool:
        async with connect(node) as log:
            await log.append("t", [b"one"])
            waiting = asyncio.ensure_future(log.wait_for_records({"t": 1}, 100))
            await asyncio.sleep(1)
            await log.delete_topic("t")
            return await asyncio.wait_for(waiting, 10)

    assert simulated(scenario)
