"""Which offsets a table holds and how they are divided, against a real broker but without Spark."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from ister import sync
from ister.errors import ConfigError, CorruptSegment, OffsetOutOfRange, RecordsLost, UnknownTopic
from ister.frame import Frame, decode, encode, stamp
from ister.history.format import Exported
from ister.spark.frames import _RangeReader
from ister.spark.options import parse_table_options
from ister.spark.ranges import HISTORY, Descriptor, Loss, OffsetRange, Piece
from ister.spark.source.planning import divide, plan
from ister.spark.source.reading import read_range

OFFSETS = pa.schema([("offset", pa.int64())])


def offsets_read(bootstrap: str, part: OffsetRange, *, fails: bool = True) -> list[int]:
    batches = read_range(bootstrap, part, OFFSETS, Loss(fails))
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def planned(bootstrap: str, **options: str) -> list[OffsetRange]:
    return plan(parse_table_options({"bootstrap.servers": bootstrap, **options}), cores=2)


def bounds(parts: list[OffsetRange]) -> list[tuple[int, int]]:
    return [(part.start, part.end) for part in parts]


# Dividing.


def test_few_records_are_one_task_and_many_are_as_many_as_there_are_cores() -> None:
    assert bounds(divide([OffsetRange("t", 1, 5, 40_000)], 8, None, None)) == [(5, 40_000)]
    assert bounds(divide([OffsetRange("t", 1, 0, 200_000)], 2, None, None)) == [
        (0, 100_000),
        (100_000, 200_000),
    ]
    assert len(divide([OffsetRange("t", 1, 0, 25_000_001)], 2, None, None)) == 6


def test_many_objects_are_worth_more_tasks_however_few_records_they_have() -> None:
    def of(objects: int) -> OffsetRange:
        lives = []
        for number in range(objects):
            start, end = 10 * number, 10 * number + 10
            segment = Exported("c", "t", 1, number + 1, number + 9, start, end, 1_000)
            found = Descriptor("file:///kept", f"o{number}", 1_100, 7, segment)
            lives.append(Piece(number + 1, start, end, HISTORY, (), True, 1_000, found))
        return OffsetRange("t", 1, 0, 10 * objects, tuple(lives))

    assert len(divide([of(90)], 2, None, None)) == 1
    parts = divide([of(300)], 2, None, None)
    assert bounds(parts) == [(0, 1_500), (1_500, 3_000)]
    assert [(piece.start, piece.end) for part in parts for piece in part.lives] == [
        (start, start + 10) for start in range(0, 3_000, 10)
    ]
    cut = divide([of(3)], 1, 4, None)
    assert [(piece.start, piece.end, piece.size) for part in cut for piece in part.lives] == [
        (0, 8, 800), (8, 10, 200), (10, 15, 500), (15, 20, 500), (20, 22, 200), (22, 30, 800),
    ]  # fmt: skip


def test_min_partitions_are_spread_by_size_and_an_empty_topic_has_none() -> None:
    parts = divide(
        [OffsetRange("a", 1, 0, 30), OffsetRange("b", 2, 7, 7), OffsetRange("c", 3, 0, 10)], 1, 4, None
    )
    assert [part.topic for part in parts] == ["a", "a", "a", "c"]
    assert bounds(parts) == [(0, 10), (10, 20), (20, 30), (0, 10)]


def test_there_are_never_more_tasks_than_records() -> None:
    assert bounds(divide([OffsetRange("t", 1, 0, 3)], 2, 100, None)) == [(0, 1), (1, 2), (2, 3)]


def test_no_task_has_more_than_the_most_records_allowed() -> None:
    parts = divide([OffsetRange("t", 1, 0, 1001)], 1, None, 100)
    assert max(part.count for part in parts) <= 100
    assert sum(part.count for part in parts) == 1001


def test_nothing_to_read_is_no_task() -> None:
    assert divide([OffsetRange("t", 1, 9, 9)], 4, 8, 10) == []


def test_a_range_survives_the_way_to_a_task() -> None:
    part = OffsetRange("t", 1, 2, 3)
    assert pickle.loads(pickle.dumps(part)) == part


# Resolving.


def test_the_ends_of_a_table_are_offsets_once_it_is_planned(bootstrap: str, log: sync.Log) -> None:
    log.append("plan-ends", [b"x"] * 10)
    assert bounds(planned(bootstrap, subscribe="plan-ends")) == [(0, 10)]
    within = {"startingOffsets": '{"plan-ends":{"0":2}}', "endingOffsets": '{"plan-ends":{"0":7}}'}
    assert bounds(planned(bootstrap, subscribe="plan-ends", **within)) == [(2, 7)]


def test_a_time_is_that_of_the_append(bootstrap: str, log: sync.Log) -> None:
    first = log.append("plan-times", [b"x"] * 10)
    second = first.append_time_us // 1000 + 1
    while log.append("plan-times", [b"y"]).append_time_us < second * 1000:
        pass
    middle = log.offsets_at("plan-times", second * 1000)
    parts = planned(bootstrap, subscribe="plan-times", startingTimestamp=str(second))
    assert parts[0].start == middle > 0
    parts = planned(bootstrap, subscribe="plan-times", endingTimestamp=str(second))
    assert bounds(parts) == [(0, middle)]


def test_a_range_past_the_end_is_an_error_that_names_the_missing_offsets(
    bootstrap: str, log: sync.Log, caplog: pytest.LogCaptureFixture
) -> None:
    log.append("plan-past", [b"x"] * 10)
    past = {"subscribe": "plan-past", "endingOffsets": '{"plan-past":{"0":15}}'}
    with pytest.raises(OffsetOutOfRange, match="offsets 10 to 14 of default/plan-past are not there"):
        planned(bootstrap, **past)
    assert bounds(planned(bootstrap, **past, failOnDataLoss="false")) == [(0, 10)]
    assert "DATA LOSS" in caplog.text and "offsets 10 to 14" in caplog.text


def test_a_range_that_ends_before_it_starts_is_refused(bootstrap: str, log: sync.Log) -> None:
    log.append("plan-back", [b"x"] * 10)
    with pytest.raises(ConfigError, match="starts at offset 50 and ends before it, at 10"):
        planned(bootstrap, subscribe="plan-back", startingOffsets='{"plan-back":{"0":50}}')


def test_an_unknown_topic_is_an_error_when_the_table_is_planned(bootstrap: str) -> None:
    with pytest.raises(UnknownTopic, match="plan-nowhere"):
        planned(bootstrap, subscribe="plan-nowhere")


# What a task finds.


def test_a_range_that_cuts_frames_reads_just_its_own_records(bootstrap: str, log: sync.Log) -> None:
    for _ in range(4):
        log.append("read-cut", [b"x"] * 100)
    (whole,) = planned(bootstrap, subscribe="read-cut")
    part = OffsetRange(whole.topic, whole.uid, 150, 301)
    assert offsets_read(bootstrap, part) == list(range(150, 301))


def test_frames_of_one_record_are_joined_into_large_batches(bootstrap: str, log: sync.Log) -> None:
    with log.producer("read-lone", batch_records=1) as producer:
        producer.send_many([b"x"] * 2_500)
    (whole,) = planned(bootstrap, subscribe="read-lone")
    (batch,) = read_range(bootstrap, whole, OFFSETS, Loss(True))
    assert batch.column("offset").to_pylist() == list(range(2_500))


def test_a_topic_made_again_under_its_name_is_not_mistaken_for_the_planned_one(
    bootstrap: str, log: sync.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """I3: the name is the same, the uid is not."""
    log.append("read-again", [b"old"] * 5)
    (whole,) = planned(bootstrap, subscribe="read-again")
    log.delete_topic("read-again")
    with pytest.raises(UnknownTopic, match=r"offsets 0 to 4 .* was deleted after"):
        offsets_read(bootstrap, whole)
    log.append("read-again", [b"new"] * 5)
    with pytest.raises(UnknownTopic, match=r"offsets 0 to 4 .* deleted and made again"):
        offsets_read(bootstrap, whole)
    assert offsets_read(bootstrap, whole, fails=False) == []
    assert "DATA LOSS" in caplog.text


class FakeLog:
    """A topic of frames of ten records, ten records a segment, that loses some while it is read."""

    def __init__(
        self,
        end: int,
        *,
        damaged: int | None = None,
        trimmed_to: int | None = None,
        lost: tuple[int, int] | None = None,
    ) -> None:
        self.start, self.end = 0, end
        self.damaged, self.trimmed_to, self.lost = damaged, trimmed_to, lost

    def describe_topic(self, topic: str) -> Any:
        segments = [SimpleNamespace(base_offset=base) for base in range(self.start, self.end, 10)]
        return SimpleNamespace(
            uid=1, start_offset=self.start, end_offset=self.end, segments=segments, end_is_known=True
        )

    def read(self, topic: str, *, start: int, end: int, max_bytes: int, uid: int) -> Any:
        return SimpleNamespace(frames=lambda: self._frames(start, end))

    def _frames(self, start: int, end: int) -> Iterator[Frame]:
        for base in range(start - start % 10, end, 10):
            if base == self.damaged:
                raise CorruptSegment(f"segment at {base} is damaged")
            if self.lost is not None and self.lost[0] <= base < self.lost[1]:
                raise RecordsLost(f"offset {base} is lost", offsets=self.lost)
            if base < self.start:
                raise OffsetOutOfRange(f"offset {base} is not there")
            yield frame_at(base)
            if self.trimmed_to is not None:
                self.start = self.trimmed_to


def frame_at(base: int) -> Frame:
    made = bytearray(encode([b"x"] * 10))
    stamp(made, base, 1, 0)
    found = decode(made)
    assert isinstance(found, Frame)
    return found


def bases_read(log: FakeLog, start: int, end: int, *, fails: bool) -> list[int]:
    frames = _RangeReader(log, OffsetRange("t", 1, start, end), Loss(fails)).frames()  # type: ignore[arg-type]
    return [frame.header.base_offset for frame in frames]


@pytest.mark.parametrize(
    ("log", "missing", "left"),
    [
        (FakeLog(60, damaged=20), "offsets 20 to 29", [0, 10, 30, 40, 50]),
        (FakeLog(60, damaged=50), "offsets 50 to 59", [0, 10, 20, 30, 40]),
        (FakeLog(60, trimmed_to=40), "offsets 10 to 39", [0, 40, 50]),
        (FakeLog(60, trimmed_to=60), "offsets 10 to 59", [0]),
        (FakeLog(60, lost=(20, 40)), "offsets 20 to 39", [0, 10, 40, 50]),
        (FakeLog(60, lost=(20, 7000)), "offsets 20 to 59", [0, 10]),
        (FakeLog(40), "offsets 40 to 59", [0, 10, 20, 30]),
        (FakeLog(0), "offsets 0 to 59", []),
    ],
)
def test_what_is_missing_is_named_exactly_and_the_rest_is_read_if_that_is_wanted(
    log: FakeLog, missing: str, left: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert bases_read(log, 0, 60, fails=False) == left
    assert caplog.text.count("DATA LOSS") == 1 and missing in caplog.text
    log.start = 0
    kind = RecordsLost if log.lost else OffsetOutOfRange if log.damaged is None else CorruptSegment
    with pytest.raises(kind, match=missing):
        bases_read(log, 0, 60, fails=True)


class LeaderDown(FakeLog):
    """Described by a node that knows of fewer records than there are."""

    def describe_topic(self, topic: str) -> Any:
        described = super().describe_topic(topic)
        described.end_offset, described.end_is_known = 20, False
        return described


def test_the_least_that_a_topic_can_have_is_not_taken_for_its_end() -> None:
    assert bases_read(LeaderDown(60), 0, 60, fails=True) == [0, 10, 20, 30, 40, 50]


class OneDamagedFrame(FakeLog):
    """The same in a single segment: who gives up on all of it gives up too much."""

    def describe_topic(self, topic: str) -> Any:
        described = super().describe_topic(topic)
        described.segments = described.segments[:1]
        return described

    def _frames(self, start: int, end: int) -> Iterator[Frame]:
        try:
            yield from super()._frames(start, end)
        except CorruptSegment as error:
            raise CorruptSegment(error.message, offsets=(20, 30)) from error


def test_of_a_damaged_segment_only_the_offsets_that_are_damaged_are_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    log = OneDamagedFrame(60, damaged=20)
    assert bases_read(log, 0, 60, fails=False) == [0, 10, 30, 40, 50]
    assert caplog.text.count("DATA LOSS") == 1 and "offsets 20 to 29" in caplog.text
