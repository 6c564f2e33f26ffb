"""A stated sample of `make chaos`: 20 rounds."""

from __future__ import annotations

import pytest

from tests.chaos.rounds import run_rounds


@pytest.mark.slow
def test_twenty_rounds_of_kill_nine_lose_and_double_nothing() -> None:
    result = run_rounds(20, seed=1)
    assert result.rounds["kill -9"] == 16
    assert result.rounds["SIGTERM"] == 4
    assert result.acknowledged > 100
