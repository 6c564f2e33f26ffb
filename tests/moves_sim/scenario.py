"""One seed, one run, as in `tests.replicas_sim.scenario`, with topics that move and nodes that are drained.

In three seeds of five there is a history in a store too.

    python -m tests.simulation.run moves --seed 17

replays seed 17. In the end every move is over, a drain empties a node while it is written, and the history
has what is sealed, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from msgspec.structs import replace

from ister.config import BrokerConfig
from ister.testing import MemoryStore
from ister.testing.checkers import Violation
from tests.moves_sim.nemesis import MoveNemesis
from tests.moves_sim.stored import StoreWatch
from tests.moves_sim.watch import MoveWatch
from tests.replicas_sim.scenario import ReplicatedRun, ReplicatedSummary
from tests.simulation.seeded import FINISH_SECONDS


@dataclass(kw_only=True)
class MoveSummary(ReplicatedSummary):
    """Of a run with moves."""

    ended: dict[str, int]
    has_store: bool
    published: int
    released: int
    trimmed: int
    store_faults: int

    def check_worth(self) -> None:
        super().check_worth()
        assert self.ended.get("done", 0) >= 1, self
        assert self.ended.get("drains to the end", 0) == 1, self
        assert not self.has_store or self.released > 0, self

    @classmethod
    def rows(cls, runs: Sequence[Self]) -> dict[str, str]:
        stages = sorted({stage for run in runs for stage in run.ended})
        counts = {stage: sum(run.ended.get(stage, 0) for run in runs) for stage in stages}
        rows = super().rows(runs) | {f"moves {stage}": f"{count:,}" for stage, count in counts.items()}
        return rows | {
            "with a history in a store": f"{sum(run.has_store for run in runs):,}",
            "segments published": f"{sum(run.published for run in runs):,}",
            "of these released by all nodes": f"{sum(run.released for run in runs):,}",
            "of these trimmed": f"{sum(run.trimmed for run in runs):,}",
            "requests that the store failed": f"{sum(run.store_faults for run in runs):,}",
        }


class MoveRun(ReplicatedRun):
    world = "moves"
    about = (
        "As the world of replicas, with topics that are moved and nodes that are drained while all that goes "
        "wrong, and in three seeds of five a history in a store that fails too; the checkers of that are in "
        "`watch.py` and `stored.py`, the hands in `nemesis.py`, of `tests/moves_sim`."
    )
    watch: MoveWatch
    nemesis: MoveNemesis

    @property
    def has_store(self) -> bool:
        """Clusters of 3 and of 5 nodes, with disks that are lost and without, have one and have none."""
        return self.loop.seed % 5 < 3

    def _make_watch(self) -> MoveWatch:
        return MoveWatch(self.history)

    def _make_store(self) -> MemoryStore | None:
        if not self.has_store:
            return None
        store = MemoryStore(self.loop.fork("store"), trace=self.loop.trace)
        self.watch.stored = StoreWatch(self.history, store, self.watch.copies)
        return store

    def _make_config(self) -> BrokerConfig:
        config = super()._make_config()
        if not self.has_store:
            return config
        return replace(
            config,
            local_retention_ms=self.dice.choice((2000, 10_000)),
            export_after_ms=self.dice.choice((5000, 600_000)),
        )

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
            store=self.store,
        )

    async def _look_at_disks(self) -> None:
        await super()._look_at_disks()
        if self.watch.stored is None:
            return
        deadline = self.loop.time() + FINISH_SECONDS
        while missing := self.watch.stored.what_is_missing(self.nemesis.health.view()):
            if self.loop.time() > deadline:
                raise Violation("invariant 5", f"{FINISH_SECONDS:g} s after healing, {missing}")
            await self.nemesis.sweep_all()
            await asyncio.sleep(0.5)

    def _summary(self) -> MoveSummary:
        stored = self.watch.stored
        return MoveSummary(
            **vars(super()._summary()),
            ended=dict(self.nemesis.ended),
            has_store=stored is not None,
            published=stored.published if stored is not None else 0,
            released=stored.released if stored is not None else 0,
            trimmed=stored.trimmed if stored is not None else 0,
            store_faults=self.nemesis.store_faults,
        )
