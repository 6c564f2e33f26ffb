"""A stated sample of `python -m tests.chaos.steps`: each step once, on real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ister.failpoints import Step
from ister.testing.checkers import Violation
from tests.chaos import planted
from tests.chaos.steps import SOME, Case, run_steps

pytestmark = pytest.mark.slow


def test_brokers_killed_at_each_step_of_a_move_and_its_export_lose_double_and_strand_nothing(
    tmp_path: Path,
) -> None:
    chaos = run_steps(tmp_path, SOME)
    assert {case.step for case in SOME} == set(Step)
    assert sum(chaos.ended.values()) == len(SOME)
    assert set(chaos.ended) <= {"done", "failed", "never began"}
    assert chaos.ended["done"] >= len(SOME) // 2


def test_a_broker_that_acknowledges_before_it_writes_is_found(tmp_path: Path) -> None:
    case = Case(Step.BEGUN, "the old leader", "one")
    with pytest.raises(Violation):
        run_steps(tmp_path, [case] * 2, planted.command("acknowledge-before-write"), patience_s=10)
