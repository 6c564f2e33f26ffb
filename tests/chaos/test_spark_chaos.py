"""A stated sample of `make chaos`: a query and its brokers, killed three times."""

from __future__ import annotations

import pytest

from tests.chaos.spark import run_spark


@pytest.mark.slow
@pytest.mark.spark
def test_a_query_killed_thrice_writes_each_record_once() -> None:
    result = run_spark(3, seed=1)
    assert result.kills == {"driver": 2, "broker": 1}
    assert result.records > 1000
