"""What a description, the health and the metrics say of replicas, in clusters of real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import ister
from ister.broker.node import replication_metrics
from ister.protocol.messages import Problem, SegmentDescription
from ister.replication.places import Place
from ister.testing.cluster import World, WorldNode, run_story
from tests.replication.test_follower_reads import figure, followers, stop_sending
from tests.replication.test_three_replicas import agree, numbers


async def problems(log: ister.Log) -> dict[str, Problem]:
    return {problem.code: problem for problem in (await log.cluster()).problems}


async def until(log: ister.Log, is_so: Callable[[dict[str, Problem]], bool]) -> dict[str, Problem]:
    """Look at the cluster's problems until they are as awaited."""
    found: dict[str, Problem] = {}
    try:
        async with asyncio.timeout(120):
            while not is_so(found := await problems(log)):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"there are still: {found}") from None
    return found


async def segments(log: ister.Log) -> list[SegmentDescription]:
    return (await log.describe_topic("t")).segments


def place_of(node: WorldNode, segment: int) -> Place:
    topic = node.topic("t").state
    place = node.broker.replication.copies.place(topic.uid, topic.segments[segment].uid)
    assert place is not None
    return place


def test_a_cluster_whose_copies_are_whole_is_healthy() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            for number in range(10):
                await log.append("t", numbers(1, number))
            await until(log, lambda found: not found)
            for segment in await segments(log):
                assert sorted(segment.replicas) == [1, 2, 3]
                assert segment.state == ("sealed" if segment.sealed else "open")
            assert [segment.copies for segment in (await segments(log))[:-1] if segment.copies] == []

    run_story(story, replicas=3, segment_records=3)


def test_copies_that_are_only_being_looked_at_after_a_seal_are_no_problem() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await log.append("t", numbers(1))
            await until(log, lambda found: not found)
            for number in range(1, 40):
                await log.append("t", numbers(1, number))
                assert await problems(log) == {}

    run_story(story, replicas=3, segment_records=1)


def test_a_node_that_is_down_makes_segments_under_replicated_until_it_is_back() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            await log.append("t", numbers(3))
            await agree(world, "t", 3)
            down = followers(world, "t")[0]
            down.kill()
            found = await until(log, lambda found: "under-replicated" in found and "node-down" in found)
            said = found["under-replicated"]
            assert said.what == (
                f"1 segment of 1 topic (default/t) has fewer copies than wanted, by 1 copy: "
                f"node {down.node_id} is down and has 1 of them"
            )
            assert said.action.startswith(f"start node {down.node_id} again with its own --data-dir; ")
            assert said.action.endswith("no other node can take its place")
            await log.append("t", numbers(2, 3))
            (segment,) = await segments(log)
            assert segment.behind == [down.node_id]
            assert [(c.node, c.state, c.lacks, c.why) for c in segment.copies] == [
                (down.node_id, "behind", 2, "not connected")
            ]
            await down.start()
            await until(log, lambda found: not found)

    run_story(story, replicas=3, replica_lost_ms=3_600_000)


def test_where_there_is_another_node_the_health_says_when_it_takes_over() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3, 4) as log:
            await log.append("t", numbers(3))
            followers(world, "t")[0].kill()
            found = await until(log, lambda found: "under-replicated" in found)
            assert "after 600 s without it its copies are made anew" in found["under-replicated"].action

    run_story(story, nodes=4, replicas=3, replica_lost_ms=3_600_000, repair_after_ms=600_000)


def test_a_follower_that_lacks_records_is_shown_with_how_many() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await log.append("t", numbers(3))
            await agree(world, "t", 3)
            leader, behind = world.leader_of("t"), followers(world, "t")[0]
            stop_sending(leader, behind)
            await log.append("t", numbers(4, 3))
            (segment,) = await segments(log)
            assert [(c.node, c.state, c.lacks) for c in segment.copies] == [(behind.node_id, "behind", 4)]
            found = await until(log, lambda found: "under-replicated" in found)
            assert figure(leader, "follower_lag_records") == 4
            said = f"node {behind.node_id} does not keep up with 1 that are open (it lacks 4 records)"
            assert said in found["under-replicated"].what

    run_story(story, replicas=3)


def test_a_damaged_copy_is_named_and_so_is_its_node() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            for number in range(4):
                await log.append("t", numbers(1, number))
            await until(log, lambda found: not found)
            node = followers(world, "t")[0]
            completions = node.broker.replication.completions

            async def not_yet(*args: object) -> bool:
                return False

            mend, completions._try = completions._try, not_yet  # type: ignore[assignment,method-assign]
            completions.suspect(place_of(node, 0), "a bit has flipped")
            found = await until(log, lambda found: "damaged-copies" in found)
            copy = (await segments(log))[0].copies[0]
            assert (copy.node, copy.state) == (node.node_id, "damaged")
            assert (await segments(log))[0].behind == [node.node_id]
            assert f"node {node.node_id} found its copies of default/t:1" in found["damaged-copies"].what
            assert f"node {node.node_id} checks or completes 1" in found["under-replicated"].what
            assert figure(node, "incomplete_copies") == 1
            await asyncio.sleep(replication_metrics.LOOK_SECONDS + 1)
            assert figure(node, "under_replicated_segments") == 1
            completions._try = mend  # type: ignore[method-assign]
            await until(log, lambda found: not found)
            assert (await segments(log))[0].copies == []

    run_story(story, replicas=3, segment_records=2)


def test_how_the_copies_of_a_node_are_is_known_though_it_does_not_say() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            for number in range(4):
                await log.append("t", numbers(1, number))
            await until(log, lambda found: not found)
            node = followers(world, "t")[0]

            async def silent(kind: int, header: bytes) -> bytes:
                await asyncio.sleep(100)
                raise AssertionError

            node.broker.metadata.serve_replicas = silent
            async with world.connect(world.leader_of("t").node_id) as near:
                copies = (await segments(near))[0].copies
                assert copies == [] and (await segments(near))[0].behind == []
                found = await problems(near)
                assert set(found) == {"copies-unknown"}
                assert found["copies-unknown"].what.startswith(f"node {node.node_id} did not say in time")

    run_story(story, replicas=3, segment_records=2)


def test_a_copy_on_a_disk_that_left_is_shown_as_gone() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            for number in range(4):
                await log.append("t", numbers(1, number))
            await until(log, lambda found: not found)
            node = next(one for one in followers(world, "t") if one.node_id != 1)
            node.kill()
            node.wipe()
            for other in world.up:
                never_repair(other)
            await node.start(join="node-1:6001")
            await world.settle()
            found = await until(log, lambda found: set(found) == {"under-replicated"})
            assert f"were on a disk of node {node.node_id} that left" in found["under-replicated"].what
            assert "made anew by themselves" in found["under-replicated"].action
            copy = (await segments(log))[0].copies[0]
            assert (copy.node, copy.state) == (node.node_id, "gone")

    run_story(story, replicas=3, segment_records=2)


def never_repair(node: WorldNode) -> None:
    """What is shown must not depend on how quick the repair is."""
    propose = node.broker.metadata.propose

    async def without_repair(command: object, *args: object) -> object:
        if type(command).__name__ == "SetReplicas":
            raise ister.errors.RequestTimeout("no repair in this story")
        return await propose(command, *args)  # type: ignore[arg-type]

    node.broker.metadata.propose = without_repair  # type: ignore[assignment,method-assign]


def test_a_recovery_that_finds_too_few_replicas_says_what_it_waits_for() -> None:
    """Five nodes, so that the metadata has its majority when two of a segment's three replicas are down."""

    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
            leader, other, survivor = world.leader_of("t"), *followers(world, "t")
            leader.kill()
            other.kill()
        async with world.connect(*(node.node_id for node in world.up)) as log:
            found = await until(
                log, lambda found: "topics-wait" in found and "under way since" in found["topics-wait"].what
            )
            said = found["topics-wait"]
            assert "default/t cannot be written: 1 of 3 replicas answer, 2 have to" in said.what
            assert f"a recovery of default/t:1 by node {survivor.node_id} is under way since" in said.what
            assert f"node {leader.node_id} has not answered" in said.what
            assert "`ister topic recover default/t`" in said.action
            described = await log.describe_topic("t")
            assert described.segments[0].state == "recovering"
            assert any(f"node {survivor.node_id} recovers default/t:1" in note for note in described.notes)
            await leader.start()
            await until(log, lambda found: "topics-wait" not in found)
            await log.append("t", numbers(1, 3))

    run_story(story, nodes=5, replicas=3)


def test_a_leader_that_was_lost_is_named_until_another_has_taken_over() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
            leader = world.leader_of("t")
            others = [node for node in world.up if node is not leader]
            leader.kill()
            async with world.connect(*(node.node_id for node in others)) as near:
                found = await until(near, lambda found: "failover" in found)
                assert f"node {leader.node_id}, which leads default/t, is down" in found["failover"].what
                assert "begins 30 s after" in found["failover"].action
                found = await until(near, lambda found: not {"failover", "recovering"} & found.keys())
                assert "topics-wait" not in found
        figures = [node.broker.metrics.values() for node in others]
        assert sum(one["recoveries_ended_total"] for one in figures) >= 1
        assert sum(one["fences_total"] for one in figures) >= 2

    run_story(story, replicas=3, failover_after_ms=30_000)


def test_in_a_minority_nobody_is_said_to_take_over_by_itself() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(3))
        replicas = world.leader_of("t").topic("t").state.open_segment.replicas
        (left,) = [node for node in world.up if node.member == replicas[1]]
        for node in world.up:
            if node is not left:
                node.kill()
        async with world.connect(left.node_id) as log:
            found = await until(log, lambda found: {"failover", "no-metadata-leader"} <= found.keys())
            assert "once the metadata has a leader" in found["failover"].what
            assert "start the voters that are down" in found["failover"].action

    run_story(story, replicas=2)


def test_what_is_replicated_is_counted_on_both_sides() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            for number in range(10):
                await log.append("t", numbers(5, 5 * number))
        await agree(world, "t", 50)
        leader = world.leader_of("t")
        assert figure(leader, "replicated_records_out_total") == 100
        assert [figure(node, "replicated_records_in_total") for node in followers(world, "t")] == [50, 50]
        taken = sum(figure(node, "replicated_bytes_in_total") for node in followers(world, "t"))
        assert figure(leader, "replicated_bytes_out_total") == taken > 0
        assert figure(leader, "quorum_wait_duration_seconds_count") > 0
        assert figure(leader, "under_replicated_segments") == 0

    run_story(story, replicas=3)


def test_a_leader_without_enough_followers_counts_that_it_gave_up() -> None:
    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", numbers(1))
            await agree(world, "t", 1)
            leader = world.leader_of("t")
            for follower in followers(world, "t"):
                stop_sending(leader, follower)
            await log.append("t", numbers(1, 1))
        assert figure(leader, "quorum_timeouts_total") == 1

    run_story(story, replicas=3)
