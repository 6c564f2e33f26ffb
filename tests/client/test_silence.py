"""A reader that waits for records on a quiet topic: nothing is due, and nothing is wrong."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any
from unittest import mock

from fake_broker import AppendFault, FakeBroker, Fault
from tests.replicas_sim.small import World, play

import ister
from ister.client.connection import Connection
from ister.protocol.messages import Kind
from ister.testing import SimClock, SimNetwork, VirtualLoop, simulate


async def wait_for_records(world: World, seconds: float) -> None:
    async with world.at(1, "client-2.reader") as log, aclosing(log.read("t", follow=True).chunks()) as chunks:
        reading = asyncio.ensure_future(anext(chunks))
        await asyncio.sleep(seconds)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def test_a_reader_that_waits_dials_nobody() -> None:
    """A fetch that waits up to its `wait_ms` is answered then, and not before."""

    async def script(world: World) -> int:
        await world.make_topic()
        dialled: list[float] = []
        real = Connection.greet

        def greet(self: Connection, hello: Any) -> Any:
            dialled.append(world.loop.time())
            return real(self, hello)

        with mock.patch.object(Connection, "greet", greet):
            await wait_for_records(world, 120)
        return len(dialled)

    dialled = play(script, size=1, replicas=1)
    assert dialled <= 2, f"a reader of a quiet topic has made {dialled} connections in 120 s"


def test_a_broker_that_takes_no_more_connections_keeps_those_that_it_has() -> None:
    async def script(world: World) -> list[str]:
        await world.make_topic()
        broken: list[str] = []
        real = Connection._break

        def note(self: Connection, error: Any) -> None:
            broken.append(error.message)
            real(self, error)

        with mock.patch.object(Connection, "_break", note):
            await wait_for_records(world, 60)
        return [why for why in broken if "silent" in why]

    assert play(script, size=1, replicas=1, max_connections=1) == []


def test_a_broker_that_leaves_a_question_unanswered_and_greets_others_is_kept() -> None:
    """It may have stopped reading from this connection, for reasons of its own."""

    async def main(loop: VirtualLoop) -> tuple[int, list[str]]:
        network = SimNetwork(loop.fork("network"))
        broker = FakeBroker(network.host("broker"))
        greeted = 0

        def only_greet(kind: int) -> AppendFault:
            nonlocal greeted
            if kind != Kind.HELLO:
                return None
            is_new = len(broker.connections) > greeted
            greeted += is_new
            return None if is_new else Fault.SILENCE

        broker.on_request = only_greet
        address = await broker.start("broker", 9091)
        broken: list[str] = []
        real = Connection._break

        def note(self: Connection, error: Any) -> None:
            broken.append(error.message)
            real(self, error)

        clock = SimClock(loop, loop.fork("clock"))
        async with ister.connect(address, network=network.host("client"), clock=clock) as log:
            await log.create_topic("t")
            with mock.patch.object(Connection, "_break", note):
                waiting = asyncio.ensure_future(anext(aiter(log.read("t", follow=True))))
                await asyncio.sleep(60)
                await log.append("t", [b"x"])
                assert (await waiting).value == b"x"
        await broker.stop()
        return greeted, [why for why in broken if "silent" in why]

    greeted, broken = simulate(main, seed=1, limit_seconds=600)
    assert greeted > 1, "it was tried whether the broker is there"
    assert broken == []
