"""Reading while others append and segments are handed off: nobody starves, and nothing is passed over."""

from __future__ import annotations

import asyncio

import pytest
from broker_helpers import Answers, SimNode, append_request, frame_of, simulated


@pytest.mark.parametrize("what", ["describe", "fetch"])
def test_who_reads_a_busy_topic_of_small_segments_does_not_wait_for_its_producers(what: str) -> None:
    async def scenario(node: SimNode) -> float:
        client, busy = await node.connect(), await node.connect()
        await client.create("t", segment_records=1)
        stop = False

        async def produce() -> None:
            number = 1000
            for _ in range(8):
                number += 1
                busy.send(append_request(number, "t", frame_of(b"x")))
            while not stop:
                await busy.answer()
                number += 1
                busy.send(append_request(number, "t", frame_of(b"x")))

        producing = asyncio.ensure_future(produce())
        await asyncio.sleep(0.5)
        began = node.loop.time()
        try:
            async with asyncio.timeout(15):
                await (client.describe("t") if what == "describe" else client.fetch("t", 0, 1))
        except TimeoutError:
            pass
        took = node.loop.time() - began
        stop = True
        producing.cancel()
        return took

    assert simulated(scenario) < 5


def test_a_record_appended_while_its_time_is_looked_for_is_not_skipped() -> None:
    async def scenario(node: SimNode) -> tuple[int, int]:
        client, other = await node.connect(), await node.connect()
        await client.append("t", frame_of(b"old"))
        await asyncio.sleep(1)
        since = node.clock.now_us()
        node.disk.slow(0.2, count=1)  # the search reads the file for a while
        asked = asyncio.ensure_future(client.offsets_at("t", since))
        await asyncio.sleep(0.1)
        new = await other.append("t", frame_of(b"new"))
        assert new.append_time_us >= since
        return (await asked)[0], new.base_offset

    found, new = simulated(scenario)
    assert found <= new, f"reading from that time starts at {found}, behind the record at {new}"


def test_a_segment_sealed_while_a_time_is_looked_for_is_not_skipped() -> None:
    """The search begins in a handoff; the next begins before it goes on, and seals what it passed over."""

    async def scenario(node: SimNode) -> tuple[int, list[int]]:
        client = await node.connect()
        await client.append("t", frame_of(b"old"))
        await asyncio.sleep(1)
        since = node.clock.now_us()
        topic = node.broker.topics["default/t"]
        handing_off = topic.handing_off
        handing_off.start()
        assert handing_off.task is not None
        handing_off.task.add_done_callback(lambda _: handing_off.start())  # as a filling append would
        asked = asyncio.ensure_future(topic.reads.offset_at(since))
        answers = Answers()
        answers.append(topic, 1, b"new")  # held, and released into segment 2
        found = await asked
        async with asyncio.timeout(30):
            while len(topic.state.segments) < 3:  # noqa: ASYNC110 (two handoffs later)
                await asyncio.sleep(0.01)
        assert answers.appended_at == {1: 1}
        return found, [segment.base_offset for segment in topic.state.segments]

    found, bases = simulated(scenario)
    assert bases == [0, 1, 2]
    assert found == 1
