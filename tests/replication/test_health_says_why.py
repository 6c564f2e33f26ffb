"""What the health says of copies that cannot be written and of topics that have too few replicas to be."""

from __future__ import annotations

import asyncio
import errno

import ister
from ister.protocol.messages import Problem
from ister.testing.cluster import World, WorldNode, run_story
from tests.replication.test_follower_reads import followers, stop_sending
from tests.replication.test_three_replicas import agree, numbers
from tests.replication.test_what_people_see import problems, segments, until

FULL = "its disk is full (No space left on device)"


def fill_disk(node: WorldNode, error: int = errno.ENOSPC) -> None:
    """Nothing of any segment can be written there; the metadata's disk is another."""
    node.disk.faults.add("write", prefix="segments/", error=error)


def cannot_write(found: dict[str, Problem]) -> bool:
    return "cannot write" in found.get("under-replicated", Problem("", "", "")).what


def test_a_follower_with_a_full_disk_is_said_to_have_one_until_there_is_room_again() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
            await agree(world, "t", 3)
            node = followers(world, "t")[0]
            fill_disk(node)
            await log.append("t", numbers(3, 3))
            said = (await until(log, cannot_write))["under-replicated"]
            assert f"node {node.node_id} cannot write 1 of them: {FULL}" in said.what
            assert said.action == (
                f"free space on the disk of node {node.node_id}, or replace it: its copies are completed by "
                f"themselves then"
            )
            await asyncio.sleep(60)  # the leader's pauses between two tries grow
            assert cannot_write(await problems(log))
            node.disk.faults.clear()
            await until(log, lambda found: not found)

    run_story(story, replicas=3)


def test_copies_of_sealed_segments_that_a_full_disk_stops_are_said_to_wait_for_room() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(1))
            await agree(world, "t", 1)
            node = followers(world, "t")[0]
            fill_disk(node)
            for number in range(1, 8):
                await log.append("t", numbers(1, number))
            said = (await until(log, cannot_write))["under-replicated"]
            assert f": {FULL}" in said.what
            assert "checks or completes" not in said.what
            assert "wait" not in said.action
            node.disk.faults.clear()
            await until(log, lambda found: not found)

    run_story(story, replicas=3, segment_records=2)


def test_a_disk_that_fails_is_said_to_with_its_error() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
            await agree(world, "t", 3)
            node = followers(world, "t")[0]
            fill_disk(node, errno.EIO)
            await log.append("t", numbers(3, 3))
            said = (await until(log, cannot_write))["under-replicated"]
            assert f"node {node.node_id} cannot write 1 of them: its disk fails (" in said.what

    run_story(story, replicas=3)


def test_the_description_says_that_a_followers_disk_is_full() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
            await agree(world, "t", 3)
            node = followers(world, "t")[0]
            fill_disk(node)
            await log.append("t", numbers(3, 3))
            async with asyncio.timeout(60):
                while not (copies := (await segments(log))[0].copies) or not copies[0].why:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            assert [(c.node, c.state, c.why) for c in copies] == [(node.node_id, "behind", FULL)]

    run_story(story, replicas=3)


def test_topics_are_said_to_go_on_without_a_node_only_where_another_can_take_its_place() -> None:
    async def story(world: World) -> str:
        async with world.connect() as log:
            await log.append("t", numbers(3))
            await agree_of_replicas(world)
            stop_sending(world.leader_of("t"), followers(world, "t")[0])
            await log.append("t", numbers(4, 3))
            return (await until(log, lambda found: "under-replicated" in found))["under-replicated"].action

    assert "topics go on without" in run_story(story, nodes=4, replicas=3)
    alone = run_story(story, nodes=3, replicas=3)
    assert "topics go on without" not in alone
    assert "no other node can take its place" in alone


async def agree_of_replicas(world: World) -> None:
    """Who follows has what was appended."""
    async with asyncio.timeout(30):
        uid = world.leader_of("t").topic("t").state.open_segment.uid
        logs = [node.broker.replication.copies.follower for node in followers(world, "t")]
        while not all((log := of(uid)) is not None and log.committed_end >= 3 for of in logs):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# Too few replicas to write.


async def two_of_five(world: World) -> tuple[WorldNode, WorldNode]:
    """Who leads the topic, and the one that follows."""
    async with world.connect() as log:
        await log.append("t", numbers(3))
    (follower,) = followers(world, "t")
    return world.leader_of("t"), follower


async def never_broken(log: ister.Log, seconds: float) -> None:
    """All that time the topic waits, and no node is called broken."""
    until_time = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < until_time:
        found = await problems(log)
        assert "topics-wait" in found and "topics-broken" not in found, found
        await asyncio.sleep(0.5)


def test_a_topic_with_too_few_replicas_waits_for_them_and_its_leader_is_not_called_broken() -> None:
    async def story(world: World) -> None:
        leader, follower = await two_of_five(world)
        for node in world.up:
            if node is not leader:
                node.kill()
        async with world.connect(leader.node_id) as log:
            found = await until(log, lambda found: "topics-wait" in found)
            assert "topics-broken" not in found
            said = found["topics-wait"]
            assert said.what == (
                f"default/t cannot be written: 1 of 2 replicas of default/t:1 answer, 2 have to acknowledge; "
                f"down: node {follower.node_id}"
            )
            assert said.action == f"start node {follower.node_id} with the old --data-dir"
            async with world.connect(leader.node_id) as writer:
                appending = asyncio.create_task(writer.append("t", numbers(1, 3)))
                await never_broken(log, 40)  # the leader gives the segment up meanwhile, and cannot end it
                assert leader.topic("t").facts.trouble
                await follower.start()
                for node in world.nodes.values():
                    if not node.is_up:
                        await node.start()
                await appending
            await until(log, lambda found: not found)

    run_story(story, replicas=2)


def test_where_others_can_take_the_place_of_a_replica_the_health_says_when() -> None:
    async def story(world: World) -> None:
        leader, follower = await two_of_five(world)
        follower.kill()
        async with world.connect(leader.node_id) as log:
            said = (await until(log, lambda found: "topics-wait" in found))["topics-wait"]
            assert f"down: node {follower.node_id}" in said.what
            assert said.action.endswith("after 10 s without it other nodes take its place")
            await until(log, lambda found: "topics-wait" not in found)
            await log.append("t", numbers(1, 3))

    run_story(story, nodes=5, replicas=2)


def test_a_segment_that_was_given_up_in_a_minority_waits_for_the_voters() -> None:
    """Its replicas answer again, but nobody can end it: that is no fault of its leader."""

    async def story(world: World) -> None:
        leader, follower = await two_of_five(world)
        for node in world.up:
            if node not in (leader, follower):
                node.kill()
        world.network.partition(leader.host, follower.host)
        async with world.connect(leader.node_id) as log:
            async with world.connect(leader.node_id) as writer:
                appending = asyncio.create_task(writer.append("t", numbers(1, 3)))
                async with asyncio.timeout(60):
                    while not leader.topic("t").facts.trouble:  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
                world.network.heal(leader.host, follower.host)
                given_up = f"node {leader.node_id} has given up default/t"
                found = await until(
                    log, lambda found: given_up in found.get("topics-wait", Problem("", "", "")).what
                )
                assert "topics-broken" not in found
                assert found["topics-wait"].action.startswith("start the voters that are down")
                for node in world.nodes.values():
                    if not node.is_up:
                        await node.start()
                await appending
            await until(log, lambda found: not found)

    run_story(story, nodes=5, replicas=2)


def test_what_a_disk_did_after_all_is_not_held_against_it() -> None:
    """A sync failed once, and what it was for is found in the log again: nothing more is written for it."""

    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
            await agree(world, "t", 3)
            node = followers(world, "t")[0]
            node.disk.faults.add("sync", prefix="segments/", suffix=".log", error=errno.EIO, count=1)
            await log.append("t", numbers(3, 3))
            told = node.broker.replication.standings.own
            async with asyncio.timeout(60):
                while not told().disk:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await agree(world, "t", 6)
            assert told().disk == ""

    run_story(story, replicas=3)
