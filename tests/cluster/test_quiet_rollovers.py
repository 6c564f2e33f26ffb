"""An ordinary rollover is no news: whoever watches for warnings hears of none."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ister.testing.cluster import World, run_story
from tests.text.test_text_on_a_cluster import talk


@pytest.mark.parametrize("replicas", [1, 3])
def test_an_ordinary_rollover_logs_no_warning(replicas: int, caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        clients = [await talk(world, node_id) for node_id in (1, 2, 3)]
        async with world.connect() as log:
            for number in range(200):
                put, get = clients[number % 3], clients[(number + 1) % 3]
                await asyncio.gather(put.ask(b"PUT t x"), get.ask(b"GET t"), log.append("t", [b"y"]))
        segment = world.leader_of("t").topic("t").state.open_segment.segment
        assert segment > 20, "as many rollovers"

    for seed in (6, 11):  # where a follower hears of the seal before the leader does
        with caplog.at_level(logging.WARNING, "ister"):
            run_story(story, replicas=replicas, segment_records=10, monitor_check_ms=200, seed=seed)
        assert caplog.messages == []
