"""What a run of `compact --latest-by-key` says and refuses before Spark has anything to do."""

from __future__ import annotations

from typing import Any

import pytest
from job_helpers import new_topic, numbered

from ister import sync
from ister.errors import TableMismatch
from ister.spark import latest_by_key

pytestmark = pytest.mark.spark

NO_SPARK: Any = None


def test_a_target_that_has_other_records_is_refused(bootstrap: str, log: sync.Log) -> None:
    topic, target = new_topic("made-again"), new_topic("of-the-old-one")
    log.append(topic, numbered(0, 3))
    log.append(target, numbered(0, 5))
    with pytest.raises(TableMismatch, match=f"default/{target} has records .* offsets 0 to 4") as caught:
        latest_by_key(NO_SPARK, topic, to=target, bootstrap=bootstrap)
    assert "--to" in caught.value.hint
