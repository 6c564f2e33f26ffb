"""The simulation of replicated clusters is worth what it finds: bugs put in on purpose, each by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.planted import Plant
from tests.planting import is_found, shows
from tests.replicas_sim import planted, schedules
from tests.replicas_sim.planted import FOUND_BY_SEEDS
from tests.replicas_sim.scenario import ReplicatedRun

SCHEDULES: dict[Plant, Callable[[], None]] = {
    planted.a_restarted_leader_goes_on_appending: (
        schedules.a_leader_is_started_again_before_its_own_disk_has_what_a_follower_has
    ),
    planted.a_wiped_replica_counts_as_an_empty_one: (
        schedules.a_lost_disk_comes_back_empty_while_the_one_that_has_all_is_away
    ),
    planted.a_duplicate_is_acknowledged_before_its_original_is_committed: (
        schedules.an_append_is_sent_again_while_nobody_answers_its_leader
    ),
    planted.a_second_fsync_is_believed: schedules.a_leader_fails_to_sync_what_one_follower_has,
    planted.a_fence_is_not_durable: schedules.a_fenced_replica_loses_power_before_the_seal,
    planted.the_longest_is_chosen_among_too_few: schedules.the_coordinator_is_behind_and_alone,
    planted.a_copy_is_repaired_from_a_corrupt_one: (
        schedules.a_short_copy_is_completed_while_its_source_is_rotten
    ),
    planted.an_old_leaders_tail_is_served: schedules.an_old_leader_comes_back_with_a_tail,
}


@pytest.mark.slow
@pytest.mark.parametrize("plant", FOUND_BY_SEEDS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found_within_the_stated_number_of_seeds(plant: Plant) -> None:
    assert is_found(plant, ReplicatedRun, FOUND_BY_SEEDS[plant])


@pytest.mark.parametrize("plant", SCHEDULES, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found_by_its_schedule(plant: Plant) -> None:
    SCHEDULES[plant]()  # without the bug it is clean
    with plant():
        assert shows(SCHEDULES[plant])
