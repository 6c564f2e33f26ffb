"""Raft's five properties, durability and linearizable reads under random faults (figure 3; thesis 6.4).

A sample; `python -m tests.raft.random_run --seeds 5000` runs as many as you have time for.
"""

from __future__ import annotations

import pytest

from tests.raft.random_run import Outcome, RandomRun

SEEDS = 300
GROUPS = 10


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_the_properties_hold_in_random_clusters(group: int) -> None:
    outcomes = [RandomRun(seed).run() for seed in range(group, SEEDS, GROUPS)]
    require_worth(outcomes)


def require_worth(outcomes: list[Outcome]) -> None:
    """Runs in which nothing happened would prove nothing."""
    count = len(outcomes)
    assert sum(outcome.committed for outcome in outcomes) > 50 * count
    assert sum(outcome.leaders for outcome in outcomes) > 2 * count
    assert sum(outcome.reads for outcome in outcomes) > 5 * count
    assert sum(outcome.installs for outcome in outcomes) > count // 2
    assert sum(outcome.memberships for outcome in outcomes) > count // 3
    assert sum(outcome.counts["crash"] for outcome in outcomes) > 5 * count


def test_one_seed_is_one_run() -> None:
    """Promise 7: the core uses no chance but what it is given."""
    assert RandomRun(7).run() == RandomRun(7).run()


def test_a_few_seeds_are_clean() -> None:
    """For `make check`; the sample above is in `make test`."""
    for seed in range(1_000, 1_010):
        RandomRun(seed).run()
