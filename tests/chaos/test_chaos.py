"""A stated sample of `make chaos`: 20 rounds of kill -9."""

from __future__ import annotations

import pytest

from tests.chaos.rounds import run_rounds


@pytest.mark.slow
def test_twenty_rounds_of_kill_nine_lose_and_double_nothing() -> None:
    result = run_rounds(20, seed=1)
    assert result.rounds["kill -9"] == 20
    assert result.rounds["SIGTERM"] == 5
    assert result.acknowledged > 100
