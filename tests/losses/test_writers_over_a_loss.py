"""Who wrote while a segment was given up: the cut-off leader, what it held, producers that retry (F6, A5)."""

from __future__ import annotations

import asyncio

import pytest

from ister.broker.text.connection import BrokerTextNode
from ister.broker.topic.sealing import HARD_CAP, MOST_RECORDS_IN_A_FRAME
from ister.errors import IsterError, RecordsLost
from ister.testing.cluster import World, run_story
from tests.losses.stories import (
    aside,
    cut_off,
    give_up,
    numbers,
    others,
    settled_leader,
    values_from,
)


def test_invariant_11_what_a_cut_off_leader_gives_out_is_given_out_by_nobody_else() -> None:
    """The operator was wrong: the node was not stopped. It goes on, up to its hard cap, with frames that are
    larger than that; what it gives out is lost, and is not anybody else's."""

    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
        leader = world.leader_of("t")
        cut_off(world, leader)
        acknowledged: dict[int, bytes] = {}
        async with world.connect(leader.node_id, retry_deadline_s=1) as cut, others(world, leader) as log:
            for number in range(3, 400, 40):
                try:
                    appended = await cut.append("t", numbers(40, number))
                    acknowledged.update(zip(appended.offsets, numbers(40, number), strict=True))
                except IsterError:
                    break
            assert 16 < max(acknowledged) < HARD_CAP * 4 + 40, "the cap is hard, and one frame may pass it"
            end = (await give_up(log)).lost_end
            assert end > max(acknowledged)
            await log.append("t", [b"after"])
            world.network.heal()
            await world.settle()
            assert len(await aside(leader)) == 1
            for node in world.up:
                async with world.connect(node.node_id) as client:
                    for offset in (0, min(acknowledged), max(acknowledged)):
                        with pytest.raises(RecordsLost):
                            await anext(aiter(client.read("t", start=offset)))
                await BrokerTextNode(node.server).append_one("default/t", b"through it")
            assert len(await values_from(log, end)) == 1 + len(world.up)

    run_story(story, segment_records=4)


def test_invariant_11_a_lower_limit_does_not_forget_what_the_higher_one_let_in() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.create_topic("t", segment_records=1_000_000)
            await log.append("t", numbers(3))
            leader = world.leader_of("t")
            cut_off(world, leader)
        async with others(world, leader) as log:
            async with asyncio.timeout(30):
                await log.alter_topic("t", segment_records=10)
            given_up = await give_up(log)
            assert given_up.lost_end == HARD_CAP * 1_000_000 + MOST_RECORDS_IN_A_FRAME

    run_story(story)


@pytest.mark.parametrize("is_draining", [False, True], ids=["in the open", "in a handoff"])
def test_h2_what_a_leader_had_not_acknowledged_when_it_hears_of_its_loss_goes_to_the_next_one(
    is_draining: bool,
) -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
        leader = world.leader_of("t")
        leader.broker.commits.submit = lambda segment: None  # type: ignore[method-assign]
        cut_off(world, leader)
        node = BrokerTextNode(leader.server)
        waits = [
            asyncio.ensure_future(node.append_one("default/t", b"waits-%d" % number)) for number in range(3)
        ]
        await asyncio.sleep(1)
        if is_draining:
            leader.topic("t").handing_off.start()
        async with others(world, leader) as log:
            end = (await give_up(log)).lost_end
            assert not any(append.done() for append in waits)
            world.network.heal()
            assert await asyncio.gather(*waits) == [end, end + 1, end + 2], "in their order"
            assert await values_from(log, end) == [b"waits-0", b"waits-1", b"waits-2"]

    run_story(story)


def test_a5_a_producer_that_retries_across_the_loss_finds_its_records_once() -> None:
    async def story(world: World) -> None:
        async with world.connect() as fresh, world.connect() as known:
            await known.append("t", [b"known-0"])
            await known.append("t", [b"known-1"])
            leader = world.leader_of("t")
            leader.kill(power=True)
            # One producer's first frame, and another's third one, of which nobody knows what was before.
            first = asyncio.ensure_future(fresh.append("t", [b"fresh-0"]))
            third = asyncio.ensure_future(known.append("t", [b"known-2"]))
            async with others(world, leader) as log:
                end = (await give_up(log)).lost_end
                assert (await first).base_offset >= end
                outcomes = await asyncio.gather(third, return_exceptions=True)
                await fresh.append("t", [b"fresh-1"])
                seen = await values_from(log, end)
        assert sorted(value for value in seen if value and value.startswith(b"fresh")) == [
            b"fresh-0",
            b"fresh-1",
        ]
        assert seen.count(b"known-2") == (0 if isinstance(outcomes[0], IsterError) else 1)
        assert b"known-0" not in seen and b"known-1" not in seen, "what was acknowledged is not sent again"

    run_story(story)


def test_a5_a_first_frame_that_a_sealed_segment_has_is_recognised_behind_the_loss() -> None:
    """The table that the seal before the lost segment brought is not forgotten with it."""

    async def story(world: World) -> None:
        async with world.connect() as log:
            batch = log._own_sequencer("t").put([b"a", b"b", b"c", b"d"], None, None, None, 0)  # type: ignore[arg-type]
            frame = bytes(batch.frame)
            assert await batch.wait(0) == 0
            await asyncio.sleep(1)
            leader = await settled_leader(world)
            assert leader.topic("t").state.open_segment.base_offset == 4
            leader.kill(power=True)
            async with others(world, leader) as operator:
                end = (await give_up(operator)).lost_end
                again = await _send(operator, "t", frame)
                assert again == 0, "the offset of the first time"
                assert await values_from(operator, end) == []

    run_story(story, segment_records=4)


async def _send(log: object, topic: str, frame: bytes) -> int:
    """A frame as it was sent before, and where the broker says that it is."""
    from ister.protocol.codec import decode_appended, encode_header
    from ister.protocol.messages import Append, Kind

    connection = await log.requests.routes.connection(topic)  # type: ignore[attr-defined]
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    class Sink:
        def answered(self, header: bytes, payload: object) -> None:
            future.set_result(decode_appended(header).base_offset)

        def failed(self, error: IsterError) -> None:
            future.set_exception(error)

    connection.send(Kind.APPEND, encode_header(Append(topic)), bytearray(frame), Sink(), 10.0)
    return await future
