"""What STATE shows, and what PUT does with a topic that is not there."""

from __future__ import annotations

import asyncio
import json

import pytest

from ister.broker.text.service import topic_object
from ister.broker.topic.sealing import most_it_can_reach
from ister.errors import InvalidTopicName, UnknownTopic
from ister.metadata.commands import AcceptLoss, OpenedSegment, SealSegment, TrimTopic
from ister.protocol.messages import TopicSettings
from ister.testing import VirtualLoop, simulate
from tests.text.fakes import FakeCluster, member


def test_state_counts_the_records_of_sealed_segments_and_names_their_nodes() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = FakeCluster(loop.fork("cluster"))
        first, second = await cluster.start(1), await cluster.start(2)
        await first.text.register("logs")
        await asyncio.sleep(1)
        uid = first.metadata.state.topics["default/logs"].uid
        for segment, end, leader in ((1, 1_000_000, 2), (2, 1_950_000, 1)):
            proposer = first if segment == 1 else second
            starts = proposer.metadata.state.nodes[proposer.number].starts
            seal = SealSegment(
                uid, segment, end, 1, member(leader), [member(leader)], [], 1, proposer.member, starts, 1
            )
            assert (await proposer.metadata.propose(seal)).ok
        await asyncio.sleep(1)
        assert json.loads(await second.text.state("logs")) == {
            "current_segment": 3,
            "leader_node": 1,
            "last_sealed_entry_offset": 1_950_000,
            "sealed_segments": {"1": 1_000_000, "2": 950_000},
            "segment_leaders": {"1": 1, "2": 2, "3": 1},
        }
        await first.metadata.propose(TrimTopic(uid, 1_000_000))
        shown = topic_object(first.metadata.state.topics["default/logs"])
        assert (shown["sealed_segments"], shown["last_sealed_entry_offset"]) == ({"2": 950_000}, 1_950_000)

    simulate(main, 1, limit_seconds=60)


def test_after_an_accepted_loss_state_counts_records_that_are_there_and_offsets_that_are_gone() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = FakeCluster(loop.fork("cluster"))
        node = await cluster.start(1)
        await node.text.register("logs")
        await asyncio.sleep(1)
        topic = node.metadata.state.topics["default/logs"]
        assert (await node.metadata.propose(OpenedSegment(topic.uid, 1, 1))).ok
        topic = node.metadata.state.topics["default/logs"]
        end = most_it_can_reach(topic)
        starts = node.metadata.state.nodes[1].starts
        lost = AcceptLoss(topic.uid, 1, end, node.member, [node.member], 100, 1, node.member, True, starts)
        outcome = await node.metadata.propose(lost)
        assert outcome.ok, outcome
        shown = json.loads(await node.text.state("logs"))
        assert shown["last_sealed_entry_offset"] == end == 71_108_864, "no offset of these is used again"
        assert shown["sealed_segments"] == {"1": 100}

    simulate(main, 1, limit_seconds=60)


def test_a_first_put_makes_the_topic_and_get_and_state_do_not() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = FakeCluster(loop.fork("cluster"))
        node = await cluster.start(1)
        with pytest.raises(UnknownTopic):
            await node.text.state("logs")
        with pytest.raises(UnknownTopic):
            await node.get("logs")
        await node.text.put("ns/logs", b"x")
        assert await node.get("/ns/logs") == b"x", "under any of its names"
        assert list(node.metadata.state.topics) == ["ns/logs"]
        for name in ("a:b", "a b", "", "x" * 201):
            with pytest.raises(InvalidTopicName):
                await node.text.put(name, b"x")
        assert node.metadata.state.topics["ns/logs"].settings == TopicSettings()

    simulate(main, 1, limit_seconds=60)
