"""One seed, one run (promise 7; PROTOCOL, invariant 12)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from story import tell

STORY = Path(__file__).with_name("story.py")


def in_a_process_of_its_own(hash_seed: str, seeds: range) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, str(STORY), *map(str, seeds)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


def test_the_same_seed_gives_the_same_trace() -> None:
    assert [tell(seed) for seed in range(10)] == [tell(seed) for seed in range(10)]


def test_different_seeds_give_different_traces() -> None:
    assert len({tell(seed) for seed in range(20)}) == 20


def test_processes_with_different_hash_seeds_have_the_same_traces() -> None:
    """Invariant 12: nothing may hang on the order of a set of strings or on where objects lie."""
    seeds = range(5)
    here = [tell(seed) for seed in seeds]
    assert in_a_process_of_its_own("1", seeds) == here
    assert in_a_process_of_its_own("4242", seeds) == here
