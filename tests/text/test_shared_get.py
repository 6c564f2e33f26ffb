"""GET's shared cursor on a small cluster: one line for the clients of all nodes (S5)."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ister.errors import CorruptSegment, IsterError, UnknownTopic
from ister.metadata.commands import DeleteTopic, FlushCursors, SealSegment, TrimTopic
from ister.protocol.peer import PeerKind
from tests.text.fakes import FakeCluster, FakeNode
from tests.text.playing import T, drain, numbers, play, settle, stored, took


def test_the_clients_of_all_nodes_share_one_cursor() -> None:
    async def script(cluster: FakeCluster) -> None:
        found = [await cluster.nodes[1 + number % 3].get("t") for number in range(30)]
        assert found == numbers(0, 30)
        assert [await node.get("t") for node in cluster.nodes.values()] == [None] * 3
        await cluster.nodes[2].text.put("t", b"late")
        assert await cluster.nodes[3].get("t") == b"late"

    play(script, records=30)


@pytest.mark.parametrize("seed", range(5))
def test_concurrent_gets_hand_out_each_record_once(seed: int) -> None:
    async def script(cluster: FakeCluster) -> None:
        clients = [drain(cluster.nodes[1 + number % 3]) for number in range(9)]
        found = await asyncio.gather(*clients)
        assert sorted(int(value) for each in found for value in each) == list(range(100))
        assert all(list(map(int, each)) == sorted(map(int, each)) for each in found), "in order for each"
        epochs = {stored(cluster, number)[1] for number in cluster.nodes}
        assert epochs == {1}, "one claim was enough"

    play(script, records=100, seed=seed)


def test_empty_is_the_end_of_the_topic_and_unknown_is_an_error() -> None:
    async def script(cluster: FakeCluster) -> None:
        assert await cluster.nodes[2].get("t") is None
        with pytest.raises(UnknownTopic):
            await cluster.nodes[2].get("nowhere")

    play(script)


def test_s5_a_record_that_came_back_is_handed_out_before_anything_new() -> None:
    async def script(cluster: FakeCluster) -> None:
        owner, other = cluster.nodes[1], cluster.nodes[2]
        first, second, third = await took(owner), await took(other), await took(owner)
        other.gets.returned(second)
        owner.gets.done(third)
        owner.gets.returned(first)
        await settle(cluster)
        assert stored(cluster)[2] == 0, "0 and 1 are still to be had"
        assert await drain(other) == [b"0", b"1", b"3", b"4"]
        await settle(cluster)
        assert stored(cluster)[2] == 5

    play(script, records=5)


def test_a_record_that_nobody_settles_is_handed_out_again_after_its_time() -> None:
    async def script(cluster: FakeCluster) -> None:
        late = await took(cluster.nodes[1])
        assert await drain(cluster.nodes[2]) == [b"1", b"2"]
        await asyncio.sleep(20)
        assert await drain(cluster.nodes[2]) == []
        await asyncio.sleep(15)
        again = await took(cluster.nodes[2])
        assert (again.value, again.delivery_id.attempt) == (b"0", 2)
        cluster.nodes[1].gets.returned(late)
        assert await drain(cluster.nodes[3]) == [], "an older attempt has nothing to give back"
        cluster.nodes[1].gets.done(late)
        await settle(cluster)
        assert stored(cluster)[2] == 3, "it reached a client after all"

    play(script, records=3)


def test_a_get_that_is_answered_twice_by_the_owner_is_one_record() -> None:
    async def script(cluster: FakeCluster) -> None:
        assert await cluster.nodes[1].get("t") == b"0"
        lost = iter([True, True])
        cluster.lose_answers = lambda sender, kind: kind == PeerKind.GET and next(lost, False)
        assert await cluster.nodes[2].get("t") == b"1"
        assert await cluster.nodes[3].get("t") == b"2"

    play(script, records=4)


def test_a_get_whose_answers_never_come_gives_its_record_back() -> None:
    async def script(cluster: FakeCluster) -> None:
        assert await cluster.nodes[1].get("t") == b"0"
        cluster.lose_answers = lambda sender, kind: kind == PeerKind.GET and sender == 2
        with pytest.raises(IsterError) as failed:
            await cluster.nodes[2].get("t")
        assert failed.value.retriable
        await settle(cluster)
        assert await drain(cluster.nodes[3]) == [b"1", b"2"], "and long before its time is over"

    play(script, records=3)


def test_a_client_that_leaves_during_a_get_leaves_the_record_to_others() -> None:
    async def script(cluster: FakeCluster) -> None:
        assert await cluster.nodes[1].get("t") == b"0"
        for asker in (1, 2):
            cluster.nodes[1].hold_reads(hold=True)
            waiting = asyncio.create_task(cluster.nodes[asker].take("t"))
            await settle(cluster, 0.5)
            waiting.cancel()
            await asyncio.wait([waiting])
            cluster.nodes[1].hold_reads(hold=False)
            await settle(cluster)
        assert await drain(cluster.nodes[3]) == [b"1", b"2"]

    play(script, records=3)


def test_w7_an_error_of_reading_is_raised_and_the_cursor_stays() -> None:
    async def script(cluster: FakeCluster) -> None:
        assert await cluster.nodes[1].get("t") == b"0"
        cluster.nodes[1].read_faults[1] = CorruptSegment("segment 1 of default/t is damaged at byte 70")
        for number in (1, 2, 1):
            with pytest.raises(CorruptSegment, match="damaged at byte 70"):
                await cluster.nodes[number].get("t")
        cluster.nodes[1].read_faults.clear()
        assert await drain(cluster.nodes[2]) == [b"1", b"2"]

    play(script, records=3)


def test_w7_an_error_of_reading_again_does_not_lose_the_record_that_came_back() -> None:
    async def script(cluster: FakeCluster) -> None:
        node = cluster.nodes[1]
        node.gets.returned(await took(node))
        node.read_faults[0] = CorruptSegment("damaged")
        with pytest.raises(CorruptSegment):
            await node.get("t")
        node.read_faults.clear()
        assert await drain(node) == [b"0", b"1"]

    play(script, records=2)


async def trim(node: FakeNode, start: int) -> None:
    topic, starts = node.metadata.state.topics[T], node.metadata.state.nodes[node.number].starts
    seal = SealSegment(topic.uid, 1, start, 600, node.member, [node.member], [], 1, node.member, starts, 1)
    assert (await node.metadata.propose(seal)).ok
    assert (await node.metadata.propose(TrimTopic(topic.uid, start))).ok
    for offset in range(start):
        del node.cluster.records[topic.uid][offset]


def test_records_that_are_on_their_way_when_retention_drops_them_hold_up_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(cluster: FakeCluster) -> None:
        node = cluster.nodes[1]
        held, back = await took(node), await took(node)
        node.gets.returned(back)
        await trim(node, 6)
        assert await drain(cluster.nodes[2]) == numbers(6, 9)
        await settle(cluster)
        assert stored(cluster)[2] == 9
        node.gets.returned(held)
        assert await node.get("t") is None

    with caplog.at_level(logging.WARNING, "ister.broker.get"):
        play(script, records=9)
    (told,) = [record for record in caplog.records if "not in the log any more" in record.message]
    assert vars(told)["fields"]["records"] == 5, "all but the one that was on its way"


def test_a_skip_of_what_retention_dropped_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def script(cluster: FakeCluster) -> None:
        node = cluster.nodes[1]
        assert [await node.get("t") for _ in range(2)] == numbers(0, 2)
        await trim(node, 6)
        assert await drain(cluster.nodes[2]) == numbers(6, 9)
        await settle(cluster)
        assert stored(cluster)[2] == 9

    with caplog.at_level(logging.WARNING, "ister.broker.get"):
        play(script, records=9)
    (told,) = [record for record in caplog.records if "not in the log any more" in record.message]
    assert vars(told)["fields"] == {"topic": T, "records": 4, "goes_on_at": 6}


def test_i3_a_topic_that_was_made_again_begins_at_its_first_record() -> None:
    async def script(cluster: FakeCluster) -> None:
        owner = cluster.nodes[1]
        held = await took(owner)
        assert await owner.get("t") == b"1"
        await owner.metadata.propose(DeleteTopic(owner.metadata.state.topics[T].uid))
        with pytest.raises(UnknownTopic):
            await owner.get("t")
        await settle(cluster)
        await cluster.nodes[2].text.put("t", b"new")
        owner.gets.done(held)
        await settle(cluster)
        assert await drain(owner) == [b"new"]

    play(script, records=5)


def test_the_cursors_of_many_topics_are_stored_with_one_command() -> None:
    async def script(cluster: FakeCluster) -> None:
        node = cluster.nodes[1]
        names = [f"u{number}" for number in range(30)]
        for name in names:
            await node.text.put(name, b"x")
        taken = [await node.take(name) for name in names]
        await settle(cluster)
        before = len(cluster.log)
        for each in taken:
            assert each is not None
            node.gets.done(each)
        await settle(cluster)
        flushes = [command for command in cluster.log[before:] if isinstance(command, FlushCursors)]
        assert [len(flush.rows) for flush in flushes] == [30]
        assert all(node.metadata.state.topics[f"default/{name}"].get_offset == 1 for name in names)

    play(script)


def test_a_busy_cursor_is_stored_a_few_times_a_second() -> None:
    async def script(cluster: FakeCluster) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert len(await drain(cluster.nodes[1])) == 300
        elapsed = loop.time() - began
        flushes = [command for command in cluster.log if isinstance(command, FlushCursors)]
        assert elapsed > 1
        assert 2 <= len(flushes) <= elapsed / 0.2 + 1

    play(script, records=300)


def test_a_topic_whose_reads_hang_holds_up_no_other() -> None:
    """W19: one lock over all cursors, held across a dead node's reads, stalled every GET."""

    async def script(cluster: FakeCluster) -> None:
        node = cluster.nodes[1]
        await node.text.put("u", b"x")
        assert await node.get("t") == b"0"
        read_one = node.read_one

        async def hangs(topic: str, offset: int) -> tuple[int, bytes] | None:
            if topic == T:
                await asyncio.get_running_loop().create_future()
            return await read_one(topic, offset)

        node.read_one = hangs  # type: ignore[method-assign]
        stuck = asyncio.create_task(node.get("t"))
        await settle(cluster, 0.5)
        async with asyncio.timeout(1):
            assert await node.get("u") == b"x"
        with pytest.raises(IsterError) as failed:
            await stuck
        assert failed.value.retriable

    play(script, records=3)
