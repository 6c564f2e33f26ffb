"""A leader whose own seal was applied, and who has not heard of it, tells nobody that the topic ends."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from ister.broker.clients.fetching import Fetches
from ister.broker.forward.elsewhere import Elsewhere
from ister.errors import IsterError
from ister.metadata.commands import SealSegment
from ister.protocol.messages import Fetch
from ister.protocol.peer import node_of
from tests.replicas_sim.small import World, play


@pytest.mark.parametrize("replicas", [1, 3])
def test_an_empty_answer_is_given_only_where_no_seal_may_have_been_applied(replicas: int) -> None:
    """A seal is no fence: the followers that are asked need not have heard of it any more than the leader."""

    async def script(world: World) -> bytes | None:
        leader, followers = await world.make_topic(replicas=replicas)
        here = {leader, *followers[:1]}  # with `replicas=3` these are Q of the three, and no majority of five
        there = [number for number in world.nodes if number not in here]
        await world.elect(there[0])
        async with world.at(leader) as log:
            await world.send(log, "t", b"1")
        members = {node_of(m): m for m in world.nodes[leader].running.metadata.state.active_members}
        metadata, elsewhere = world.nodes[leader].running.metadata, world.nodes[there[0]].running.metadata
        real = type(metadata).propose

        async def propose(self: Any, command: Any, *args: Any) -> Any:
            """The seal comes to the metadata's leader; then the link breaks, and its answer is lost."""
            if self is metadata and isinstance(command, SealSegment):
                for a in here:
                    for b in there:
                        world.cut(a, b)
                goes_to = [members[number] for number in there[:replicas]]
                await real(elsewhere, replace(command, next_leader=goes_to[0], next_replicas=goes_to))
                await asyncio.sleep(10_000)
            return await real(self, command, *args)

        with mock.patch.object(type(metadata), "propose", propose):
            world.topic(leader).handing_off.start()
            await world.until(lambda: world.segment(seen_by=there[0]).segment == 2)
            async with world.at(there[0]) as log:
                await world.send(log, "t", b"2", session="y")
            assert world.history.sends[-1].offsets, "the second record is acknowledged"
            broker = world.nodes[leader].running
            try:
                # What a GET of the text protocol reads with: empty here is EMPTY there.
                return await Fetches(broker, Elsewhere(broker)).read(Fetch("default/t", 1, 1000))
            except IsterError:
                return None

    found = play(script, size=5, replicas=replicas)
    assert found is None or found, "a reader is told that the topic ends at 1, and offset 1 is acknowledged"
