"""A topic through lost answers, damage, long silence and a stop: it goes on, and everybody is told."""

from __future__ import annotations

import asyncio
import errno

import pytest
from broker_helpers import Answers, RawClient, SimNode, frame_of, refusal, simulated

from ister.errors import CorruptSegment, OffsetOutOfRange, ShuttingDown, StorageFailed
from ister.metadata.commands import Command, Outcome, SealSegment
from ister.protocol.messages import AlterTopic, Kind
from ister.testing.mount import OpenFile

DAY_SECONDS = 24 * 3600


@pytest.mark.parametrize("times", [1, 3])
def test_a_seal_that_was_applied_but_whose_answer_was_lost_is_no_end_of_the_topic(times: int) -> None:
    """H1: proposing again is safe; the segment that the lost seal opened must not be sealed in its place."""

    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.create("t", segment_records=2)
        propose, left = node.broker.metadata.propose, [times]

        async def lossy(command: Command) -> Outcome:
            outcome = await propose(command)
            if isinstance(command, SealSegment) and left[0]:
                left[0] -= 1
                raise StorageFailed("the answer was lost")
            return outcome

        node.broker.metadata.propose = lossy  # type: ignore[method-assign]
        for number in range(7):
            assert (await client.append("t", frame_of(b"%d" % number))).base_offset == number
        assert left == [0]
        assert [s.base_offset for s in (await client.describe("t")).segments] == [0, 2, 4, 6]
        assert await client.values("t") == [b"%d" % number for number in range(7)]

    simulated(scenario)


def test_a_seal_that_another_proposal_came_before_goes_on_to_the_next_segment() -> None:
    """H1: the result is "stale", and the topic is still there."""

    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.create("t", segment_records=2)
        propose = node.broker.metadata.propose

        async def twice(command: Command) -> Outcome:
            if isinstance(command, SealSegment):
                await propose(command)
            return await propose(command)

        node.broker.metadata.propose = twice  # type: ignore[method-assign]
        for number in range(5):
            assert (await client.append("t", frame_of(b"%d" % number))).base_offset == number
        assert [s.base_offset for s in (await client.describe("t")).segments] == [0, 2, 4]

    simulated(scenario)


def test_a_producer_is_remembered_by_append_time_and_not_by_the_clock_at_the_seal() -> None:
    """A5: a topic that was silent for ten days forgets nobody when its segment is sealed."""

    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.append("t", frame_of(b"one", producer=7, sequence=0))
        node.clock.jump(10 * DAY_SECONDS)
        node.broker.topics["default/t"].handing_off.start()
        await client.append("t", frame_of(b"two", producer=7, sequence=1))
        assert len((await client.describe("t")).segments) == 2
        assert await client.values("t") == [b"one", b"two"]

    simulated(scenario)


def test_a_stop_answers_all_that_is_queued_and_refuses_all_that_is_held() -> None:
    """A program that embeds the broker has no connection that breaks: its sinks must hear."""

    async def scenario(node: SimNode) -> None:
        answers = Answers()
        topic = await node.broker.create_topic("t", {"segment_records": 3}, if_absent=False)
        await topic.led.ensure_open()
        node.disk.slow(0.1)
        for number in range(3):
            answers.append(topic, number, b"queued")
        for number in range(3, 6):
            answers.append(topic, number, b"held")
        assert not answers.appended_at and not answers.refusals
        await node.stop()
        assert answers.appended_at == {0: 0, 1: 1, 2: 2}
        assert {type(error) for error in answers.refusals.values()} == {ShuttingDown}
        assert sorted(answers.refusals) == [3, 4, 5]
        answers.append(topic, 6, b"late")
        assert isinstance(answers.refusals[6], ShuttingDown)

    simulated(scenario)


def test_an_append_between_the_stop_of_two_topics_is_answered() -> None:
    """The broker flushes once for all, then lets go of one topic after the other."""

    async def scenario(node: SimNode) -> None:
        answers = Answers()
        first, second, third = [
            await node.broker.create_topic(name, {}, if_absent=False) for name in ("first", "second", "third")
        ]
        await second.led.ensure_open()
        await third.led.ensure_open()
        close = first.close

        async def closed_with_a_cycle_under_way() -> None:
            await close()
            node.broker.commits._recent_sync = 1.0  # in the worker, as under load
            node.disk.slow(5, count=1)
            answers.append(third, 3, b"a long cycle")
            await asyncio.sleep(0.001)
            answers.append(second, 2, b"for the next cycle")

        first.close = closed_with_a_cycle_under_way  # type: ignore[method-assign]
        await node.stop()
        assert answers.appended_at == {2: 0, 3: 0}

    simulated(scenario)


def test_a_stop_before_the_seal_of_a_failed_segment_says_that_the_outcome_is_unknown() -> None:
    async def scenario(node: SimNode) -> None:
        answers = Answers()
        topic = await node.broker.create_topic("t", {}, if_absent=False)
        await topic.led.ensure_open()

        async def unreachable(command: Command) -> Outcome:
            raise StorageFailed("nobody can say")

        node.broker.metadata.propose = unreachable  # type: ignore[method-assign]
        node.disk.faults.add("sync", prefix="segments/", suffix=".log", count=1, error=errno.EIO)
        answers.append(topic, 1, b"written, not synced")
        await asyncio.sleep(5)
        assert not answers.refusals, "a seal may still exclude it"
        await node.stop()
        assert type(answers.refusals[1]) is StorageFailed
        assert "may or may not be" in answers.refusals[1].message
        assert "unknown" in answers.refusals[1].hint

    simulated(scenario)


async def damaged_open_segment(node: SimNode) -> tuple[SimNode, RawClient, str]:
    """Records 0 to 3 in sealed segments, 4 to 6 in an open one whose first frame has rotted."""
    client = await node.connect()
    await client.create("t", segment_records=2)
    for number in range(4):
        await client.append("t", frame_of(b"%d" % number))
    await client.call(Kind.ALTER_TOPIC, AlterTopic("t", {"segment_records": 100}))
    for number in range(4, 7):
        await client.append("t", frame_of(b"%d" % number))
    topic = node.broker.topics["default/t"]
    path = topic.known.identity_of(topic.state.open_segment).path
    node.disk.kill()
    node.world.kill("broker")
    node._stopped = True
    node.disk.rot(path + ".log", 70)
    again = await node.launch_again()
    return again, await again.connect(), path


def test_a_damaged_open_segment_leaves_the_sealed_ones_readable() -> None:
    async def scenario(node: SimNode) -> None:
        again, client, _ = await damaged_open_segment(node)
        for offset in range(4):
            frames = await client.fetch("t", offset, 1, wait_ms=1000)
            assert [frame.records()[0].value for frame in frames] == [b"%d" % offset]
        for offset in (4, 5, 6, 7, 100):
            error = await refusal(client.fetch("t", offset), CorruptSegment)
            assert "default/t:3 is damaged" in error.message
        await refusal(client.offsets_at("t", -1), CorruptSegment)
        assert await client.offsets_at("t", -2, 1) == [0, 0]
        await refusal(client.fetch("t", -5), OffsetOutOfRange)
        await again.stop()

    simulated(scenario)


def test_a_damaged_open_segment_is_not_recovered_anew_for_each_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(node: SimNode) -> int:
        again, client, path = await damaged_open_segment(node)
        await refusal(client.fetch("t", 5), CorruptSegment)
        opened: list[str] = []
        make = OpenFile.__init__

        def counting(self: OpenFile, *args: object) -> None:
            make(self, *args)  # type: ignore[arg-type]
            opened.append(self._path)

        monkeypatch.setattr(OpenFile, "__init__", counting)
        for _ in range(100):
            await refusal(client.fetch("t", 5), CorruptSegment)
            await client.describe("t")
        monkeypatch.undo()
        await again.stop()
        return opened.count(path + ".log")

    assert simulated(scenario) <= 1
