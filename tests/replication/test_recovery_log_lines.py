"""What the log says of recoveries and of a missing majority: once, and a warning only if one should look."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ister.errors import SegmentFenced
from ister.protocol.replication import Fence, FenceAnswer
from ister.replication.recovery.failover import Recovery
from ister.replication.recovery.failover_events import Begin, Members
from ister.testing.cluster import World, run_story
from tests.replication.test_follower_reads import followers
from tests.replication.test_three_replicas import numbers


def lines(caplog: pytest.LogCaptureFixture, part: str, level: int = logging.INFO) -> list[str]:
    """What was said with these words in it, fields included, at this level or above."""
    records = [record for record in caplog.records if record.levelno >= level]
    said = [f"{record.getMessage()} {getattr(record, 'fields', {})}" for record in records]
    return [message for message in said if part in message]


def test_before_a_recovery_has_begun_it_has_no_number() -> None:
    machine = Recovery(2, (1, 2, 3), Members(frozenset((1, 2, 3)), ()))
    machine.step(Begin())
    assert "recovery 0" not in machine.describe()
    assert machine.describe().startswith("no recovery has begun yet")


def test_a_recovery_that_others_went_on_with_is_said_once_and_is_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
        leader, coordinator = world.leader_of("t"), followers(world, "t")[0]
        copies = coordinator.broker.replication.copies
        fence = copies.fence

        async def fence_late(request: Fence) -> FenceAnswer:
            copies.fence = fence  # type: ignore[method-assign]
            raise SegmentFenced("another recovery has begun")

        copies.fence = fence_late  # type: ignore[method-assign]
        leader.kill()
        async with world.connect(coordinator.node_id) as log:
            await log.append("t", numbers(1, 3))  # there is another attempt, and that one ends it

    with caplog.at_level(logging.INFO, "ister.replication"):
        run_story(story, replicas=3)
    assert len(lines(caplog, "is not the segment's last one")) == 1
    assert lines(caplog, "is not the segment's last one", logging.WARNING) == []
    assert lines(caplog, "GiveUp(") == []


def test_without_a_majority_one_line_says_that_no_recovery_can_begin(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of several topics, for minutes; and one more when it is over."""

    async def story(world: World) -> None:
        async with world.connect() as log:
            for name in "abcdef":
                await log.append(name, numbers(1))
        led = {world.leader_of(name).node_id for name in "abcdef"}
        left = next(node for node in world.up if led - {node.node_id})
        for node in world.up:
            if node is not left:
                node.kill()
        await asyncio.sleep(120)
        assert len(lines(caplog, "recoveries cannot begin", logging.WARNING)) == 1
        assert lines(caplog, "was not begun", logging.WARNING) == []
        assert lines(caplog, "recoveries can begin again") == []
        for node in world.nodes.values():
            if not node.is_up:
                await node.start()
        async with world.connect() as log:
            for name in "abcdef":
                await log.append(name, numbers(1))
        assert len(lines(caplog, "recoveries can begin again")) == 1

    with caplog.at_level(logging.INFO, "ister.replication"):
        run_story(story, replicas=3)


def test_a_node_that_starts_without_a_majority_names_the_voters_it_misses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(world: World) -> None:
        for node in world.up:
            node.kill()
        caplog.clear()
        await world.nodes[1].start()
        await asyncio.sleep(60)
        (said,) = lines(caplog, "finds no majority", logging.WARNING)
        assert "nodes 2, 3 do not answer" in said
        assert lines(caplog, "has found a majority") == []
        await world.nodes[2].start()
        await world.settle()
        assert len(lines(caplog, "node 1 has found a majority")) == 1
        assert lines(caplog, "node 2 finds no majority") == []

    with caplog.at_level(logging.INFO, "ister.broker"):
        run_story(story)
