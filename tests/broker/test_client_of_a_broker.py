"""The client against a real broker: nobody waits for ever, and a time that is now is a place to read from."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from broker_helpers import SimNode, frame_of, simulated

import ister
from ister.errors import CorruptSegment, IsterError, LogClosed, UnknownTopic


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
            while log._routes._opening is None:  # noqa: ASYNC110
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
        path = topic._identity(topic.state.open_segment).path + ".log"
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

    async def scenario(node: SimNode) -> list[object]:
        async with connect(node) as log:
            await log.append("t", [b"one", b"two"])
            uid = (await log.describe_topic("t")).uid
            seen: list[object] = [await log.end_of("t", uid=uid)]
            await log.delete_topic("t")
            await log.append("t", [b"other"] * 5)
            for ask in (log.end_of("t", uid=uid), log.wait_for_record("t", 2, uid=uid, wait_s=1)):
                with pytest.raises(UnknownTopic):
                    await ask
            return [*seen, await log.end_of("t")]

    assert simulated(scenario) == [2, 5]


def test_waiting_for_a_record_ends_with_it_or_with_the_time() -> None:
    async def scenario(node: SimNode) -> tuple[int, float, int]:
        async with connect(node) as log:
            await log.append("t", [b"one"])
            began = node.loop.time()
            in_vain = await log.wait_for_record("t", 1, wait_s=2)
            took = node.loop.time() - began
            waiting = asyncio.ensure_future(log.wait_for_record("t", 1, wait_s=100))
            await asyncio.sleep(1)
            await log.append("t", [b"two"])
            return in_vain, took, await waiting

    in_vain, took, end = simulated(scenario)
    assert (in_vain, end) == (1, 2)
    assert 2 <= took < 3
