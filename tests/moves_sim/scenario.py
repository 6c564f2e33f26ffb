"""One seed, one run, as in `tests.replicas_sim.scenario`, with topics that move and nodes that are drained.

    python -m tests.simulation.run moves --seed 17

replays seed 17. In the end every move is over, and a drain empties a node while it is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from tests.moves_sim.nemesis import MoveNemesis
from tests.moves_sim.watch import MoveWatch
from tests.replicas_sim.scenario import ReplicatedRun, ReplicatedSummary


@dataclass(kw_only=True)
class MoveSummary(ReplicatedSummary):
    """Of a run with moves."""

    ended: dict[str, int]

    def check_worth(self) -> None:
        super().check_worth()
        assert self.ended.get("done", 0) >= 1, self
        assert self.ended.get("drains to the end", 0) == 1, self

    @classmethod
    def rows(cls, runs: Sequence[Self]) -> dict[str, str]:
        stages = sorted({stage for run in runs for stage in run.ended})
        counts = {stage: sum(run.ended.get(stage, 0) for run in runs) for stage in stages}
        return super().rows(runs) | {f"moves {stage}": f"{count:,}" for stage, count in counts.items()}


class MoveRun(ReplicatedRun):
    world = "moves"
    about = (
        "As the world of replicas, with topics that are moved and nodes that are drained while all that goes "
        "wrong; the checkers of that are in `watch.py`, the hand in `nemesis.py`, of `tests/moves_sim`."
    )
    watch: MoveWatch
    nemesis: MoveNemesis

    def _make_watch(self) -> MoveWatch:
        return MoveWatch(self.history)

    def _make_nemesis(self) -> MoveNemesis:
        return MoveNemesis(
            self.loop,
            self.nodes,
            self.network,
            self.clients,
            self.history,
            self._make_node,
            watch=self.watch,
            may_wipe=self.may_wipe,
        )

    def _summary(self) -> MoveSummary:
        return MoveSummary(**vars(super()._summary()), ended=dict(self.nemesis.ended))
