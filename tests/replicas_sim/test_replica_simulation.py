"""A stated sample of `make sim`: clusters with replicated segments, seeds 0 to 43, one of them twice."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.replicas_sim.scenario import check_worth, run_seed

SEEDS = 44


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_seed_is_clean_and_worth_the_name(seed: int) -> None:
    check_worth(run_seed(seed))


def test_one_seed_is_clean_in_the_quick_tests_too() -> None:
    check_worth(run_seed(1_000_000))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_trace_in_another_process() -> None:
    """Checker 15 and invariant 12: whatever the hash seed of the process."""
    program = "from tests.replicas_sim.scenario import run_seed; print(run_seed(7).digest)"
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
