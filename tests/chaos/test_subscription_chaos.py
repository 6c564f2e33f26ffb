"""A short run of the chaos of consumers; `python -m tests.chaos.subscriptions` has the long one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.chaos.subscriptions import run


@pytest.mark.slow
def test_eight_consumers_and_three_nodes_are_killed_and_nothing_is_skipped(tmp_path: Path) -> None:
    result = asyncio.run(run(12.0, 1, tmp_path))
    assert result.killed_consumers and result.killed_nodes and result.records > 1_000
