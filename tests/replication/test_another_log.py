"""A follower that says that it has what it was not sent has another log: the leader stops, and is not heard
again, rather than that either of the two be believed."""

from __future__ import annotations

import asyncio
import logging
from unittest import mock

import msgspec
import pytest

from ister.callers import Caller
from ister.protocol.replication import Replicated
from ister.replication.stream import follower
from ister.testing.cluster import World, run_story
from tests.replication.test_three_replicas import agree, numbers


def test_a_leader_stops_when_a_follower_has_more_than_it_was_sent(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> tuple[bool, bool]:
        async with world.connect() as log:
            await log.append("t", numbers(1))
            await agree(world, "t", 1)
            leader = world.leader_of("t")
            strange = next(node for node in world.up if node is not leader)
            segment, answer = leader.topic("t").state.open_segment, follower._answer
            callers = strange.broker.metadata.peers._callers._all

            def claim_more(caller: Caller, said: Replicated) -> None:
                if caller in callers and said.segment_uid == segment.uid and not said.refusal:
                    said = msgspec.structs.replace(said, end_offset=said.end_offset + 1000)
                answer(caller, said)

            with mock.patch.object(follower, "_answer", claim_more):
                await log.append("t", numbers(1, 1))
                await asyncio.sleep(5)
            values = [record.value async for record in log.read("t")]
        return values == numbers(2), segment.is_sealed

    with caplog.at_level(logging.CRITICAL, "ister"):
        assert run_story(story, replicas=3) == (True, True)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1 and "its log is not this one" in said[0]
