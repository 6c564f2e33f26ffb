"""A client learns which node to ask, keeps its frames in order on the way, and outlives its bootstrap."""

from __future__ import annotations

import asyncio

import pytest

from ister.client.batch import Batch
from ister.client.sequencer import Sequencer
from ister.columns import Codec
from ister.errors import ConnectionFailed
from ister.protocol.codec import AppendAnswer
from ister.testing import SimClock, VirtualLoop, simulate
from ister.testing.cluster import World, WorldNode, read_all, run_story


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


@pytest.mark.parametrize("seed", range(1, 6))
def test_frames_of_one_producer_stay_in_order_while_its_topic_goes_round(seed: int) -> None:
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

    run_story(story, segment_records=20, seed=seed)


class Line:
    """A connection that keeps what it is given."""

    is_open = has_room = True

    def __init__(self) -> None:
        self.sent: list[Batch] = []

    def send(self, kind: int, header: bytes, payload: bytes, sink: Batch, timeout_s: float) -> None:
        self.sent.append(sink)


class TwoWays:
    """Routes that change their mind."""

    told_index = 0

    def __init__(self) -> None:
        self.old, self.new = Line(), Line()
        self.best = self.old

    def ready(self, key: str) -> Line:
        return self.best

    def learned(self, key: str, node_id: int) -> None:
        self.best = self.new

    def known_index(self, topic: str) -> int:
        return 0


def test_what_is_under_way_on_the_old_connection_is_answered_before_the_new_one_is_used() -> None:
    async def main(loop: VirtualLoop) -> None:
        ways = TwoWays()
        sequencer = Sequencer(
            "t",
            ways,  # type: ignore[arg-type]
            SimClock(loop, loop.fork("clock")),
            window=8,
            idempotent=True,
            request_timeout_s=30,
            retry_deadline_s=60,
        )
        for number in range(3):
            sequencer.put([b"%d" % number], None, None, None, Codec.NONE)
        sequencer.acknowledged(ways.old.sent[0], AppendAnswer(0, 1, 2))
        for number in range(3, 6):
            sequencer.put([b"%d" % number], None, None, None, Codec.NONE)
        assert (len(ways.old.sent), len(ways.new.sent)) == (3, 0)
        sequencer.acknowledged(ways.old.sent[1], AppendAnswer(1, 1, 2))
        assert not ways.new.sent
        sequencer.acknowledged(ways.old.sent[2], AppendAnswer(2, 1, 2))
        assert (len(ways.old.sent), len(ways.new.sent)) == (3, 3)

    simulate(main, seed=1)
