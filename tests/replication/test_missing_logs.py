"""P3: a replica's log that is missing or emptied may have had what was acknowledged.

It is in doubt then, durably, until it has all that is committed; and no ordinary failover is blocked by that.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ister.broker.topic.known import identity_of
from ister.protocol.peer import node_of
from tests.replicas_sim.small import World, play

Lose = Callable[[World, int, str], None]


def deleted(world: World, number: int, path: str) -> None:
    disk = world.nodes[number].disk.mount()
    for suffix in (".log", ".side"):
        disk.remove(path + suffix)
    disk.sync_directory(path.rpartition("/")[0])


def only_the_log_deleted(world: World, number: int, path: str) -> None:
    disk = world.nodes[number].disk.mount()
    disk.remove(path + ".log")
    disk.sync_directory(path.rpartition("/")[0])


def emptied(world: World, number: int, path: str) -> None:
    file = world.nodes[number].disk.mount().open(path + ".log")
    file.truncate(0)
    file.sync()
    file.close()


LOSSES = pytest.mark.parametrize("lose", [deleted, only_the_log_deleted, emptied])


async def acknowledged_without(world: World, lagging: int, leader: int, other: int) -> None:
    """Records that the leader and one follower have, and the other follower has not."""
    async with world.at(leader) as log:
        await world.send(log, "t", b"first")
        segment = world.segment(seen_by=leader)
        await world.until(lambda: all(world.end_on(one, segment) == 1 for one in (other, lagging)))
        world.cut(leader, lagging)
        world.cut(other, lagging)
        for number in range(30):
            await world.send(log, "t", b"%d" % number)
    assert sum(bool(send.offsets) for send in world.history.sends) == 31
    for node in world.nodes.values():
        node.lose_power()
    world.heal(leader, lagging)
    world.heal(other, lagging)


async def is_sealed_within(world: World, seconds: float, seen_by: int) -> bool:
    try:
        await world.until(lambda: world.segment(number=1, seen_by=seen_by).is_sealed, seconds=seconds)
    except TimeoutError:
        return False
    return True


@LOSSES
def test_a_follower_without_its_log_is_not_counted_among_those_that_never_had_more(lose: Lose) -> None:
    async def script(world: World) -> None:
        leader, (b, c) = await world.make_topic()
        path = world.path(world.segment())
        await acknowledged_without(world, c, leader, b)
        lose(world, b, path)
        for number in (b, c):
            await world.nodes[number].start()
        assert not await is_sealed_within(world, 30, seen_by=c), "nobody here has what was acknowledged"
        await world.nodes[leader].start()
        assert await is_sealed_within(world, 60, seen_by=c)
        assert world.segment(number=1, seen_by=c).end_offset == 31
        await world.judge("t")

    play(script)


@LOSSES
def test_the_leader_without_its_log_is_not_counted_either(lose: Lose) -> None:
    async def script(world: World) -> None:
        leader, (b, c) = await world.make_topic()
        path = world.path(world.segment())
        await acknowledged_without(world, c, leader, b)
        lose(world, leader, path)
        for number in (leader, c):
            await world.nodes[number].start()
        assert not await is_sealed_within(world, 30, seen_by=c), "nobody here has what was acknowledged"
        await world.nodes[b].start()
        assert await is_sealed_within(world, 60, seen_by=c)
        assert world.segment(number=1, seen_by=c).end_offset == 31
        await world.judge("t")

    play(script)


@LOSSES
def test_a_doubt_outlives_the_recovery_that_made_a_log_in_the_place_of_the_lost_one(lose: Lose) -> None:
    async def script(world: World) -> None:
        leader, (b, c) = await world.make_topic()
        path = world.path(world.segment())
        await acknowledged_without(world, c, leader, b)
        lose(world, b, path)
        for _ in range(2):
            for number in (b, c):
                await world.nodes[number].start()
            await world.until(lambda: bool(world.segment(number=1, seen_by=b).recovery))
            await world.until(lambda: world.nodes[b].disk.exists(path + ".doubt"))
            assert not await is_sealed_within(world, 10, seen_by=c)
            assert world.nodes[b].disk.exists(path + ".log"), "there is a log again, and it is empty"
            for number in (b, c):
                world.nodes[number].lose_power()
        for node in world.nodes.values():
            await node.start()
        assert await is_sealed_within(world, 60, seen_by=c)
        assert world.segment(number=1, seen_by=c).end_offset == 31
        await world.judge("t")

    play(script)


@LOSSES
@pytest.mark.parametrize("records", [0, 5])
def test_a_doubt_ends_when_the_log_has_all_that_its_leader_calls_committed(lose: Lose, records: int) -> None:
    """The follower is completed; then the leader goes, and the other two go on without it."""

    async def script(world: World) -> None:
        leader, (b, c) = await world.make_topic()
        await world.elect(c)
        async with world.at(c) as log:
            for number in range(records):
                await world.send(log, "t", b"%d" % number)
            segment = world.segment()
            path = world.path(segment)
            await world.until(lambda: world.nodes[b].disk.exists(path + ".log"))
            await world.until(lambda: world.end_on(b, segment) == records)
            world.nodes[b].lose_power()
            lose(world, b, path)
            await world.nodes[b].start()
            disk = world.nodes[b].disk
            await world.until(lambda: disk.exists(path + ".log") and disk.durable_bytes(path + ".log") != b"")
            await world.until(lambda: world.end_on(b, segment) == records)
            await world.until(lambda: not disk.exists(path + ".doubt"))
            world.nodes[leader].lose_power()
            await world.send(log, "t", b"after", session="y")
        assert world.segment(number=1, seen_by=c).end_offset == records
        await world.nodes[leader].start()
        await world.judge("t")

    play(script)


def test_a_topic_without_records_fails_over_after_a_follower_was_restarted() -> None:
    """An ordinary restart makes no doubt: each replica has its log, head included, from the opening on. The
    leader that would end one is gone before the follower is back."""

    async def script(world: World) -> None:
        leader, (b, c) = await world.make_topic()
        path = world.path(world.segment())
        await world.elect(c)
        await world.until(lambda: all(world.nodes[one].disk.exists(path + ".log") for one in (b, c)))
        world.nodes[b].lose_power()
        world.nodes[leader].lose_power()
        await world.nodes[b].start()
        assert await is_sealed_within(world, 30, seen_by=c)
        async with world.at(b) as log:
            await world.send(log, "t", b"after")
        await world.nodes[leader].start()
        await world.judge("t")

    play(script)


async def topic_of(world: World, leader: int, seen_by: int) -> str:
    """A topic that this node leads, made through another one."""
    async with world.at(seen_by) as log:
        names = [f"t{number}" for number in range(6)]
        for name in names:
            await log.create_topic(name)
        await world.until(
            lambda: all(f"default/{name}" in world.nodes[seen_by].running.topics for name in names)
        )
    return next(name for name in names if world.leader(name, seen_by=seen_by) == leader)


def test_a_follower_that_its_leader_never_reached_has_its_log_and_is_not_in_doubt_after_a_restart() -> None:
    """It made its log when it heard of the opening. With the leader's disk, the only word that would end a
    doubt is gone for good."""

    async def script(world: World) -> None:
        await world.elect(2)
        world.cut(1, 3)
        name = await topic_of(world, 1, seen_by=2)
        path = world.path(world.segment(name, seen_by=2), name)
        await world.until(lambda: world.nodes[3].disk.exists(path + ".log"))
        world.nodes[3].lose_power()
        async with world.at(2) as log:
            await world.send(log, name, b"before")
            world.nodes[1].lose_power()
            await world.nodes[3].start()
            await world.send(log, name, b"after", session="y")
        assert all(send.offsets for send in world.history.sends)
        assert not world.nodes[3].disk.exists(path + ".doubt")
        world.heal(1, 3)
        await world.nodes[1].start()
        await world.judge(name)

    play(script)


def test_a_follower_that_was_down_at_the_opening_is_not_in_doubt() -> None:
    """No process on its disk knew of the segment: what it has not it never had, and nothing is blocked."""

    async def script(world: World) -> None:
        await world.elect(2)
        world.nodes[3].lose_power()
        name = await topic_of(world, 1, seen_by=2)
        segment = world.segment(name, seen_by=2)
        assert 3 in map(node_of, segment.replicas)
        world.cut(1, 3)
        async with world.at(2) as log:
            await world.send(log, name, b"before")
            world.nodes[1].lose_power()
            await world.nodes[3].start()
            await world.send(log, name, b"after", session="y")
        assert all(send.offsets for send in world.history.sends)
        assert not world.nodes[3].disk.exists(world.path(segment, name) + ".doubt")
        world.heal(1, 3)
        await world.nodes[1].start()
        await world.judge(name)

    play(script)


def test_logs_of_many_topics_are_made_beside_what_is_applied() -> None:
    """A node goes on applying the metadata while its disk is slow to make logs."""

    async def script(world: World) -> None:
        await world.elect(2)
        world.cut(1, 3)
        follower, names = world.nodes[3], [f"t{number}" for number in range(20)]
        member = follower.running.metadata.member

        def missing() -> list[str]:
            """Logs of what it follows."""
            state = follower.running.metadata.state
            followed = [topic for topic in state.topics.values() if topic.uid in state.followed_by(member)]
            paths = [identity_of(topic, topic.open_segment).path + ".log" for topic in followed]
            return [path for path in paths if not follower.disk.exists(path)]

        slow = follower.disk.slow(0.2)
        async with world.at(2) as log:
            for name in names:
                await log.create_topic(name)
        await world.until(lambda: len(follower.running.topics) == len(names))
        assert missing()
        follower.disk.faults.remove(slow)
        await world.until(lambda: not missing())
        world.heal(1, 3)

    play(script)
