"""Bugs put in on purpose: each watcher of the world of moves, and of its history, finds its own.

What only a rare schedule shows is found by that: an old topic's object that its successor adopts, in
`tests/history/test_planted_bugs.py`; a removal of a node with the last whole copy, in
`tests/moves/test_planted_bugs.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import pytest

from ister.broker.node.storage import Storage
from ister.broker.topic import sealing
from ister.errors import IsterError
from ister.history.names import ObjectName
from ister.history.sweeping import Sweeping
from ister.metadata import chain
from ister.metadata.commands import SetReplicas
from ister.metadata.moves import Moves, MoveState
from ister.metadata.state import TopicState
from tests.history.test_planted_bugs import (
    releasing_before_publishing,
    retention_of_what_is_not_exported,
    sweeping_without_abandoning,
)
from tests.moves_sim.nemesis import MoveNemesis
from tests.moves_sim.scenario import MoveRun
from tests.planting import shows
from tests.simulation.seeded import play_seed

pytestmark = pytest.mark.slow

Planted = contextlib.AbstractContextManager[Any]


@contextlib.contextmanager
def sweeping_all_without_abandoning() -> Iterator[None]:
    """E3: the sweeper believes its own view, which is wrong."""

    def is_orphan(self: Sweeping, name: ObjectName) -> bool:
        return name.cluster_id == self._cluster_id()

    with mock.patch.object(Sweeping, "_is_orphan", is_orphan), sweeping_without_abandoning():
        yield


@contextlib.contextmanager
def a_move_that_is_over_seals() -> Iterator[None]:
    """E7: the leader goes on with a move that was cancelled, and the metadata does not look at it either."""

    def wanted_move(storage: Storage, topic: TopicState) -> MoveState | None:
        rows = storage.metadata.state.moves.to_list()
        return next((row for row in reversed(rows) if row.topic_uid == topic.uid), None)

    with (
        mock.patch.object(sealing, "wanted_move", wanted_move),
        mock.patch.object(Moves, "why_no_seal", lambda moves, topic, move, next_leader: ""),
    ):
        yield


def a_topic_with_two_moves() -> Planted:
    """M1: nobody looks whether there is one already."""

    def none(moves: Moves, topic_uid: int) -> MoveState | None:
        return None

    return mock.patch.object(Moves, "of", none)


@contextlib.contextmanager
def all_leave_at_a_drain() -> Iterator[None]:
    """C3: a drained node gives its sealed segments to one that has nothing, and nobody refuses that."""

    async def drain_a_node(self: MoveNemesis) -> None:
        node, state = self._some_node(), self.health.view()
        for topic, segment in self.health.segments(state):
            others = [member for member in state.active_members if member not in segment.replicas]
            if node.is_up and segment.is_sealed and segment.replicas and others:
                command = SetReplicas(
                    topic.uid, segment.segment, segment.replicas, others, expected_whole=list(segment.whole)
                )
                with contextlib.suppress(IsterError):
                    await node.running.metadata.propose(command)

    with (
        mock.patch.object(MoveNemesis, "drain_a_node", drain_a_node),
        mock.patch.object(chain, "may_leave", lambda *_: True),
    ):
        yield


PLANTED: list[tuple[Callable[[], Planted], str, Iterable[int]]] = [
    (releasing_before_publishing, "E1", (1, 2, 5)),
    (sweeping_all_without_abandoning, "E3", (1, 2, 5)),
    (retention_of_what_is_not_exported, "E4", (1, 2, 11)),
    (a_move_that_is_over_seals, "E7", (4, 8, 9)),
    (a_topic_with_two_moves, "M1", (4, 8, 9)),
    (all_leave_at_a_drain, "C3", (3, 7, 11)),
]


@pytest.mark.parametrize(("plant", "rule", "seeds"), PLANTED, ids=[plant.__name__ for plant, _, _ in PLANTED])
def test_a_planted_bug_is_found_by_its_watcher(
    plant: Callable[[], Planted], rule: str, seeds: Iterable[int]
) -> None:
    """Whatever else it leads to: the watcher has seen it."""
    found: list[str] = []

    def play(seed: int) -> None:
        try:
            play_seed(MoveRun, seed)
        except Exception as error:
            found.append("\n".join([str(error), *getattr(error, "__notes__", ())]))
            raise

    for seed in seeds:
        with plant():
            if shows(lambda seed=seed: play(seed)) and f"{rule}: " in found[-1]:  # type: ignore[misc]
                return
    raise AssertionError(f"no seed has found it, but {found}")
