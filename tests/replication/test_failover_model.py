"""Recoveries among random faults (F1 to F3, P3, I2), and the bugs that such runs must find.

A sample; `python -m tests.replication.recovery_model --seeds 50000` runs as many as you have time for.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from ister.errors import InvariantBroken
from ister.replication.recovery.failover import Recovery
from ister.replication.stream.progress import Progress
from tests.replication import planted_model as planted
from tests.replication.recovery_model import World
from tests.replication.segment_model import Faults, PropertyBroken

SEEDS = 2_000

COORDINATOR: list[tuple[type[Recovery], str | None, int]] = [
    (planted.LongestAmongTooFew, None, 1_000),
    (planted.IgnoresDoubt, None, 1_500),
    (planted.WipedCountsAsEmpty, "the leader is gone", 2_000),
    (planted.SealsBeforeTheCopies, None, 50),
    (planted.TakesItsOwnEnd, None, 300),
    (planted.FencesWithoutBeginning, None, 10),
]
REPLICA: list[tuple[Faults, str | None, int]] = [
    (Faults(fence_not_compared=True), "many coordinate", 2_000),
    (Faults(older_seal_accepted=True), "many coordinate", 2_000),
    (Faults(fence_forgotten=True), "the leader runs on", 2_000),
    (Faults(takes_appends_when_fenced=True), "the leader runs on", 1_000),
    (Faults(answers_before_sync=True), None, 50),
]
LEADER: list[tuple[type[Progress], str | None, int]] = [
    (planted.CommitsWithoutItself, None, 300),
    (planted.CommitsWithHalf, None, 50),
    (planted.CountsFencedAnswers, "the leader runs on", 1_500),
]


@pytest.mark.slow
def test_every_segment_is_sealed_once_and_keeps_what_was_acknowledged() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        try:
            counts += World(seed).run().counts
        except (PropertyBroken, InvariantBroken) as error:
            pytest.fail(f"seed {seed}: {error}")
    # Runs in which nothing happened would prove nothing.
    assert counts["acknowledged"] > 3 * SEEDS
    assert counts["begun"] > 3 * SEEDS
    assert counts["SUPERSEDED"] > SEEDS
    assert counts["lost"] > SEEDS // 4
    assert counts["doubt"] > SEEDS // 2
    assert counts["substituted"] > SEEDS // 20
    assert counts["tail cut"] > SEEDS // 4


def test_one_seed_is_one_run() -> None:
    """Promise 7: the machine uses no chance and no order but what it is given."""
    first, second = World(7).run(), World(7).run()
    assert (first.seal, first.counts) == (second.seal, second.counts)


def find(name: str, seeds_max: int, weather: str | None, **plant: Any) -> None:
    for seed in range(seeds_max):
        try:
            World(seed, weather=weather, **plant).run()
        except (PropertyBroken, InvariantBroken):
            World(seed, weather=weather).run()  # it is the plant: the same run without it is clean
            return
    pytest.fail(f"{name}: not found in {seeds_max} seeds")


@pytest.mark.parametrize(("bug", "weather", "seeds_max"), COORDINATOR, ids=lambda row: _name(row))
def test_a_bug_of_the_coordinator_is_found(bug: type[Recovery], weather: str | None, seeds_max: int) -> None:
    find(bug.__name__, seeds_max, weather, recovery_class=bug)


@pytest.mark.parametrize(("bug", "weather", "seeds_max"), REPLICA, ids=lambda row: _name(row))
def test_a_bug_of_the_replicas_or_the_metadata_is_found(
    bug: Faults, weather: str | None, seeds_max: int
) -> None:
    find(str(bug), seeds_max, weather, faults=bug)


@pytest.mark.parametrize(("bug", "weather", "seeds_max"), LEADER, ids=lambda row: _name(row))
def test_a_bug_of_the_leader_is_found(bug: type[Progress], weather: str | None, seeds_max: int) -> None:
    find(bug.__name__, seeds_max, weather, progress_class=bug)


def _name(part: object) -> str:
    if isinstance(part, Faults):
        return next(field for field, value in vars(part).items() if value)
    return part.__name__ if isinstance(part, type) else ""
