"""The monitor's rounds where something is wrong: it costs what it must, and is said once."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from ister.testing.cluster import World, WorldNode, run_story

NAMES = [f"t{number}" for number in range(12)]
DAY = 24 * 3600


async def make_topics(world: World, **settings: Any) -> None:
    async with world.connect(1, 2, 3) as log:
        for name in NAMES:
            await log.create_topic(name, **settings)
            for _ in range(4):
                await log.append(name, [b"x"])
    await asyncio.sleep(2)


def led_by(node: WorldNode) -> list[str]:
    return [name for name in NAMES if node.topic(name).leads]


@pytest.mark.slow
def test_without_a_majority_one_trim_is_tried_in_a_round_and_every_topic_is_looked_at() -> None:
    async def story(world: World) -> None:
        await make_topics(world, segment_records=2, retention_ms=60_000)
        node = max(world.up, key=lambda node: len(led_by(node)))
        led = led_by(node)
        assert len(led) > 2
        for other in world.up:
            if other is not node:
                world.network.partition(node.host, other.host)
        await asyncio.sleep(70)  # all of it is past its retention, and nothing of it can be dropped
        looked: list[str] = []
        for name in led:
            topic = node.topic(name)
            topic.checkpoint_soon = lambda name=name: looked.append(name)  # type: ignore[method-assign, misc]
        await asyncio.sleep(60)
        for name in led:
            assert looked.count(name) >= 4, "a round takes as long as one proposal"
        world.network.heal()
        await asyncio.sleep(60)
        for name in NAMES:
            assert world.leader_of(name).topic(name).state.start_offset > 0

    run_story(story, monitor_check_ms=1000)


def test_a_clock_that_is_off_is_said_once_in_a_round(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        await make_topics(world)
        node = max(world.up, key=lambda node: len(led_by(node)))
        assert len(led_by(node)) > 2
        node.clock.jump(30 * DAY)
        await asyncio.sleep(10.5)

    with caplog.at_level(logging.ERROR, "ister.broker"):
        run_story(story, monitor_check_ms=10_000)
    said = [record for record in caplog.records if "the clock of node" in record.getMessage()]
    assert 1 <= len(said) <= 2
