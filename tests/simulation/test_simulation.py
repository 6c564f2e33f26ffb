"""A sample of `make sim`: of each world its first seeds, and one in two processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.seeded import play_seed
from tests.simulation.worlds import WORLDS

SEEDS = {
    "broker": 12,
    "cluster": 8,
    "replicas": 6,
    "losses": 6,
    "moves": 9,
    "history": 3,
    "subscriptions": 12,
}
"""Some ten to twenty seconds of each, and of moves and the history, which are twelve together, a minute and
more: one of them takes as long as eight of a broker. The ranges are in `make sim`."""
IN_TWO_PROCESSES = 0


def test_every_world_has_its_sample() -> None:
    assert SEEDS.keys() == WORLDS.keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "seed"),
    [(world, seed) for world in WORLDS for seed in range(SEEDS[world]) if seed != IN_TWO_PROCESSES],
)
def test_a_seed_is_clean_and_worth_the_name(world: str, seed: int) -> None:
    play_seed(WORLDS[world], seed).check_worth()


@pytest.mark.parametrize("world", ["broker", "replicas"])
def test_one_seed_is_clean_in_the_quick_tests_too(world: str) -> None:
    play_seed(WORLDS[world], 1_000_000).check_worth()


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_the_same_seed_gives_the_same_trace_in_another_process(world: str) -> None:
    """Checker 15 and invariant 12: whatever the hash seed of the process."""
    here = play_seed(WORLDS[world], IN_TWO_PROCESSES)
    here.check_worth()
    program = (
        "from tests.simulation.seeded import play_seed; from tests.simulation.worlds import WORLDS; "
        f"print(play_seed(WORLDS[{world!r}], {IN_TWO_PROCESSES}).digest)"
    )
    other = 1 if os.environ.get("PYTHONHASHSEED") != "1" else 2
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONHASHSEED": str(other), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        check=True,
        text=True,
    )
    assert ran.stdout.strip() == here.digest
