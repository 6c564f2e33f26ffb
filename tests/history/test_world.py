"""Twelve seeds of a cluster with a history under faults; each run must have met what it is there for."""

from __future__ import annotations

import pytest

from tests.history.world import play


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_a_seed_is_clean(seed: int) -> None:
    told = play(seed)
    assert told.acknowledged > 20 and told.kills and told.struck and told.released and told.trimmed
    assert told.merged
