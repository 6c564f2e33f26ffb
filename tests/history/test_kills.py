"""Kill -9 and power cuts at every step of an export and a release: it goes on where it stopped, or anew."""

from __future__ import annotations

import re

import pytest

from ister.history.names import parse_name
from ister.metadata.commands import Command, Outcome, PublishObject, ReleaseCopies
from ister.testing.cluster import World, read_all, run_story
from tests.history.test_export import check_objects
from tests.history.test_hybrid_reading import OLD, all_released, files_are_gone
from tests.replication.repair_helpers import fill, numbers, until

STEPS = re.compile(r"store (piece|put|delete) |disk remove segments/.*\.log")
"""What the world does for an export and a release, as its trace has it."""


class Killer:
    """Stops the only node at the step that has this number; the next life goes through."""

    def __init__(self, world: World, at: int, *, power: bool) -> None:
        self.seen: list[str] = []
        self.killed_at = ""
        self._world = world
        self._at = at
        self._power = power
        note = world.loop.trace.note

        def noted(what: str) -> None:
            note(what)
            if STEPS.search(what):
                self._step(what)

        world.loop.trace.note = noted  # type: ignore[method-assign]
        world.nodes[1].broker.metadata.watch(self._applied)

    def _applied(self, command: Command | None, outcome: Outcome) -> None:
        if isinstance(command, PublishObject | ReleaseCopies):
            self._step(f"applied {type(command).__name__}")

    def _step(self, what: str) -> None:
        if self.killed_at:
            return
        self.seen.append(what)
        if len(self.seen) > self._at:
            self.killed_at = what
            self._world.loop.call_soon(self._kill)

    def _kill(self) -> None:
        self._world.nodes[1].kill(power=self._power)


def play(at: int, *, power: bool) -> str:
    """What the node was killed at; empty if it was all done before that step."""

    async def story(world: World) -> str:
        await fill(world, 9)
        killer = Killer(world, at, power=power)
        await until(lambda: bool(killer.killed_at) or (all_released(world, 2) and files_are_gone(world)))
        if killer.killed_at:
            await until(lambda: not world.nodes[1].is_up)
            await world.nodes[1].start(bootstrap_cluster=False)
            await world.settle()
        await until(lambda: all_released(world, 2) and files_are_gone(world))
        check_objects(world)
        assert world.store is not None
        assert len([one for one in world.store.stored() if parse_name(one) is not None]) == 2
        assert not world.store.unfinished()
        async with world.connect() as log:
            assert await read_all(log, "t") == numbers(9)
        return killer.killed_at

    return run_story(story, nodes=1, has_store=True, **OLD)


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_whatever_step_the_node_is_stopped_at_all_is_exported_released_and_read(power: bool) -> None:
    killed_at: list[str] = []
    for at in range(100):
        if not (step := play(at, power=power)):
            break
        killed_at.append(step)
    else:
        raise AssertionError("it never gets done")
    kinds = {step.split()[1] for step in killed_at}
    assert kinds >= {"put", "piece", "delete", "PublishObject", "ReleaseCopies", "remove"}, kinds
