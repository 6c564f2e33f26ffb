"""A client learns which node to ask, keeps its frames in order on the way, and outlives its bootstrap."""

from __future__ import annotations

import asyncio

import pytest
from tests.cluster_world import World, WorldNode, read_all, run_story

from ister.client.connection import Connection
from ister.client.sequencer import Sequencer
from ister.errors import ConnectionFailed


def appended_here(node: WorldNode) -> float:
    """Frames that this node took from clients or passed on, by what its connections acknowledged."""
    return node.server.records_in.value


def test_after_the_first_answer_appends_go_straight_to_the_leader() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            await log.create_topic("t")
            leader = world.leader_of("t")
            other = next(node for node in world.up if node is not leader)
        async with world.connect(other.node_id) as log:
            for number in range(5):  # the way is learned in the background
                await log.append("t", [b"%d" % number])
                await asyncio.sleep(0.2)
            passed_on = appended_here(other)
            for number in range(5, 50):
                await log.append("t", [b"%d" % number])
            assert appended_here(other) == passed_on, "nothing more goes through the node that was named"
            assert await read_all(log, "t") == [b"%d" % number for number in range(50)]

    run_story(story)


def test_reads_go_to_the_node_that_has_the_records() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            for number in range(100):
                await log.append("t", [b"%d" % number])
            leader = world.leader_of("t")
            other = next(node for node in world.up if node is not leader)
        async with world.connect(other.node_id) as log:
            assert len(await read_all(log, "t")) == 100
            await asyncio.sleep(0.5)
            forwarded = other.server.requests.metrics[2].value
            following = log.read("t", start=95, end=100)
            assert [record.offset async for record in following] == list(range(95, 100))
            assert other.server.requests.metrics[2].value == forwarded

    run_story(story)


def test_a_client_outlives_the_only_node_that_it_was_told_of() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            for name in "abcdef":
                await log.append(name, [b"x"])
        told = world.nodes[1]
        async with world.connect(1) as log:
            await log.list_topics()
            await asyncio.sleep(0.5)
            led = [name for name in "abcdef" if world.leader_of(name) is not told]
            told.kill()
            for name in led:
                await log.append(name, [b"y"])
                assert await read_all(log, name) == [b"x", b"y"]
        with pytest.raises(ConnectionFailed):
            async with world.connect(1, connect_timeout_s=1):
                pass

    run_story(story)


def test_frames_of_one_producer_never_overtake_each_other_while_the_way_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log never has to refuse a frame as out of sequence: order is kept by the client, not by retries."""
    refused: list[str] = []
    original = Sequencer.refused

    def watch(self: Sequencer, batch: object, error: Exception) -> None:
        refused.append(type(error).__name__)
        original(self, batch, error)  # type: ignore[arg-type]

    monkeypatch.setattr(Sequencer, "refused", watch)

    async def story(world: World) -> None:
        async with world.connect(1) as log, log.producer("t", linger_ms=0, max_in_flight=8) as producer:
            sends = []
            for number in range(400):
                sends.append(asyncio.ensure_future(producer.send(b"%d" % number)))
                if number % 5 == 0:
                    await asyncio.sleep(0.003)
            assert await asyncio.gather(*sends) == list(range(400))
            assert len(world.nodes[1].topic("t").state.segments) > 10
            assert await read_all(log, "t") == [b"%d" % number for number in range(400)]

    run_story(story, segment_records=20)
    assert "OutOfSequence" not in refused


def test_a_switch_of_the_way_without_waiting_would_be_seen_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail: a client that switches in the middle of its window meets OutOfSequence."""
    refused: list[str] = []
    original, pump = Sequencer.refused, Sequencer._pump

    def watch(self: Sequencer, batch: object, error: Exception) -> None:
        refused.append(type(error).__name__)
        original(self, batch, error)  # type: ignore[arg-type]

    def hasty(self: Sequencer) -> None:
        ready: Connection | None = self._routes.ready(self.topic)
        self._connection = ready
        pump(self)

    monkeypatch.setattr(Sequencer, "refused", watch)
    monkeypatch.setattr(Sequencer, "_pump", hasty)

    async def story(world: World) -> None:
        async with world.connect(1) as log, log.producer("t", linger_ms=0, max_in_flight=8) as producer:
            sends = []
            for number in range(400):
                sends.append(asyncio.ensure_future(producer.send(b"%d" % number)))
                if number % 5 == 0:
                    await asyncio.sleep(0.003)
            await asyncio.gather(*sends)

    for seed in range(1, 6):
        run_story(story, segment_records=20, seed=seed)
    assert "OutOfSequence" in refused
