"""A start opens what the node leads. What another leads by then is no trouble, and is not told as such."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ister.errors import CorruptSegment
from ister.testing.cluster import World, run_story
from tests.replication.repair_helpers import fill, until

LOUD = logging.WARNING


def told(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "ister.broker" and record.levelno >= level and "opened" in record.getMessage()
    ]


def test_a_topic_that_another_node_took_over_meanwhile_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        for number in range(4):
            await fill(world, 2, topic=f"t{number}")
        node = world.leader_of("t0")
        led = [f"t{number}" for number in range(4) if world.leader_of(f"t{number}") is node]
        node.kill()
        await node.start()
        await until(lambda: all(world.leader_of(topic) is not node for topic in led))
        await world.settle()
        await asyncio.sleep(5)
        assert told(caplog, logging.DEBUG), "it was about to open one of them"
        assert told(caplog, LOUD) == []

    with caplog.at_level(logging.DEBUG, "ister.broker"):
        run_story(story, replicas=3)


def test_a_topic_that_is_still_its_own_and_cannot_be_opened_is_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(world: World) -> None:
        await fill(world, 4)
        node = world.leader_of("t")
        path = f"segments/{node.topic('t').state.uid:016d}"
        node.kill()
        (name,) = (one for one in node.disk.list(path) if one.endswith(".log"))
        node.disk.rot(f"{path}/{name}", 100)
        await node.start()
        await world.settle()
        with pytest.raises(CorruptSegment):
            await node.topic("t").led.ensure_open()
        assert len(told(caplog, logging.ERROR)) == 1

    with caplog.at_level(logging.DEBUG, "ister.broker"):
        run_story(story, replicas=1)
