"""A stated sample of `make sim`: of each world seeds 0 to 11, and one in two processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.simulation.seeded import play_seed
from tests.simulation.worlds import WORLDS

SEEDS = 12


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("world", WORLDS)
def test_a_seed_is_clean_and_worth_the_name(world: str, seed: int) -> None:
    play_seed(WORLDS[world], seed).check_worth()


@pytest.mark.parametrize("world", ["broker", "replicas"])
def test_one_seed_is_clean_in_the_quick_tests_too(world: str) -> None:
    play_seed(WORLDS[world], 1_000_000).check_worth()


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_the_same_seed_gives_the_same_trace_in_another_process(world: str) -> None:
    """Checker 15 and invariant 12: whatever the hash seed of the process."""
    program = (
        "from tests.simulation.seeded import play_seed; from tests.simulation.worlds import WORLDS; "
        f"print(play_seed(WORLDS[{world!r}], 7).digest)"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1
