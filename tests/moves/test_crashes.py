"""A node dies at a boundary of a move: the move ends or rolls back, nothing is lost, nothing is there twice.

Each case lets the old leader or the target reach a named step and kills a node there, before any other task
runs. The node comes back later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ister.failpoints import Step
from ister.testing.cluster import World, WorldNode, read_all, run_story
from tests.moves.moving_helpers import ended, open_segments, written

VICTIMS: dict[str, Callable[[World, WorldNode, WorldNode], WorldNode]] = {
    "the old leader": lambda world, old, new: old,
    "the target": lambda world, old, new: new,
    "the metadata leader": lambda world, old, new: world.metadata_leader(),
}
OWN: dict[Step, str] = {
    Step.BEGUN: "old",
    Step.DRAINED: "old",
    Step.SEALED: "old",
    Step.ACCEPTED: "new",
    Step.LOGGED: "new",
    Step.OPENED: "new",
}
"""Who reaches each step; those of an export are in `test_moves_into_the_history.py`."""


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("step", OWN)
def test_a_move_ends_whoever_dies_at_any_step(step: Step, victim: str, replicas: int) -> None:
    async def story(world: World) -> None:
        async with world.connect() as log, world.connect() as asking:
            await log.append("t", [b"0"])
            old = world.leader_of("t")
            new = next(node for node in world.nodes.values() if node is not old)
            killed: list[WorldNode] = []

            def reach(reached: Step) -> None:
                if reached is step and not killed:
                    dies = VICTIMS[victim](world, old, new)
                    killed.append(dies)
                    # Behind this call, not within it: else it would run on as a process that is dead.
                    world.loop.call_soon(dies.kill)

            (old if OWN[step] == "old" else new).broker.failpoint = reach
            async with written(log, "t") as offsets:
                offsets.append(0)
                begun = await asking.move_topic("t", new.node_id)
                async with asyncio.timeout(60):
                    while not killed:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                await asyncio.sleep(5)
                await killed[0].start()
                found = await ended(asking, begun.move)
                assert found.stage in ("done", "failed"), found
                before = len(offsets)
                async with asyncio.timeout(60):
                    while len(offsets) < before + 10:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
            await world.settle()
            assert offsets == sorted(set(offsets)), "no offset is given twice"
            values = await read_all(asking, "t")
            by_offset = {offset: b"%d" % number for number, offset in enumerate(offsets)}
            assert all(values[offset] == value for offset, value in by_offset.items()), "all of it is there"
            kept = [value for value in values if value is not None]
            assert len(kept) == len(set(kept)), "nothing is there twice"
            assert open_segments(world, "t") == 1
            if found.stage == "done" and killed[0] is not new:
                assert world.leader_of("t").node_id == new.node_id

    run_story(story, replicas=replicas)
