"""A topic that is deleted and made again between any two steps of a read: its records are never taken for
those of the one before (I3). A log that lets it happen stands between the source and a real broker."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import pytest

from ister import sync
from ister.errors import UnknownTopic
from ister.spark.frames import _RangeReader
from ister.spark.options import parse_table_options
from ister.spark.ranges import Loss, OffsetRange
from ister.spark.source.planning import resolve

OLD, NEW = [b"old"] * 10, [b"new"] * 20


class MadeAgain:
    """Hands everything on; behind the call of that name the topic is another."""

    def __init__(self, log: sync.Log, topic: str, behind: str) -> None:
        self._log, self._topic, self._behind = log, topic, behind

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._log, name)
        if name != self._behind:
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            answer = found(*arguments, **options)
            self._behind = ""
            self._log.delete_topic(self._topic)
            self._log.append(self._topic, NEW)
            return answer

        return call


def values_read(log: Any, wanted: OffsetRange, *, fails: bool) -> list[bytes | None]:
    frames = _RangeReader(cast(sync.Log, log), wanted, Loss(fails)).frames()
    return [record.value for frame in frames for record in frame.records()]


@pytest.fixture
def range_of(log: sync.Log) -> Callable[[str], OffsetRange]:
    def make(topic: str) -> OffsetRange:
        log.append(topic, OLD)
        return OffsetRange(topic, log.describe_topic(topic).uid, 0, len(OLD))

    return make


@pytest.mark.parametrize("behind", ["describe_topic", "read"])
def test_a_range_whose_topic_is_made_again_right_before_a_fetch_has_none_of_its_records(
    log: sync.Log,
    range_of: Callable[[str], OffsetRange],
    behind: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for fails in (True, False):
        topic = f"fetched-{behind}-{fails}".replace("_", "-").lower()
        wanted = range_of(topic)
        between = MadeAgain(log, topic, behind)
        if fails:
            with pytest.raises(UnknownTopic, match=rf"offsets 0 to 9 of {topic} .* was deleted"):
                values_read(between, wanted, fails=True)
        else:
            caplog.set_level(logging.WARNING)
            assert values_read(between, wanted, fails=False) == []
            assert "DATA LOSS" in caplog.text and "offsets 0 to 9" in caplog.text


@pytest.mark.parametrize("option", ["endingOffsets", "startingTimestamp"])
def test_a_table_whose_topic_is_made_again_while_it_is_planned_is_an_error(
    log: sync.Log, range_of: Callable[[str], OffsetRange], option: str
) -> None:
    topic = f"planned-{option}".lower()
    range_of(topic)
    given = {"subscribe": topic, option: "latest" if option == "endingOffsets" else "1"}
    options = parse_table_options({name.lower(): value for name, value in given.items()})
    behind = "describe_topic" if option == "endingOffsets" else "offsets_at"
    with pytest.raises(UnknownTopic, match="the one that is there is another"):
        resolve(cast(sync.Log, MadeAgain(log, topic, behind)), options, topic)
