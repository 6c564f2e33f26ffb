"""Whether a bug that was put in on purpose shows: the bug, and not a slip in putting it in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from tests.simulation.seeded import SeededRun, play_seed

SLIPS = (TypeError, AttributeError, NameError)


def shows(run: Callable[[], object]) -> bool:
    """Whether it fails. What was planted in code that has changed since fails as well, and proves nothing."""
    try:
        run()
    except Exception as error:
        if slips := [found for found in _all_of(error) if isinstance(found, SLIPS)]:
            raise AssertionError("the planted bug does not fit the code that it is planted in") from slips[0]
        return True
    return False


def is_found(
    plant: Callable[[], AbstractContextManager[Any]], world: type[SeededRun[Any]], seeds: int
) -> bool:
    """Whether one of the first `seeds` of a world shows it."""
    for seed in range(seeds):
        with plant():
            if shows(lambda seed=seed: play_seed(world, seed)):  # type: ignore[misc]
                return True
    return False


def _all_of(error: BaseException | None) -> Iterator[BaseException]:
    """It, what it came from, and what tasks had failed with beside it."""
    if error is not None:
        yield error
        for other in (error.__cause__, error.__context__, *getattr(error, "errors", ())):
            yield from _all_of(other)
