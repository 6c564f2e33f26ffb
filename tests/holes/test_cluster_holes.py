"""Walrus's holes in its data and its Raft (W1 to W10), as a cluster could have them.

What it did is in each docstring. Where a scenario can show that it would see the hole, a second test puts the
mistake in and lets it.
"""

from __future__ import annotations

import pytest

from ister.errors import (
    CorruptFrame,
    CorruptSegment,
    InvariantBroken,
    NodeUnreachable,
)
from ister.protocol.peer import node_of
from ister.testing import Loss
from ister.testing.cluster import World, read_all, run_story
from tests.holes import cluster_plants as plants
from tests.holes.cluster_plants import fill, numbers


def test_w1_a_dead_node_is_named_where_its_records_are_and_never_read_as_an_end() -> None:
    """W1: reads stopped at a dead leader's segment. (That its topic goes on without it is replication.)"""

    async def story(world: World) -> None:
        await fill(world, "t", 40)
        chain = world.nodes[1].topic("t").state.segments
        missing = next(s for s in chain[1:] if s.leader != chain[0].leader and s.leader != chain[-1].leader)
        dead = world.nodes[node_of(missing.leader)]
        dead.kill()
        assert missing.end_offset is not None
        async with world.connect(*[node.node_id for node in world.up], retry_deadline_s=2) as log:
            seen: list[bytes | None] = []
            with pytest.raises(NodeUnreachable, match=f"node {dead.node_id}"):
                async for record in log.read("t"):
                    seen.append(record.value)  # noqa: PERF401 (what was seen before the error counts)
            assert seen == numbers(missing.base_offset)
            after = [record.value async for record in log.read("t", start=40 - 1)]
            assert after == numbers(40)[39:], "what others hold is there"
            assert (await log.append("t", [b"40"])).base_offset == 40
        await dead.start()
        async with world.connect(dead.node_id) as log:
            assert await read_all(log, "t") == numbers(41)

    run_story(story, segment_records=5)


def test_w2_producers_that_race_the_seals_lose_nothing() -> None:
    """W2: the count was captured, then proposed; what was accepted in between was never read."""
    run_story(plants.producers_race_the_seals, segment_records=7)


def test_w2_a_count_captured_before_the_drain_and_the_check_can_see_it() -> None:
    # Two records at one offset; or the leader finds itself sealed below what it acknowledged, and stops.
    seen = (AssertionError, InvariantBroken)
    with plants.the_count_is_captured_before_the_drain(), pytest.raises(seen):
        run_story(plants.producers_race_the_seals, segment_records=7)


def test_w3_a_rollover_that_is_proposed_again_seals_nothing() -> None:
    """W3: each append past the threshold and the monitor proposed it again, sealing later segments."""
    run_story(plants.one_rollover_is_proposed_twice, segment_records=10)


def test_w3_a_seal_applied_without_comparing_and_the_check_can_see_it() -> None:
    seen = (AssertionError, InvariantBroken)  # a leader sealed behind its back notices, or the line is wrong
    with plants.a_seal_is_applied_without_comparing(), pytest.raises(seen):
        run_story(plants.one_rollover_is_proposed_twice, segment_records=10)


def test_w4_a_lease_that_went_while_an_append_waited_writes_nothing() -> None:
    """W4: the lease was checked before waiting for the mutex, and not again."""
    run_story(plants.the_lease_goes_while_an_append_waits)


def test_w4_a_lease_asked_for_before_the_wait_only_and_the_check_can_see_it() -> None:
    with plants.a_lease_is_asked_for_before_the_wait_only(), pytest.raises(AssertionError, match="A4"):
        run_story(plants.the_lease_goes_while_an_append_waits)


@pytest.mark.parametrize("seed", range(3))
def test_w4_a_leader_paused_before_it_knows_of_its_seal_acknowledges_nothing_past_the_end(seed: int) -> None:
    """W4: a stale lease task granted again what was revoked."""
    run_story(plants.a_leader_is_paused_at_its_seal, segment_records=10, seed=seed)


def test_w4_a_paused_leader_that_goes_on_admitting_and_the_check_can_see_it() -> None:
    with plants.a_leader_admits_while_it_seals(), pytest.raises(AssertionError, match="two records"):
        run_story(plants.a_leader_is_paused_at_its_seal, segment_records=10)


@pytest.mark.parametrize("power", [False, True])
def test_w5_a_seal_after_a_restart_counts_what_was_there_whoever_takes_the_appends(power: bool) -> None:
    """W5: entry counts lived in memory only; after a restart the next seal left the older entries out."""

    async def story(world: World) -> None:
        topic = await plants.make_topic(world)
        await fill(world, topic, 6)
        leader = world.leader_of(topic)
        leader.kill(power=power, loss=Loss.ALL if power else None)
        await leader.start()
        await world.settle()
        other = next(node for node in world.up if node is not leader)
        async with world.connect(other.node_id) as log:
            for number in range(6, 25):
                assert (await log.append(topic, [b"%d" % number])).base_offset == number
        sealed = [segment for segment in other.topic(topic).state.segments if segment.is_sealed]
        assert sealed[0].base_offset == 0 and sealed[0].end_offset is not None and sealed[0].end_offset >= 10
        await plants.check_line(world, topic, {number: b"%d" % number for number in range(25)})

    run_story(story, segment_records=10)


@pytest.mark.parametrize("position", [0, 40, 75, 300])
def test_w7_corruption_read_through_another_node_is_an_error_and_never_an_end(position: int) -> None:
    """W7: a damaged entry read as empty, and on a sealed segment the cursor jumped on to the next one."""

    async def story(world: World) -> None:
        await fill(world, "t", 40)
        chain = world.nodes[1].topic("t").state.segments
        damaged = chain[1]
        assert damaged.is_sealed
        holder = world.nodes[node_of(damaged.leader)]
        path = f"segments/{holder.topic('t').state.uid:016d}/{damaged.segment:08d}-{damaged.uid:016d}.log"
        holder.kill()
        holder.disk.rot(path, position, 3)
        await holder.start()
        await world.settle()
        for node in world.up:
            seen: list[bytes | None] = []
            async with world.connect(node.node_id) as log:
                with pytest.raises((CorruptSegment, CorruptFrame)) as caught:
                    async for record in log.read("t"):
                        seen.append(record.value)  # noqa: PERF401 (what was seen before the error counts)
                assert caught.value.hint
            assert damaged.end_offset is not None
            assert damaged.base_offset <= len(seen) < damaged.end_offset
            assert seen == numbers(len(seen))

    run_story(story, segment_records=10)


def test_w8_restarts_of_all_with_nothing_in_between_see_the_same_every_time() -> None:
    """W8: recovery used up the Raft log: the second restart saw only what had come after the first."""

    async def story(world: World) -> None:
        await fill(world, "t", 30)

        def described() -> list[tuple[int, int | None]]:
            chain = world.nodes[2].topic("t").state.segments
            return [(segment.base_offset, segment.end_offset) for segment in chain]

        await world.settle()
        before = described()
        for turn in range(4):
            for node in world.up:
                node.kill(power=turn % 2 == 0, loss=Loss.ALL if turn % 2 == 0 else None)
            for node in world.nodes.values():
                await node.start()
            await world.settle()
            assert described() == before
            async with world.connect(1 + turn % 3) as log:
                assert await read_all(log, "t") == numbers(30)

    run_story(story, segment_records=10)


def test_w9_a_node_that_was_away_for_more_than_the_log_keeps_is_sent_a_snapshot() -> None:
    """W9: snapshots were empty and could not be sent; after 5,000 entries a restart had no state."""

    async def story(world: World) -> None:
        away = next(node for node in world.up if not node.broker.metadata.raft.is_leader)
        away.kill()
        rest = [node.node_id for node in world.up]
        async with world.connect(*rest) as log:
            for number in range(60):
                await log.create_topic(f"t{number}")
        leader = world.metadata_leader()
        assert leader.broker.metadata.status().snapshot_index > 20
        await away.start()
        await world.settle()
        assert away.broker.metadata.status().snapshot_index > 20, "no log reaches back so far: it was sent"
        async with world.connect(away.node_id) as log:
            assert len(await log.list_topics()) == 60
            await log.append("t0", [b"x"])
        states = {node.broker.metadata.state.to_bytes() for node in world.up}
        assert len(states) == 1

    run_story(story, snapshot_entries=10)


@pytest.mark.parametrize("seed", range(4))
def test_w10_what_the_metadata_has_answered_survives_the_power_of_all_nodes(seed: int) -> None:
    """W10: votes and entries were acknowledged before the fsync."""

    async def story(world: World) -> None:
        answered: list[str] = []
        for turn in range(5):
            async with world.connect(*world.nodes) as log:
                for number in range(3):
                    await log.create_topic(f"t{turn}-{number}")
                    answered.append(f"default/t{turn}-{number}")
            for node in world.up:  # at once: nothing that was not synced is left anywhere
                node.kill(power=True, loss=Loss.ALL)
            for node in world.nodes.values():
                await node.start()
            await world.settle()
            assert sorted(world.nodes[1].broker.topics) == sorted(answered)

    run_story(story, seed=seed)
