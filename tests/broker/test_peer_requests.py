"""What one node asks another: it is answered whatever happens there, and nothing is kept of what was not."""

from __future__ import annotations

import asyncio

import pytest

from ister.callers import Callers
from ister.errors import BadRequest, IsterError, RequestTimeout
from ister.peer_link import LONGEST_PAUSE_SECONDS, Link
from ister.protocol.peer import NodeAddress, PeerHello, PeerKind
from ister.testing.cluster import World, run_story


def callers_of(world: World, node_id: int) -> Callers:
    return world.nodes[node_id].broker.metadata.peers._callers


def link_between(world: World, node_id: int, other: int) -> Link:
    return world.nodes[node_id].broker.metadata.peers._links[world.nodes[other].member]


def test_a_defect_in_an_answer_is_told_to_who_asked_and_is_not_silent() -> None:
    async def fails(node: NodeAddress, kind: int, header: bytes, payload: bytes) -> bytes:
        raise KeyError("a defect")

    async def story(world: World) -> None:
        callers_of(world, 2).serve = fails
        began = world.loop.time()
        with pytest.raises(IsterError, match="KeyError: 'a defect'") as caught:
            await link_between(world, 1, 2).request(PeerKind.READ_INDEX, b"", b"", timeout=10)
        assert type(caught.value) is IsterError
        assert world.loop.time() - began < 1
        assert {type(error) for error in world.loop.unhandled} == {KeyError}
        world.loop.unhandled.clear()

    run_story(story)


def test_requests_that_are_not_answered_are_forgotten_and_late_answers_do_no_harm() -> None:
    async def story(world: World) -> None:
        answers = asyncio.Event()
        serve = callers_of(world, 2).serve

        async def late(node: NodeAddress, kind: int, header: bytes, payload: bytes) -> bytes:
            await answers.wait()
            return b"late"

        callers_of(world, 2).serve = late
        link = link_between(world, 1, 2)
        connection = link._connection
        assert connection is not None
        for _ in range(5):
            with pytest.raises(RequestTimeout):
                await link.request(PeerKind.STANDING, b"", b"", timeout=0.5)
        assert len(connection._waiting) <= 1, "a ping may be on its way"
        answers.set()
        await asyncio.sleep(1)
        callers_of(world, 2).serve = serve
        assert link._connection is connection and link.is_alive

    run_story(story)


def test_a_node_that_closes_each_connection_soon_is_not_dialled_at_once_again_and_again() -> None:
    async def story(world: World) -> None:
        hellos: list[int] = []
        callers = callers_of(world, 2)
        on_hello = callers.on_hello

        def heard(hello: PeerHello) -> None:
            hellos.append(hello.node.node_id)
            on_hello(hello)

        def refuses() -> int:
            raise BadRequest("no ping is taken here")

        callers.on_hello, callers.now_us = heard, refuses
        await asyncio.sleep(30)
        for node_id in (1, 3):
            assert 10 <= hellos.count(node_id) <= 30 / LONGEST_PAUSE_SECONDS + 10

    run_story(story)


def test_two_nodes_that_close_each_others_connections_do_not_wake_each_other() -> None:
    """A call says that its node is up: that ends a pause, but not one after a connection that was closed."""

    async def story(world: World) -> None:
        hellos: list[int] = []

        def refuses() -> int:
            raise BadRequest("no ping is taken here")

        for node_id in (1, 2):
            callers = callers_of(world, node_id)
            on_hello = callers.on_hello

            def heard(hello: PeerHello, on_hello=on_hello) -> None:  # type: ignore[no-untyped-def]
                hellos.append(hello.node.node_id)
                on_hello(hello)

            callers.on_hello, callers.now_us = heard, refuses
        await asyncio.sleep(30)
        for node_id in (1, 2):
            assert hellos.count(node_id) <= 30 / LONGEST_PAUSE_SECONDS + 10

    run_story(story)


def test_a_connection_that_lived_long_and_broke_is_dialled_again_at_once() -> None:
    async def story(world: World) -> None:
        link = link_between(world, 1, 2)
        for _ in range(3):
            await asyncio.sleep(5)
            before = link._connection
            assert before is not None
            before.abort()
            await asyncio.sleep(0.2)
            assert link._connection is not None and link._connection is not before

    run_story(story)


def test_a_defect_on_a_connection_is_not_the_end_of_the_way_to_a_node() -> None:
    async def story(world: World) -> None:
        link = link_between(world, 1, 2)
        came_up = link._came_up

        def a_defect() -> None:
            link._came_up = came_up  # type: ignore[method-assign]
            raise KeyError("a defect")

        link._came_up = a_defect  # type: ignore[method-assign]
        assert link._connection is not None
        link._connection.abort()
        await asyncio.sleep(3)
        assert link._connection is not None and link.is_alive
        assert [type(error) for error in world.loop.unhandled] == [KeyError]
        world.loop.unhandled.clear()

    run_story(story)
