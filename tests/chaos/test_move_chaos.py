"""A stated sample of the moves' part of `make chaos`: twenty, on real processes."""

from __future__ import annotations

import pytest

from tests.chaos.moves import TwentyMovesChaos, run_moves

pytestmark = pytest.mark.slow


def test_twenty_moves_a_drain_and_a_removal_under_load_lose_double_and_skip_nothing() -> None:
    result = run_moves(300, seed=1, chaos=TwentyMovesChaos)
    ended = sum(count for name, count in result.faults.items() if name.startswith("moves"))
    assert ended == 20
    assert result.faults["moves done"] == 15
    assert result.faults["drained, removed, and back with an empty disk"] == 1
    assert result.acknowledged > 100
