"""What every world that is played from a seed shares, whatever it is made of.

A run has a time of faults, then the world is healed, and everybody must come to an end within a bound
(checker 14). What fails says which seed it was, and how to play it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

from ister.testing import VirtualLoop, simulate
from ister.testing.checkers import Violation, check_history
from ister.testing.history import History
from tests.simulation.load import Clients

FAULT_SECONDS = 62.0
FINISH_SECONDS = 200.0
LEAST_OPERATIONS = 500
LEAST_FAULTS = 5

Worker = asyncio.Task[None]


@dataclass(kw_only=True)
class Summary:
    """What a run was worth, and the hash by which it is compared with another of the same seed."""

    seed: int
    digest: str
    seconds: float
    operations: int
    records: int
    faults: int
    deaths: int
    kinds: dict[str, int]

    def check_worth(self) -> None:
        """A seed that hardly did anything proves nothing."""
        assert self.seconds >= min(60, FAULT_SECONDS), self
        assert self.operations >= LEAST_OPERATIONS, self
        assert self.faults >= LEAST_FAULTS, self

    @classmethod
    def rows(cls, runs: Sequence[Self]) -> dict[str, str]:
        """Of the page of results: what these runs amount to."""
        return {
            "virtual time": f"{sum(run.seconds for run in runs) / 3600:.1f} h",
            "operations": f"{sum(run.operations for run in runs):,}",
            "records sent": f"{sum(run.records for run in runs):,}",
            "deaths of nodes": f"{sum(run.deaths for run in runs):,}",
        }


S = TypeVar("S", bound=Summary)


class SeededRun(ABC, Generic[S]):
    """One run. What it is made of, and how it is judged, is another class's."""

    world: ClassVar[str]
    """Its name in `tests.simulation.worlds`."""
    about: ClassVar[str]
    """For the page of results: what there is in a run, and where its checkers and faults are."""
    limit_seconds: ClassVar[float] = 2000
    """Of virtual time: a run that is not done then never is."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.history = History()
        self.clients: Clients

    @abstractmethod
    async def play(self) -> S: ...

    def _is_enough(self) -> bool:
        """Whether the run is worth the name by now."""
        return self.history.operation_count >= LEAST_OPERATIONS

    def _raise_violations(self) -> None:
        if self.history.violations:
            check_history(self.history)

    async def _enough_operations(self, workers: Sequence[Worker]) -> None:
        """A run that was down for most of its time goes on until it is worth the name."""
        deadline = self.loop.time() + FINISH_SECONDS
        while not self._is_enough():
            if self.loop.time() > deadline:
                raise Violation(
                    "liveness", f"only {self.history.operation_count} operations; {_open(workers)}"
                )
            await asyncio.sleep(0.5)

    async def _finish(self, workers: Sequence[Worker]) -> None:
        """Checker 14: after healing every client comes to its end."""
        self.clients.done.set()
        readers = [task for task in workers if task.get_name().startswith("reader")]
        writers = [task for task in workers if task not in readers]
        _, late = await asyncio.wait(writers, timeout=FINISH_SECONDS)
        self._raise_violations()
        if late:
            raise Violation("liveness", f"not done {FINISH_SECONDS:g} s after healing: {_open(workers)}")
        await asyncio.sleep(1)
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)
        for task in workers:
            if not task.cancelled():
                task.result()

    def _summary_fields(self, faults: dict[str, int], deaths: int) -> dict[str, Any]:
        return {
            "seed": self.loop.seed,
            "digest": f"{self.loop.trace.digest()}/{self.history.digest()}",
            "seconds": self.loop.time(),
            "operations": self.history.operation_count,
            "records": sum(len(send.values) for send in self.history.sends),
            "faults": sum(faults.values()),
            "deaths": deaths,
            "kinds": faults,
        }


def _open(workers: Sequence[Worker]) -> str:
    return ", ".join(task.get_name() for task in workers if not task.done())


@contextlib.contextmanager
def quiet_logs() -> Iterator[None]:
    """A run is full of errors that are meant; a failing one shows its trace instead."""
    logger = logging.getLogger("ister")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def play_seed(kind: type[SeededRun[S]], seed: int) -> S:
    """One run; raises `Violation`, or whatever else is wrong, with the seed and the way to replay it."""
    held: list[SeededRun[S]] = []

    async def main(loop: VirtualLoop) -> S:
        run = kind(loop)
        held.append(run)
        return await run.play()

    try:
        with quiet_logs():
            return simulate(main, seed, limit_seconds=kind.limit_seconds, limit_steps=5_000_000)
    except BaseException as error:
        if held and held[0].history.violations and not isinstance(error, Violation):
            error.add_note(f"a watcher had seen: {held[0].history.violations[0]}")
        error.add_note(f"replay: python -m tests.simulation.run {kind.world} --seed {seed}")
        raise
    finally:
        held.clear()
        gc.collect()  # a run's disks are megabytes in cycles, and the next run holds the collector still
