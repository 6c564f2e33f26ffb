"""Topics made, altered and deleted through several nodes, some of which are behind."""

from __future__ import annotations

import asyncio

import pytest

from ister.errors import UnknownTopic
from ister.metadata.placement import first_leader
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.messages import Deleted, DeleteTopic, Kind, TopicDescription
from tests.cluster.small import World, play


async def cut_off(world: World) -> tuple[int, int, int]:
    """The metadata leader, another node, and one that hears of nothing from now on but what clients say."""
    await world.agree()
    await world.until(lambda: world.metadata_leader != 0)
    leader = world.metadata_leader
    other, behind = (number for number in world.nodes if number != leader)
    for number in (leader, other):
        world.network.partition(f"node-{number}", f"node-{behind}")
    return leader, other, behind


def test_a_delete_through_a_node_that_is_behind_deletes_the_topic_that_is_there_now() -> None:
    async def script(world: World) -> None:
        async with world.at(1) as log:
            await log.create_topic("t")
        leader, _, behind = await cut_off(world)
        async with world.at(leader) as near, world.at(behind, "client-2.y") as far:
            await near.delete_topic("t")
            await near.create_topic("t")
            world.network.heal()
            by_name = encode_header(DeleteTopic("default/t"))  # as a client may that does not know the uid
            await far.requests.call("deleting", Kind.DELETE_TOPIC, by_name)
            with pytest.raises(UnknownTopic):
                await near.describe_topic("t")

    play(script)


def test_a_delete_that_was_repeated_does_not_delete_the_topic_that_was_made_after_it() -> None:
    """The node asked first stops before it does anything; the client asks another one, is told that the topic
    is gone, and makes it anew. The first node wakes, and finds the request (I3)."""

    async def script(world: World) -> list[bytes | None]:
        async with world.at(1) as log:
            made = await log.create_topic("t")
        await world.agree()
        async with world.at(2) as first, world.at(3, "client-2.y") as second:
            delete = encode_header(DeleteTopic("default/t", made.uid))  # as the client sends it
            world.nodes[2].freeze()
            deleting = asyncio.ensure_future(first.requests.call("deleting", Kind.DELETE_TOPIC, delete))
            await asyncio.sleep(0.1)
            await second.delete_topic("t")
            again = await second.create_topic("t")
            assert again.uid > made.uid
            await world.send(second, "t", b"of the new topic")
            world.nodes[2].thaw()
            assert not decode_header(Deleted, (await deleting).header).was_there, "that one is gone"
            await world.agree()
        return await world.read(1, "t")

    assert play(script) == [b"of the new topic"]


def test_settings_altered_through_two_nodes_are_both_in_force() -> None:
    """The second node has not heard of the first change: it must not bring the old value back."""

    async def script(world: World) -> tuple[int, int]:
        async with world.at(1) as log:
            await log.create_topic("t")
        leader, _, behind = await cut_off(world)
        async with world.at(leader) as near, world.at(behind, "client-2.y") as far:
            await near.alter_topic("t", segment_records=7)
            world.network.heal()
            await far.alter_topic("t", retention_bytes=70_000)
            settings = (await near.describe_topic("t")).settings
            return settings.segment_records, settings.retention_bytes

    assert play(script) == (7, 70_000)


def test_a_topic_that_one_node_made_is_known_at_once_through_every_other() -> None:
    async def script(world: World) -> None:
        leader, other, behind = await cut_off(world)
        async with world.at(leader) as near, world.at(behind, "client-2.y") as far:
            await near.create_topic("t")
            world.network.heal()
            assert (await far.describe_topic("t")).topic == "default/t"
        async with world.at(other) as log:
            await world.send(log, "t", b"x")
        await world.judge("t")

    play(script)


def test_making_a_topic_does_not_wait_for_a_leader_that_does_not_answer() -> None:
    """What was made is told; the description says what could not be asked."""

    async def script(world: World) -> TopicDescription:
        state = world.nodes[1].running.metadata.state
        third = world.nodes[3].running.metadata.member
        names = (f"t{number}" for number in range(100))
        led = (n for n in names if first_leader(f"default/{n}", state.active_members) == third)
        async with world.at(1) as log:
            await log.create_topic(next(led))  # so that the way to its leader is open
            world.nodes[3].freeze()
            return await log.create_topic(next(led))

    assert "does not answer" in str(play(script).notes)
