"""A stated sample of the cluster part of `make chaos`; and that its judgement finds what it looks for."""

from __future__ import annotations

import pytest

from ister.testing.checkers import Violation
from tests.chaos import planted
from tests.chaos.cluster import run_cluster

pytestmark = pytest.mark.slow


def test_three_nodes_killed_and_paused_lose_double_and_skip_nothing() -> None:
    result = run_cluster(10, seed=1)
    assert result.kills >= 2
    assert result.pauses >= 1
    assert result.rollovers >= 10
    assert result.moves >= 10
    assert result.acknowledged > 100


def test_an_acknowledgement_before_the_write_is_found() -> None:
    with pytest.raises(
        Violation,
        match=r"acknowledged_is_readable|nodes_agree|what_was_read_stays|one_offset|chain_is_contiguous",
    ):
        run_cluster(6, seed=1, command=planted.command("acknowledge-before-write"), patience_s=5)
