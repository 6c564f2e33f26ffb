"""Readers that do not take their answers: what they hold is bounded, and nobody waits for them for ever."""

from __future__ import annotations

import asyncio

import pytest
from broker_helpers import RawClient, SimNode, frame_of, request, simulated

from ister.broker.clients.answers import LEAST_SHARE_BYTES, AnswerBudget
from ister.protocol.messages import Fetch, Kind, ListTopics

MIB = 1 << 20


def unsent(node: SimNode) -> int:
    return sum(found._transport.get_write_buffer_size() for found in node.server._connections)


async def stopped_readers(node: SimNode, count: int) -> list[RawClient]:
    """Clients that ask for far more than they take: nothing at all."""
    readers = []
    for _ in range(count):
        reader = await node.connect()
        reader.transport.pause_reading()
        reader.send(*(request(number, Kind.FETCH, Fetch("t", 0, 8 * MIB)) for number in range(4)))
        readers.append(reader)
    await asyncio.sleep(1)
    return readers


def test_a_stopped_reader_is_not_sent_all_that_it_asked_for_at_the_first_sign_of_life() -> None:
    """A thousand requests wait for the send buffer to drain; one drain must not let all of them through."""

    async def scenario(node: SimNode) -> int:
        client = await node.connect()
        for number in range(300):
            await client.create(f"topic-with-a-long-name-{number:080d}")
        client.transport.pause_reading()
        client.send(*(request(n, Kind.LIST_TOPICS, ListTopics()) for n in range(900)))
        (connection,) = node.server._connections
        most = 0
        for turn in range(300):
            await asyncio.sleep(0.01)
            most = max(most, connection._transport.get_write_buffer_size())
            if turn == 50:
                client.transport.resume_reading()
            if turn == 60:
                client.transport.pause_reading()
        return most

    assert simulated(scenario) < 4 * 1024 * 1024


def test_what_slow_readers_have_not_taken_is_bounded_in_all() -> None:
    """Two answers of 8 MiB for each of up to max_connections: 16 GB by default."""

    async def scenario(node: SimNode) -> int:
        writer = await node.connect()
        for _ in range(20):
            await writer.append("t", frame_of(b"x" * (1 << 20)))
        for _ in range(10):
            slow = await node.connect()
            slow.transport.pause_reading()
            slow.send(*(request(n, Kind.FETCH, Fetch("t", 0, 8 << 20)) for n in range(4)))
        await asyncio.sleep(5)
        return sum(c._transport.get_write_buffer_size() for c in node.server._connections)

    assert simulated(scenario, max_in_flight_bytes=64 << 20) <= 64 << 20


def test_nobody_waits_for_ever_for_readers_that_stopped() -> None:
    """All memory for answers is with clients that take nothing: they are dropped, and the others go on."""

    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        for _ in range(4):
            await client.append("t", frame_of(bytes(MIB)))
        readers = await stopped_readers(node, 8)
        assert node.server.answers.used > 3 * MIB
        client.send(request(1, Kind.FETCH, Fetch("t", 0, 4 * MIB)))
        await asyncio.sleep(10)
        assert client.answer_count == 0 and node.server.answers.is_short, "it waits for its turn"
        assert not any(reader.closed.is_set() for reader in readers)
        await asyncio.sleep(60)
        assert client.answer_count == 1
        assert len(node.server._connections) < 9
        assert unsent(node) <= node.server.answers.used <= 4 * MIB

    simulated(scenario, max_answer_bytes=4 * MIB, request_timeout_ms=30_000)


def test_a_stopped_reader_whom_nobody_waits_for_is_left_alone() -> None:
    """Somebody looks at a page of records for a while."""

    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        for _ in range(4):
            await client.append("t", frame_of(bytes(MIB)))
        (reader,) = await stopped_readers(node, 1)
        await asyncio.sleep(900)
        assert len(await client.fetch("t", 0, 8 * MIB)) == 4
        reader.transport.resume_reading()
        answers = await reader.answers(4)
        assert {(answer.kind, len(answer.payload) > 4 * MIB) for answer in answers.values()} == {(0, True)}
        await asyncio.sleep(1)
        assert node.server.answers.used == 0

    simulated(scenario, request_timeout_ms=30_000)


def test_small_answers_find_room_beside_stopped_readers_of_large_ones() -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        for _ in range(20):
            await client.append("t", frame_of(bytes(MIB)))
        await stopped_readers(node, 3)
        assert node.server.answers.used > 16 * MIB
        assert len(await client.fetch("t", 0, 64 * 1024)) == 1
        assert not node.server.answers.is_short

    simulated(scenario, max_answer_bytes=32 * MIB)


def test_a_reader_that_takes_its_answers_slowly_but_steadily_is_kept_while_others_wait() -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        for _ in range(8):
            await client.append("t", frame_of(bytes(MIB)))
        await client.append("large", frame_of(bytes(15 * MIB)))
        (slow,) = await stopped_readers(node, 1)
        connection = next(reversed(node.server._connections))
        others = await stopped_readers(node, 4)
        client.send(request(1, Kind.FETCH, Fetch("large", 0, 1000)))
        longest = 0.0
        for _ in range(40):
            slow.transport.resume_reading()
            await asyncio.sleep(0.001)
            slow.transport.pause_reading()
            await asyncio.sleep(2)
            if connection._watched is not None:
                longest = max(longest, node.loop.time() - connection._watched[0])
        assert longest > 8, "others waited for it longer than a silent one is borne with"
        assert not slow.closed.is_set() and all(other.closed.is_set() for other in others)

    simulated(scenario, max_answer_bytes=16 * MIB, request_timeout_ms=5000)


def test_a_frame_larger_than_all_memory_for_answers_is_read_when_it_is_alone() -> None:
    async def scenario(node: SimNode) -> None:
        clients = [await node.connect() for _ in range(5)]
        await clients[0].append("t", frame_of(bytes(3 * MIB)))
        for client in clients:
            client.send(request(1, Kind.FETCH, Fetch("t", 0, 1000)))
        most = 0
        for _ in range(2000):
            await asyncio.sleep(0.001)
            most = max(most, unsent(node))
        assert [client.answer_count for client in clients] == [1] * 5
        assert most < 2 * 3 * MIB, "one at a time"
        assert node.server.answers.used == 0

    simulated(scenario, max_answer_bytes=MIB, hot_tail_bytes=0)


def test_shares_are_given_in_the_order_of_asking() -> None:
    async def scenario() -> list[int]:
        budget = AnswerBudget(2 * MIB)
        first = await budget.take(2 * MIB, least=2 * MIB)
        order: list[int] = []

        async def ask(number: int, wanted: int) -> None:
            share = await budget.take(wanted)
            order.append(number)
            await asyncio.sleep(0)
            share.give_back()

        asked = [
            asyncio.ensure_future(ask(n, wanted)) for n, wanted in enumerate((2 * MIB, 100, 2 * MIB, 100))
        ]
        await asyncio.sleep(0)
        assert budget.is_short
        first.give_back()
        await asyncio.gather(*asked)
        assert budget.used == 0 and not budget.is_short
        return order

    assert asyncio.run(scenario()) == [0, 1, 2, 3]


@pytest.mark.parametrize("has_share", [False, True], ids=["while it waits", "when it was just given"])
def test_a_share_asked_for_by_who_left_goes_to_the_next(has_share: bool) -> None:
    async def scenario() -> None:
        budget = AnswerBudget(LEAST_SHARE_BYTES)
        held = await budget.take(LEAST_SHARE_BYTES)
        leaves, stays = (asyncio.ensure_future(budget.take(LEAST_SHARE_BYTES)) for _ in range(2))
        await asyncio.sleep(0)
        if has_share:
            held.give_back()
        leaves.cancel()
        await asyncio.sleep(0)
        if not has_share:
            held.give_back()
        async with asyncio.timeout(5):
            share = await stays
        share.give_back()
        assert budget.used == 0

    asyncio.run(scenario())
