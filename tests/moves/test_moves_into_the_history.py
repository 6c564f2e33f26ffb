"""Where there is a store, a move ends when the old node has let go: exported, verified, published, released.

The topic is led by the target long before, and writers wait for none of this. Whoever dies at any step: it
goes on, nothing is lost, and nothing goes that is not in the history.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

import pytest

import ister
from ister.failpoints import Step
from ister.metadata.commands import PublishObject, ReleaseCopies, Result
from ister.metadata.moves import MoveStage
from ister.testing.cluster import World, WorldNode, read_all, run_story
from tests.losses.stories import aside, give_up, others
from tests.losses.test_several_replicas import left_behind
from tests.moves.moving_helpers import a_node_other_than, ended, moved
from tests.replication.repair_helpers import durable, numbers, sealed, until

FEW = {"segment_records": 5}


async def written_at_one_node(world: World, count: int) -> WorldNode:
    """Who has led all of it, and leads it still; one record more than fills segments is in the open one."""
    async with world.connect() as log:
        await log.append("t", [b"0"])
        old = world.leader_of("t")
        await moved(log, "t", old.node_id)  # it is led there: it stays from now on
        for number in range(1, count):
            await log.append("t", [b"%d" % number])
        async with asyncio.timeout(10):
            while world.leader_of("t").topic("t").state.open_segment.base_offset < count - 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    return old


def files_on(world: World, node_id: int) -> int:
    """Of how many sealed segments a node has files."""
    return sum(bool(durable(world, world.nodes[node_id], one)) for one in sealed(world) if not one.is_empty)


def store_is_down(world: World) -> Callable[[], None]:
    assert world.store is not None
    rules = [world.store.faults.add(what, error=errno.EIO) for what in ("put", "piece")]

    def again() -> None:
        for rule in rules:
            assert world.store is not None
            world.store.faults.remove(rule)

    return again


async def staged(log: ister.Log, move: int, stage: str) -> None:
    async with asyncio.timeout(200):
        while (await log.moves(move=move))[0].stage != stage:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("replicas", [1, 3])
def test_the_old_node_exports_then_publishes_then_drops_its_copies_and_the_move_says_so(
    replicas: int,
) -> None:
    async def story(world: World) -> None:
        told: list[str] = []

        def watched(command: object, outcome: object) -> None:
            assert outcome.result is not Result.REFUSED  # type: ignore[attr-defined]
            if isinstance(command, PublishObject | ReleaseCopies):
                told.append(type(command).__name__)
            row = list(old.broker.metadata.state.moves.rows.values())[-1]
            stage = MoveStage(row.stage).name.lower()
            if stage not in told:
                told.append(stage)

        again = store_is_down(world)
        old, target = await written_at_one_node(world, 13), a_node_other_than(world, "t")
        async with world.connect() as log:
            begun = await log.move_topic("t", target)
            old.broker.metadata.watch(watched)
            await staged(log, begun.move, "sealed")
            await log.append("t", [b"13"])
            assert world.leader_of("t").node_id == target
            (found,) = await log.moves(move=begun.move)
            assert "are not in the history yet" in found.detail
            again()
            found = await ended(log, begun.move)
            assert (found.stage, found.end_offset) == ("done", 13)
            assert files_on(world, old.node_id) == 0
            assert await read_all(log, "t") == numbers(14)
            explained = await log.explain("t", 3)
            assert (explained.tier, explained.hot_start_offset) == ("history", 13)
        publishes = [place for place, what in enumerate(told) if what == "PublishObject"]
        releases = [place for place, what in enumerate(told) if what == "ReleaseCopies"]
        order = [told.index(stage) for stage in ("sealed", "exported", "released", "done")]
        assert order == sorted(order), told
        assert max(publishes) < min(releases), "E1: nothing is dropped before all of it is published"
        assert len(publishes) == len(releases) >= 2

    run_story(story, has_store=True, replicas=replicas, **FEW)


def test_in_local_mode_nothing_is_exported_and_what_was_written_stays() -> None:
    async def story(world: World) -> None:
        old = await written_at_one_node(world, 13)
        async with world.connect() as log:
            await moved(log, "t", a_node_other_than(world, "t"))
        assert {(tuple(one.replicas), one.history) for one in sealed(world)} == {((old.member,), None)}
        assert files_on(world, old.node_id) >= 2

    run_story(story, **FEW)


def test_while_the_store_is_down_the_topic_is_moved_on_and_the_move_before_gives_way() -> None:
    async def story(world: World) -> None:
        again = store_is_down(world)
        await written_at_one_node(world, 8)
        async with world.connect() as log:
            first = await log.move_topic("t", a_node_other_than(world, "t"))
            await staged(log, first.move, "sealed")
            assert (await log.move_topic("t", first.target)).move == first.move, "asked again"
            while not (await log.moves(move=first.move))[0].detail:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            second = await log.move_topic("t", a_node_other_than(world, "t"))
            await staged(log, second.move, "sealed")
            (before,) = await log.moves(move=first.move)
            assert (before.stage, str(second.move) in before.detail) == ("cancelled", True)
            assert world.leader_of("t").node_id == second.target
            again()
            assert (await ended(log, second.move)).stage == "done"
            assert await read_all(log, "t") == numbers(8)

    run_story(story, has_store=True, **FEW)


def test_cancelled_after_the_seal_nothing_is_dropped_and_the_topic_stays_where_it_is() -> None:
    async def story(world: World) -> None:
        again = store_is_down(world)
        old = (await written_at_one_node(world, 8)).node_id
        async with world.connect() as log:
            begun = await log.move_topic("t", a_node_other_than(world, "t"))
            await staged(log, begun.move, "sealed")
            found = await log.cancel_move(begun.move)
            assert found.stage == "cancelled"
            again()
            await until(lambda: all(one.history is not None for one in sealed(world) if not one.is_empty))
            await asyncio.sleep(60)
            assert world.leader_of("t").node_id == begun.target
            assert files_on(world, old) > 0
            assert await read_all(log, "t") == numbers(8)

    run_story(story, has_store=True, **FEW)


def test_a_tail_that_was_set_aside_on_the_old_node_keeps_no_move_from_its_end() -> None:
    """What an operator has given up and the node has brought back stays there for him: no records of the
    topic are in it (F6)."""

    async def story(world: World) -> None:
        found = await left_behind(world)
        async with others(world, *found.ahead) as log:
            await give_up(log)
        world.network.heal()
        for node in found.ahead:
            await node.start()
        await world.settle()
        back = found.ahead[0]
        kept = await aside(back)
        assert len(kept) == 1
        async with world.connect() as log:
            await moved(log, "t", back.node_id)
            begun = await log.move_topic("t", a_node_other_than(world, "t"))
            assert (begun.source, (await ended(log, begun.move)).stage) == (back.node_id, "done")
        assert files_on(world, back.node_id) == 0
        assert await aside(back) == kept

    run_story(story, has_store=True, nodes=5, replicas=3, replica_lost_ms=60_000)


VICTIMS: dict[str, Callable[[World, WorldNode, WorldNode, WorldNode], WorldNode]] = {
    "who is at it": lambda world, own, old, new: own,
    "the old leader": lambda world, own, old, new: old,
    "the target": lambda world, own, old, new: new,
    "the metadata leader": lambda world, own, old, new: world.metadata_leader(),
}
STEPS = (
    Step.EXPORTING,
    Step.UPLOADED,
    Step.PUBLISHED,
    Step.RELEASING,
    Step.RELEASED,
    Step.EMPTIED,
)


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("step", STEPS)
def test_whoever_dies_at_any_step_the_move_ends_and_the_line_is_whole(
    step: Step, victim: str, replicas: int
) -> None:
    async def story(world: World) -> None:
        again = store_is_down(world)
        old = await written_at_one_node(world, 13)
        new = world.nodes[a_node_other_than(world, "t")]
        killed: list[WorldNode] = []

        def fails_at(own: WorldNode) -> Callable[[Step], None]:
            def reach(reached: Step) -> None:
                if reached is step and not killed:
                    dies = VICTIMS[victim](world, own, old, new)
                    killed.append(dies)
                    world.loop.call_soon(dies.kill)

            return reach

        async with world.connect() as asking:
            begun = await asking.move_topic("t", new.node_id)
            await staged(asking, begun.move, "sealed")
            for node in world.nodes.values():
                node.broker.failpoint = fails_at(node)
            again()
            async with asyncio.timeout(200):
                while not killed:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await asyncio.sleep(5)
            await killed[0].start()
            found = await ended(asking, begun.move)
            assert (found.stage, found.end_offset) == ("done", 13), found
            await world.settle()
            assert world.store is not None
            for segment in sealed(world):
                assert segment.replicas or (segment.history and world.store.peek(segment.history.name))
            if "does not answer" not in found.detail:
                assert files_on(world, old.node_id) == 0
            await asking.append("t", [b"13"])
            assert await read_all(asking, "t") == numbers(14)

    run_story(story, has_store=True, replicas=replicas, **FEW)
