"""A topic with one replica whose node is gone: it waits, or goes on when an operator accepts a loss (F6)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ister.broker.sealing import HARD_CAP, MOST_RECORDS_IN_A_FRAME
from ister.broker.text_connection import BrokerTextNode
from ister.errors import BadRequest, IsterError, NodeUnreachable, RecordsLost
from ister.metadata.state import LostRange
from tests.cluster_world import World, run_story
from tests.losses.stories import (
    aside,
    cut_off,
    give_up,
    numbers,
    others,
    settled_leader,
    up_to_the_loss,
    values_from,
    waiting,
)


def test_a_topic_whose_only_node_is_gone_waits_and_says_for_whom() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(7))
        leader = world.leader_of("t")
        leader.kill(power=True)
        async with others(world, leader) as log:
            found = await waiting(log)
            assert (found.leader, found.silent, found.leader_starts) == (leader.node_id, [leader.node_id], 1)
            assert (found.base_offset, found.lost_from, found.recovery) == (0, 0, "")
            assert f"led by node {leader.node_id}, which does not answer" in found.why
            assert any(f"start node {leader.node_id} again" in choice for choice in found.choices)
            assert any("--accept-loss --node-stopped" in choice for choice in found.choices)
            await asyncio.sleep(20)
            assert (await log.recovery_of("t")).silent_ms >= 20_000
        for node in world.up:
            assert len(node.topic("t").state.segments) == 1, "nobody goes on by itself"

    run_story(story)


def test_f6_the_topic_goes_on_behind_all_that_may_have_been_given_out() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            for number in range(10):
                await log.append("t", numbers(1, number))
            leader = await settled_leader(world)
            base = leader.topic("t").state.open_segment.base_offset
            assert 0 < base <= 10
            leader.kill(power=True)
            leader.wipe()
        async with others(world, leader) as log:
            given_up = await give_up(log)
            assert (given_up.lost_from, given_up.lost_end) == (
                base,
                base + HARD_CAP * 4 + MOST_RECORDS_IN_A_FRAME,
            )
            appended = await log.append("t", [b"after"])
            assert appended.base_offset == given_up.lost_end
            assert await values_from(log, given_up.lost_end) == [b"after"]
            described = await log.describe_topic("t")
            assert described.end_offset - described.start_offset - described.lost == base + 1
            assert any(
                f"offsets {base} to {given_up.lost_end - 1} were given up" in one for one in described.notes
            )
        for node in world.up:
            topic = node.topic("t").state
            assert [(one.from_offset, one.end_offset) for one in topic.lost] == [(base, given_up.lost_end)]

    run_story(story, segment_records=4)


def test_every_node_tells_every_reader_of_a_lost_offset_which_they_are() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            for number in range(6):
                await log.append("t", numbers(1, number))
        leader = await settled_leader(world)
        base = leader.topic("t").state.open_segment.base_offset
        leader.kill()
        async with others(world, leader) as log:
            end = (await give_up(log)).lost_end
            await log.append("t", [b"after"])
        await leader.start()
        await world.settle()
        for node in world.up:
            async with world.connect(node.node_id) as log:
                for offset in (base, base + 1, end - 1):
                    with pytest.raises(RecordsLost) as caught:
                        await anext(aiter(log.read("t", start=offset)))
                    assert caught.value.offsets == (base, end)
                    assert caught.value.hint == f"Read on from offset {end}."
                    assert f"offset {offset} of topic default/t is lost" in caught.value.message
                seen, told = await up_to_the_loss(log)
                assert (seen, told.offsets) == (numbers(base), (base, end)), "what lies before is read first"
                assert await values_from(log, end) == [b"after"]

    run_story(story, segment_records=4)


def test_a_reader_that_follows_is_told_too() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
            leader = world.leader_of("t")
            seen: list[bytes | None] = []

            async def follow() -> None:
                async for record in log.read("t", follow=True):
                    seen.append(record.value)  # noqa: PERF401 (it is looked at while it grows)

            following = asyncio.ensure_future(follow())
            await asyncio.sleep(1)
            leader.kill(power=True)
            async with others(world, leader) as operator:
                end = (await give_up(operator)).lost_end
            with pytest.raises(RecordsLost) as caught:
                await following
            assert (seen, caught.value.offsets) == (numbers(3), (0, end))

    run_story(story)


def test_a_time_within_the_loss_leads_behind_it() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            first = await log.append("t", numbers(4))
            await asyncio.sleep(10)
            last = await log.append("t", numbers(2, 4))
        leader = await settled_leader(world)
        base = leader.topic("t").state.open_segment.base_offset
        assert base == 4
        leader.kill(power=True)
        async with others(world, leader) as log:
            end = (await give_up(log)).lost_end
            assert await log.offsets_at("t", last.append_time_us) == end, "nothing is there yet"
            after = await log.append("t", [b"after"])
            assert after.append_time_us > last.append_time_us
            for time_us, offset in (
                (first.append_time_us, 0),
                (first.append_time_us + 1, end),
                (last.append_time_us, end),
                (after.append_time_us, end),
                (after.append_time_us + 1, end + 1),
            ):
                assert await log.offsets_at("t", time_us) == offset

    run_story(story, segment_records=4)


def test_a_time_before_everything_leads_behind_a_loss_that_is_the_topics_beginning() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(4))
        leader = world.leader_of("t")
        leader.kill(power=True)
        async with others(world, leader) as log:
            end = (await give_up(log)).lost_end
            await log.append("t", [b"after"])
            assert await log.offsets_at("t", 0) == end
            assert await log.offsets_at("t", "earliest") == 0, "the offsets are there, and lost"

    run_story(story)


def test_f6_a_tail_that_comes_back_is_set_aside_and_reported_and_never_served() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(5))
            await log.append("t", numbers(5, 5))
        leader = world.leader_of("t")
        state = leader.topic("t").state
        path = f"segments/{state.uid:016d}/{1:08d}-{state.open_segment.uid:016d}"
        before = leader.disk.durable_bytes(path + ".log").rstrip(b"\0")
        leader.kill()
        async with others(world, leader) as log:
            end = (await give_up(log)).lost_end
            await log.append("t", [b"after"])
        for _ in range(2):
            await leader.start()
            await world.settle()
            assert await aside(leader) == [f"{path.rpartition('/')[2]}.lost-0-10.log"]
            assert leader.disk.durable_bytes(f"{path}.lost-0-10.log").rstrip(b"\0") == before
            assert not leader.disk.exists(path + ".log")
            for node in world.up:
                async with world.connect(node.node_id) as log:
                    with pytest.raises(RecordsLost):
                        await anext(aiter(log.read("t", start=9)))
                    notes = (await log.describe_topic("t")).notes
                    assert any("offsets 0 to 9" in one and "set aside" in one for one in notes), notes
                    assert (await log.recovery_of("t")).notes == [one for one in notes if "set aside" in one]
            leader.kill()
        async with others(world, leader) as log:
            assert await values_from(log, end) == [b"after"]

    run_story(story)


def test_a_disk_that_was_wiped_cannot_come_back_and_its_node_may_lead_what_follows() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(5))
        leader = world.leader_of("t")
        leader.kill(power=True)
        leader.wipe()
        await leader.start(join=f"{world.up[0].host}:6001")
        await world.settle()
        async with world.connect(leader.node_id) as log:
            shown = await waiting(log)
            assert (shown.silent, shown.leader_starts, shown.replicas[0].state) == ([], 0, "gone")
            assert "on a disk that is not in the cluster any more" in shown.why
            end = (await give_up(log)).lost_end
            await log.append("t", [b"after"])
            assert await values_from(log, end) == [b"after"]
        assert await aside(leader) == []

    run_story(story)


def test_what_was_given_up_as_a_whole_is_no_damage_to_the_scrub() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(5))
        leader = world.leader_of("t")
        leader.kill()
        async with others(world, leader) as log:
            await give_up(log)
        await leader.start()
        await world.settle()
        assert len(await aside(leader)) == 1
        await leader.broker.replication.scrubbing.round()
        async with others(world) as log:
            assert (await log.cluster()).problems == []

    run_story(story)


def test_a_leader_that_is_alive_is_not_given_up() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
            leader = world.leader_of("t").node_id
            found = await log.recovery_of("t")
            assert (found.state, found.why, found.choices) == ("open", "", [])
            assert found.refusal.startswith(f"node {leader} leads default/t:1, and it answers")
            with pytest.raises(BadRequest, match=r"nothing is given up: node .* it answers"):
                await log.accept_loss(found, node_stopped=True)
            assert await values_from(log, 0) == numbers(3)

    run_story(story)


def test_a_leader_that_only_another_node_hears_is_not_given_up() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
        leader = world.leader_of("t")
        asked, other = (node for node in world.up if node is not leader)
        world.network.partition(asked.host, leader.host)
        await asyncio.sleep(5)
        async with world.connect(asked.node_id) as log:
            found = await log.recovery_of("t")
            assert f"it answers node {other.node_id}" in found.refusal or "it answers:" in found.refusal
            with pytest.raises(BadRequest):
                await log.accept_loss(found, node_stopped=True)

    run_story(story)


def test_a_leader_that_came_back_since_the_operator_looked_is_not_given_up() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
        leader = world.leader_of("t")
        leader.kill()
        async with others(world, leader) as log:
            shown = await waiting(log)
            await leader.start()
            await world.settle()
            with pytest.raises(BadRequest, match="it answers"):
                await log.accept_loss(shown, node_stopped=True)
            async with world.connect() as client:
                await client.append("t", numbers(1, 3))
            leader.kill()
            await waiting(log)
            with pytest.raises(BadRequest, match="was started again meanwhile"):
                await log.accept_loss(shown, node_stopped=True)
            await leader.start()
            assert await values_from(log, 0) == numbers(4)

    run_story(story)


def test_the_operator_has_to_state_that_the_node_is_stopped() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
        leader = world.leader_of("t")
        leader.kill()
        async with others(world, leader) as log:
            with pytest.raises(BadRequest, match=f"nobody states that node {leader.node_id}"):
                await log.accept_loss(await waiting(log), node_stopped=False)
            assert (await log.recovery_of("t")).state == "waits"

    run_story(story)


def test_the_same_command_again_is_the_same_loss_and_no_other() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
        leader = world.leader_of("t")
        leader.kill()
        async with others(world, leader) as log:
            shown = await waiting(log)
            both = await asyncio.gather(
                log.accept_loss(shown, node_stopped=True), log.accept_loss(shown, node_stopped=True)
            )
            await log.append("t", [b"after"])
            late = await log.accept_loss(shown, node_stopped=True)
            assert {(one.accepted, one.lost_from, one.lost_end) for one in (*both, late)} == {
                (True, 0, late.lost_end)
            }
            unknown = msgspec.structs.replace(shown, segment_uid=3)
            with pytest.raises(BadRequest, match="is not open any more"):
                await log.accept_loss(unknown, node_stopped=True)
            assert await values_from(log, late.lost_end) == [b"after"]
        for node in world.up:
            assert len(node.topic("t").state.segments) == 2
            (lost,) = node.topic("t").state.lost
            assert isinstance(lost, LostRange) and lost.end_offset == late.lost_end

    run_story(story)


def test_nothing_is_given_up_by_a_minority() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
        leader = world.leader_of("t")
        leader.kill()
        async with others(world, leader) as log:
            shown = await waiting(log)
        alone, gone = world.up
        gone.kill()
        await asyncio.sleep(3)
        async with world.connect(alone.node_id, retry_deadline_s=10) as log:
            found = await log.recovery_of("t")
            assert "nothing can be changed now" in found.refusal
            with pytest.raises(IsterError):
                await log.accept_loss(shown, node_stopped=True)
        assert alone.topic("t").state.lost == []

    run_story(story)


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
            leader.topic("t").start_handoff()
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

    connection = await log._routes.connection(topic)  # type: ignore[attr-defined]
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    class Sink:
        def answered(self, header: bytes, payload: object) -> None:
            future.set_result(decode_appended(header).base_offset)

        def failed(self, error: IsterError) -> None:
            future.set_exception(error)

    connection.send(Kind.APPEND, encode_header(Append(topic)), bytearray(frame), Sink(), 10.0)
    return await future


def test_the_segments_before_it_and_other_topics_are_as_they_were() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            for number in range(9):
                await log.append("t", numbers(1, number))
                await log.append("other", numbers(1, number))
        leader = await settled_leader(world)
        before = {
            node.node_id: [msgspec.to_builtins(one) for one in node.topic("t").state.segments[:-1]]
            for node in world.up
        }
        leader.kill()
        async with others(world, leader) as log:
            await give_up(log)
        await leader.start()
        await world.settle()
        for node in world.up:
            assert [msgspec.to_builtins(one) for one in node.topic("t").state.segments[:-2]] == before[
                node.node_id
            ]
            async with world.connect(node.node_id) as log:
                assert await values_from(log, 0, "other") == numbers(9)

    run_story(story, segment_records=4)


def test_health_says_no_more_that_the_topic_waits() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
        leader = world.leader_of("t")
        leader.kill(power=True)
        leader.wipe()
        async with others(world, leader) as log:
            await waiting(log)
            assert "topics-wait" in [problem.code for problem in (await log.cluster()).problems]
            await give_up(log)
            codes = [problem.code for problem in (await log.cluster()).problems]
            assert codes == ["node-down"], "nothing of it is left to wait for, or to read"
            given_up = (await log.describe_topic("t")).segments[0]
            assert given_up.lost and not given_up.copies, "and no copy of it is missing"
            removed = await log.remove_node(leader.node_id)
            assert removed.node_id == leader.node_id, "it holds the last copy of nothing"

    run_story(story)


def test_an_append_that_finds_no_leader_names_the_node() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
        leader = world.leader_of("t")
        leader.kill()
        async with world.connect(*(node.node_id for node in world.up), retry_deadline_s=3) as log:
            with pytest.raises(NodeUnreachable, match=f"node {leader.node_id}"):
                await log.append("t", [b"x"])

    run_story(story)
