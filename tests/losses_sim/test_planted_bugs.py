"""The simulation of accepted losses is worth what it finds: bugs put in on purpose, each by name."""

from __future__ import annotations

import pytest

from tests.cluster.planted import Plant
from tests.losses_sim.planted import FOUND_BY_SEEDS
from tests.losses_sim.scenario import LossRun
from tests.planting import is_found


@pytest.mark.slow
@pytest.mark.parametrize("plant", FOUND_BY_SEEDS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_is_found_the_stated_number_of_seeds(plant: Plant) -> None:
    assert is_found(plant, LossRun, FOUND_BY_SEEDS[plant])
