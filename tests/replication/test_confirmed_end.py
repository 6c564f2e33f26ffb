"""A leader that others have replaced, and that has not heard of it, tells nobody that a topic ends there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from unittest import mock

import pytest

import ister
from ister.errors import CorruptSegment, IsterError, NotLeader, UnknownProducer
from ister.frame import FrameHeader, decode_header, encode
from ister.protocol.peer import node_of
from ister.replication.stream.confirming import Confirming
from ister.testing.loop import UnhandledErrors
from tests.replicas_sim.small import World, play
from tests.replication.test_trimmed_before_it_is_heard import Sink

FAR_FUTURE_US = 4_000_000_000_000_000


async def replace_leader(world: World) -> int:
    """Cut a leader off from the others, and have a record appended without it; the node that was cut off."""
    leader, followers = await world.make_topic()
    async with world.at(leader) as log:
        await world.send(log, "t", b"1")
    for follower in followers:
        world.cut(leader, follower)
    async with world.at(followers[0]) as log:
        await world.send(log, "t", b"2", session="y")
    assert world.topic(leader).reads.end_offset == 1, "it has heard of what it should not have"
    return leader


async def latest(log: ister.Log) -> object:
    return await log.offsets_at("t", "latest")


async def since_a_time_to_come(log: ister.Log) -> object:
    return await log.offsets_at("t", FAR_FUTURE_US)


async def the_line(log: ister.Log) -> object:
    return len([record async for record in log.read("t")])


@pytest.mark.parametrize("ask", [latest, since_a_time_to_come, the_line])
def test_an_end_is_told_only_by_who_still_leads(ask: Callable[[ister.Log], Awaitable[object]]) -> None:
    async def script(world: World) -> None:
        old = await replace_leader(world)
        async with world.at(old, "client-2.reader") as log:
            asking = asyncio.ensure_future(ask(log))
            await asyncio.sleep(20)
            assert not asking.done() or isinstance(asking.exception(), IsterError)
            assert not asking.done() or not isinstance(asking.exception(), CorruptSegment)
            for other in world.nodes:
                if other != old:
                    world.heal(old, other)
            if asking.done():
                asking = asyncio.ensure_future(ask(log))
            assert await asking == 2
        await world.judge("t")

    play(script)


def test_followers_that_come_back_are_asked_again() -> None:
    async def script(world: World) -> None:
        leader, followers = await world.make_topic(segment_records=100)
        async with world.at(leader) as log:
            await world.send(log, "t", b"1")
            for follower in followers:
                world.network.reset(world.nodes[leader].name, world.nodes[follower].name)
            assert await latest(log) == 1
        assert world.segment().segment == 1

    play(script)


def test_a_question_is_answered_by_enough_of_those_who_were_asked_after_it() -> None:
    async def main() -> None:
        asked: list[int] = []
        confirming = Confirming(2, asked.append)
        first = asyncio.ensure_future(confirming.confirm(10))
        also = asyncio.ensure_future(confirming.confirm(10))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert asked == [1]
        second = asyncio.ensure_future(confirming.confirm(10))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert asked == [1, 2]
        confirming.answered(7, 1)
        confirming.answered(7, 1)
        await asyncio.sleep(0)
        assert not first.done()
        confirming.answered(8, 2)
        assert await first and await also
        await asyncio.sleep(0)
        assert not second.done()
        confirming.close()
        assert not await second
        assert confirming.open == []

    asyncio.run(main())


def test_a5_a_leader_that_was_replaced_calls_no_producer_unknown() -> None:
    """One that began to send since is known to the next leader. It was told that its log has forgotten it,
    and gave up what it still had to send."""

    async def script(world: World) -> tuple[list[object], list[object]]:
        old = await replace_leader(world)
        answers: list[list[object]] = []
        for number in world.nodes:
            if number == old or node_of(world.segment(seen_by=number).leader) == number:
                sink, frame = Sink(), bytearray(encode([b"3"], producer_id=77, sequence=2))
                header = decode_header(frame)
                assert isinstance(header, FrameHeader)
                world.topic(number).append(frame, header, sink, 1, 0.0)
                await world.until(lambda sink=sink: bool(sink.answers))  # type: ignore[misc]
                answers.insert(0 if number == old else 1, sink.answers)
        return answers[0], answers[1]

    by_old, by_new = play(script)
    assert isinstance(by_old[0], NotLeader)
    assert isinstance(by_new[0], UnknownProducer)


def test_a_producer_is_answered_whatever_comes_of_the_question_who_leads() -> None:
    """Its bytes in flight are counted until it is; and what it is told leaves it free to ask again."""
    sink = Sink()

    async def script(world: World) -> None:
        leader, _ = await world.make_topic()
        frame = bytearray(encode([b"1"], producer_id=77, sequence=2))
        header = decode_header(frame)
        assert isinstance(header, FrameHeader)
        leadership = world.topic(leader).leadership
        with mock.patch.object(leadership, "confirm_end", side_effect=RuntimeError("a defect")):
            world.topic(leader).append(frame, header, sink, 1, 0.0)
            await world.until(lambda: bool(sink.answers))

    with pytest.raises(UnhandledErrors, match="a defect"):
        play(script)
    assert isinstance(sink.answers[0], NotLeader)
