"""A leader whose machine loses power says no goodbye: its connections stay open, and nothing comes."""

from __future__ import annotations

import asyncio

import pytest

import ister
from ister.testing import SimClock
from tests.cluster.load import OneNode
from tests.cluster.node import CLIENT_PORT, host_of
from tests.replicas_sim.small import World, play


@pytest.mark.parametrize("way", ["directly", "through another node"])
def test_an_append_under_way_to_a_machine_that_lost_power_goes_on_within_seconds(way: str) -> None:
    """The others have taken the topic on after two seconds, and say so to whoever asks. What was under way
    waits for 30 s, at the client and at the node that passed it on, and all behind it waits too."""

    async def script(world: World) -> tuple[float, float]:
        leader, (follower, _) = await world.make_topic()
        network, clock = world.network.host("client-9"), SimClock(world.loop, world.loop.fork("client-9"))
        nodes = [leader, *(number for number in world.nodes if number != leader)]
        if way == "directly":
            addresses = ",".join(f"{host_of(number)}:{CLIENT_PORT}" for number in nodes)
            log = ister.connect(addresses, network=network, clock=clock)
        else:
            address = f"{host_of(follower)}:{CLIENT_PORT}"
            routes = OneNode(address, network, client="client-9", connect_timeout_s=2)
            log = ister.Log(routes, clock, request_timeout_s=30, retry_deadline_s=60)
        async with asyncio.timeout(300), log:
            await log.append("t", [b"1"])
            await asyncio.sleep(0.5)
            world.nodes[leader].lose_power()
            began = world.loop.time()
            sending = asyncio.ensure_future(log.append("t", [b"2"]))
            await world.until(lambda: world.segment(seen_by=follower).segment == 2)
            taken_on = world.loop.time() - began
            await sending
        return taken_on, world.loop.time() - began

    taken_on, answered = play(script)
    assert answered < 10, f"taken on after {taken_on:.1f} s, and answered after {answered:.1f} s"
