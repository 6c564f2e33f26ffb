"""Reads that a node passes on to the one that has the records."""

from __future__ import annotations

import asyncio

from broker_helpers import Answer, RawClient, request

from ister.frame import frames_in
from ister.protocol.codec import decode_header
from ister.protocol.messages import Fetch, FetchAnswer, Kind
from ister.testing.cluster import CLIENT_PORT, World, run_story

LONG_MS = 60_000


async def topics_led_elsewhere(world: World, count: int) -> list[str]:
    """Topics with one record each that node 1 does not lead."""
    found: list[str] = []
    async with world.connect(1) as log:
        for number in range(40):
            name = f"topic-{number}"
            await log.append(name, [b"first"])
            if world.leader_of(name) is not world.nodes[1]:
                found.append(name)
            if len(found) == count:
                return found
    raise AssertionError("all topics are led by one node")


async def raw_client(world: World) -> RawClient:
    made = await world.network.host("raw").connect(RawClient, world.nodes[1].host, CLIENT_PORT)
    assert isinstance(made, RawClient)
    await made.greet()
    return made


def values_of(answer: Answer) -> list[bytes | None]:
    assert answer.kind == 0, answer.error
    return [record.value for frame in frames_in(answer.payload) for record in frame.records()]


def test_readers_that_wait_are_not_in_the_way_of_one_whose_record_is_there() -> None:
    async def story(world: World) -> None:
        *quiet, busy = await topics_led_elsewhere(world, 6)
        client = await raw_client(world)
        for number, topic in enumerate(quiet):
            client.send(request(1000 + number, Kind.FETCH, Fetch(topic, 1, 1 << 20, LONG_MS)))
        await asyncio.sleep(1)
        before = world.loop.time()
        assert values_of(await client.ask(Kind.FETCH, Fetch(busy, 0, 1 << 20, LONG_MS))) == [b"first"]
        assert world.loop.time() - before < 1, "on virtual time: it had to wait for another's record"

        async with world.connect(2) as log:
            for topic in reversed(quiet):
                await log.append(topic, [b"second"])
                answer = await client.answer()
                assert answer.correlation == 1000 + quiet.index(topic)
                assert values_of(answer) == [b"second"]

    run_story(story)


def test_readers_that_wait_hold_no_memory_for_answers() -> None:
    async def story(world: World) -> None:
        topics = await topics_led_elsewhere(world, 3)
        client = await raw_client(world)
        for number in range(100):
            topic = topics[number % len(topics)]
            client.send(request(1000 + number, Kind.FETCH, Fetch(topic, 1, 1 << 20, LONG_MS)))
        await asyncio.sleep(1)
        assert world.nodes[1].server.answers.used == 0

    run_story(story)


def test_a_wait_that_is_over_is_answered_without_a_record() -> None:
    async def story(world: World) -> None:
        (topic,) = await topics_led_elsewhere(world, 1)
        client = await raw_client(world)
        before = world.loop.time()
        answer = await client.ask(Kind.FETCH, Fetch(topic, 1, 1 << 20, 700))
        assert values_of(answer) == []
        assert decode_header(FetchAnswer, answer.header).end_offset == 1
        assert 0.6 < world.loop.time() - before < 2, "on virtual time"

    run_story(story)


def test_a_reader_that_waits_gets_the_record_that_comes_after_rollovers_to_other_nodes() -> None:
    async def story(world: World) -> None:
        (topic,) = await topics_led_elsewhere(world, 1)
        client = await raw_client(world)
        async with world.connect(1, 2, 3) as log:
            for offset in range(1, 10):
                client.send(request(1000 + offset, Kind.FETCH, Fetch(topic, offset, 1 << 20, LONG_MS)))
                await asyncio.sleep(0.5)
                await log.append(topic, [b"%d" % offset])
                answer = await client.answer()
                assert values_of(answer) == [b"%d" % offset]

    run_story(story, segment_records=1)
