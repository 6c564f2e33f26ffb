"""Any node answers any client; segments go round; a node that is down costs its own topics only."""

from __future__ import annotations

import asyncio
from copy import deepcopy

import pytest

from ister.broker.topic.sealing import make_seal
from ister.errors import (
    DataDirectoryError,
    IsterError,
    JoinFailed,
    NodeUnreachable,
    NotLeader,
    RequestTimeout,
    UnknownTopic,
)
from ister.protocol.peer import node_of
from ister.testing.cluster import PEER_PORT, World, read_all, run_story


def test_any_node_takes_appends_and_reads_of_any_topic() -> None:
    async def story(world: World) -> None:
        for through in (1, 2, 3):
            async with world.connect(through) as log:
                for topic in ("a", "b", "c", "d", "e"):
                    await log.append(topic, [b"%d" % through])
        for through in (1, 2, 3):
            async with world.connect(through) as log:
                for topic in ("a", "b", "c", "d", "e"):
                    assert await read_all(log, topic) == [b"1", b"2", b"3"]
                    assert await log.offsets_at(topic, "latest") == 3
        leaders = {node_of(world.nodes[1].topic(name).state.open_segment.leader) for name in "abcde"}
        assert len(leaders) > 1, "first leaders are spread"

    run_story(story)


def test_rollovers_go_round_and_neither_writer_nor_reader_notices() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log, world.connect(2) as follower:
            await log.create_topic("t")
            seen: list[bytes | None] = []

            async def follow() -> None:
                async for record in follower.read("t", follow=True, end=200):
                    assert record.offset == len(seen)
                    seen.append(record.value)

            following = asyncio.get_running_loop().create_task(follow())
            for number in range(200):
                appended = await log.append("t", [b"%d" % number])
                assert appended.base_offset == number
            await following
            assert seen == [b"%d" % number for number in range(200)]
        chain = world.nodes[3].topic("t").state.segments
        assert len(chain) >= 15
        assert {node_of(segment.leader) for segment in chain} == {1, 2, 3}

    run_story(story, segment_records=10)


def test_many_producers_through_every_node_race_the_seals() -> None:
    """W2, D9: an append admitted while the end was being captured was lost, or its offset reused."""

    async def story(world: World) -> None:
        acknowledged: dict[int, bytes] = {}

        async def produce(node_id: int, who: int) -> None:
            async with world.connect(node_id) as log, log.producer("t", linger_ms=0) as producer:
                for number in range(40):
                    value = b"%d-%d" % (who, number)
                    acknowledged[await producer.send(value)] = value

        await asyncio.gather(*(produce(1 + who % 3, who) for who in range(9)))
        for node_id in (1, 2, 3):
            async with world.connect(node_id) as log:
                line = await read_all(log, "t")
                assert len(line) == 360
                assert {offset: line[offset] for offset in acknowledged} == acknowledged

    run_story(story, segment_records=7)


def test_a_node_that_is_down_is_named_and_costs_only_its_own_topics() -> None:
    """W1 without replicas, W19: a dead node must not stall what it has no part in."""

    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            for name in "abcdefgh":
                await log.append(name, [b"x"])
        dead = world.nodes[3]
        led = {name for name in "abcdefgh" if world.leader_of(name) is dead}
        assert led and len(led) < 8
        dead.kill()
        async with world.connect(1, retry_deadline_s=0.5) as log:
            for name in "abcdefgh":
                if name in led:
                    with pytest.raises(NodeUnreachable, match="node 3"):
                        await log.append(name, [b"y"])
                    with pytest.raises(NodeUnreachable, match="node 3"):
                        await read_all(log, name)
                else:
                    before = world.loop.time()
                    await log.append(name, [b"y"])
                    assert await read_all(log, name) == [b"x", b"y"]
                    assert world.loop.time() - before < 1.0
        await dead.start()
        async with world.connect(1) as log:
            for name in "abcdefgh":
                await log.append(name, [b"z"])
                assert (await read_all(log, name))[-1] == b"z"

    run_story(story)


def test_a_rollover_passes_over_a_node_that_does_not_answer() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2) as log:
            await log.append("t", [b"0"])
            world.leader_of("t")
            down = next(node for node in world.up if node is not world.leader_of("t"))
            down.kill()
            await asyncio.sleep(3)
            for number in range(1, 100):
                await log.append("t", [b"%d" % number])
            leaders = [node_of(s.leader) for s in next(iter(world.up)).topic("t").state.segments]
            assert down.node_id not in leaders[1:] and len(set(leaders)) == 2
            assert await read_all(log, "t") == [b"%d" % number for number in range(100)]

    run_story(story, segment_records=10)


def test_a8_while_no_metadata_leader_answers_a_full_segment_goes_on_growing() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            await log.append("t", [b"0"])
            leader = world.leader_of("t")
            others = [node for node in world.up if node is not leader]
            for node in others:
                node.kill()
            await asyncio.sleep(3)
        async with world.connect(leader.node_id) as log:
            for number in range(1, 35):
                await log.append("t", [b"%d" % number])
            assert len(leader.topic("t").state.segments) == 1, "nobody can seal it"
            with pytest.raises(IsterError):
                async with asyncio.timeout(30):
                    async with world.connect(leader.node_id, retry_deadline_s=8) as late:
                        for number in range(35, 60):
                            await late.append("t", [b"%d" % number])
            for node in others:
                await node.start()
            await world.settle()
            await log.append("t", [b"last"])
            line = await read_all(log, "t")
            assert line[:35] == [b"%d" % number for number in range(35)] and line[-1] == b"last"

    run_story(story, segment_records=10)


def test_a_minority_reads_its_own_data_and_refuses_metadata_with_a_reason() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            for name in "abcdef":
                await log.append(name, [b"x"])
            lonely = world.leader_of("a")
            world.network.isolate(lonely.host)
        client = f"client-{world._clients + 1}"
        log = world.connect(lonely.node_id, retry_deadline_s=1)
        world.network.heal(client, lonely.host)
        await asyncio.sleep(3)
        async with log:
            assert await read_all(log, "a") == [b"x"]
            await log.append("a", [b"y"])
            assert await read_all(log, "a") == [b"x", b"y"]
            with pytest.raises(IsterError, match="metadata"):
                await log.create_topic("new")

    run_story(story)


def test_a_lookup_of_an_unknown_topic_is_confirmed_and_never_a_matter_of_being_behind() -> None:
    """D10: a metadata read error is not "there is none"."""

    async def story(world: World) -> None:
        behind = next(node for node in world.up if not node.broker.metadata.raft.is_leader)
        first = world.metadata_leader()
        async with world.connect(behind.node_id) as log:
            async with world.connect(first.node_id) as other:
                for number in range(20):
                    await other.create_topic(f"t{number}")
                    assert (await log.describe_topic(f"t{number}")).topic == f"default/t{number}"
            with pytest.raises(UnknownTopic):
                await log.describe_topic("nothing")
        world.network.isolate(behind.host)
        client = f"client-{world._clients + 1}"
        cut_off = world.connect(behind.node_id, retry_deadline_s=1)
        world.network.heal(client, behind.host)
        await asyncio.sleep(3)
        async with cut_off:
            with pytest.raises(IsterError, match="metadata leader") as caught:
                await cut_off.describe_topic("made-elsewhere")
            assert not isinstance(caught.value, UnknownTopic)

    run_story(story)


def test_a_full_restart_twice_in_a_row_keeps_every_record() -> None:
    """W8, W9, D17: with more commands than the snapshot threshold."""

    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            for number in range(300):
                await log.append("t", [b"%d" % number])
        for power in (False, True):
            for node in world.up:
                node.kill(power=power)
            for node in world.nodes.values():
                await node.start()
            async with world.connect(2) as log:
                assert len(await read_all(log, "t")) == 300
        await world.settle()
        async with world.connect(3) as log:
            assert (await log.append("t", [b"x"])).base_offset == 300

    run_story(story, segment_records=10, snapshot_entries=20)


def test_a_seal_proposed_by_an_earlier_start_never_cuts_what_the_next_one_acknowledged() -> None:
    """The old process's proposal is delayed on its way; the new process appends to the segment meanwhile."""

    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            await log.append("t", [b"0"])
            leader = world.leader_of("t")
            segment = leader.topic("t").led.segment
            assert segment is not None
            late = make_seal(leader.broker.storage, leader.topic("t").state, segment, 1)
            leader.kill()
            await leader.start()
            await world.settle()
            assert (await log.append("t", [b"1"])).base_offset == 1
            outcome = await world.metadata_leader().broker.metadata.propose(late)
            assert not outcome.ok
            assert await read_all(log, "t") == [b"0", b"1"]

    run_story(story)


def test_sealed_segments_that_cannot_be_read_are_named_with_what_to_do() -> None:
    """A node that is down has them; one that was wiped does not, and is healthy but for that."""

    async def problems(world: World) -> dict[str, str]:
        async with world.connect(1) as log:
            return {problem.code: problem.what for problem in (await log.cluster()).problems}

    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            await log.create_topic("t", segment_records=2)
            for number in range(12):
                await log.append("t", [b"%d" % number])
        assert await problems(world) == {}
        chain = world.nodes[1].topic("t").state.segments
        held = {node_of(segment.replicas[0]) for segment in chain if segment.is_sealed}
        assert held == {1, 2, 3}
        leads = world.leader_of("t").node_id
        node = world.nodes[2 if leads != 2 else 3]
        node.kill()
        await asyncio.sleep(5)
        found = await problems(world)
        assert sorted(found) == ["node-down", "records-wait"]
        assert f"default/t cannot be read in full: node {node.node_id}" in found["records-wait"]
        node.wipe()
        await node.start(join=f"node-1:{PEER_PORT}", replace_disk=True)
        await world.settle()
        found = await problems(world)
        assert list(found) == ["records-lost-their-node"]
        assert (
            f"default/t cannot be read in full: sealed segments were on a disk of node {node.node_id}"
            in (found["records-lost-their-node"])
        )

    run_story(story)


def test_a_number_that_was_taken_can_be_changed_on_the_directory_that_got_nowhere() -> None:
    """What the error says to do, works: nothing was promised from that directory."""

    async def story(world: World) -> None:
        late = world.make(4)
        with pytest.raises(JoinFailed, match="node 2 is in the cluster already"):
            await late.start(node_id=2, join=f"node-1:{PEER_PORT}", join_timeout_ms=2000)
        await late.start(join=f"node-1:{PEER_PORT}")
        await world.settle()
        assert 4 in world.nodes[1].broker.metadata.state.nodes
        late.kill()
        with pytest.raises(DataDirectoryError, match="belongs to node 4, this is node 5"):
            await late.start(node_id=5, join=f"node-1:{PEER_PORT}")

    run_story(story)


def test_no_node_makes_a_cluster_by_accident_and_a_failed_join_leaves_nothing() -> None:
    """I1, W22."""

    async def story(world: World) -> None:
        stray = world.make(4)
        with pytest.raises(JoinFailed, match=f"node-9:{PEER_PORT}"):
            await stray.start(join=f"node-9:{PEER_PORT}", join_timeout_ms=2000)
        with pytest.raises(JoinFailed, match="node-1:9091"):
            await stray.start(join="node-1:9091", join_timeout_ms=2000)
        assert 4 not in world.nodes[1].broker.metadata.state.nodes
        await stray.start(join=f"node-2:{PEER_PORT}")
        await world.settle()
        async with world.connect(4) as log:
            await log.append("t", [b"x"])
            assert await read_all(log, "t") == [b"x"]

    run_story(story)


def test_a_copy_of_a_directory_that_is_in_use_cannot_take_part() -> None:
    """I2: the copy is told and stops; the original goes on."""

    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            await log.append("t", [b"0"])
        original = world.nodes[2]
        copy = world.make(7)
        copy.node_id = 2
        copy.disk._tree = deepcopy(original.disk._tree)
        with pytest.raises(DataDirectoryError, match="copy"):
            await copy.start()
            async with asyncio.timeout(60):
                while not copy.fatal:  # noqa: ASYNC110 (a callback fills it)
                    await asyncio.sleep(0.1)
            raise copy.fatal[0]
        copy.kill()
        del world.nodes[7]
        await world.settle()
        async with world.connect(1, 2, 3) as log:
            await log.append("t", [b"1"])
            assert await read_all(log, "t") == [b"0", b"1"]
        assert not original.fatal

    run_story(story)


def test_a_deleted_topic_made_again_starts_over_on_every_node() -> None:
    """I3: under load, through several nodes."""

    async def story(world: World) -> None:
        async with world.connect(1) as one, world.connect(2) as two, world.connect(3) as three:
            for turn in range(5):
                for number in range(30):
                    await one.append("t", [b"%d-%d" % (turn, number)])
                line = await read_all(two, "t")
                assert line == [b"%d-%d" % (turn, number) for number in range(30)]
                await three.delete_topic("t")
                await world.settle()

    run_story(story, segment_records=8)


def test_leadership_of_the_metadata_can_be_handed_over_and_a_node_removed() -> None:
    async def story(world: World) -> None:
        old = world.metadata_leader()
        target = next(node for node in world.up if node is not old)
        async with world.connect(old.node_id) as log:
            answer = await log.transfer_leader(target.node_id)
            assert answer.node_id == target.node_id
            await world.settle()
            assert world.metadata_leader() is target
            removed = next(node for node in world.up if node not in (old, target))
            await log.remove_node(removed.node_id)
            async with asyncio.timeout(30):
                while not removed.fatal:  # noqa: ASYNC110 (a callback fills it)
                    await asyncio.sleep(0.1)
            assert "was removed" in removed.fatal[0].message
            removed.kill()
            status = await log.cluster()
            assert sorted(node.node_id for node in status.nodes) == sorted([old.node_id, target.node_id])
            await log.append("t", [b"x"])

    run_story(story)


def test_a_lease_that_was_taken_away_stays_away_until_leases_are_synced() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            await log.append("t", [b"0"])
            leader = world.leader_of("t")
            leader.broker.revoke_leases("t")
            async with world.connect(1, 2, 3, retry_deadline_s=10) as hasty:
                with pytest.raises((NotLeader, RequestTimeout)):
                    await hasty.append("t", [b"no"])
            await asyncio.sleep(10)  # nobody holds it any more
            leader.broker.restore_leases()
            await log.append("t", [b"1"])
            assert await read_all(log, "t") == [b"0", b"1"]

    run_story(story)
