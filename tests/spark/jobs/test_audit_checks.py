"""Each check of an audit by itself, on frames and figures that are wrong in one way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from ister.frame import FrameHeader
from ister.protocol.history import HistoryEntry, HistoryList
from ister.protocol.messages import SegmentDescription, TopicDescription, TopicSettings
from ister.spark.jobs.auditing.copies import _differences
from ister.spark.jobs.auditing.findings import Checked, runs, shown
from ister.spark.jobs.auditing.frames import OwnFrames, _Reported
from ister.spark.jobs.auditing.segments import AuditedSegment, join_checked, segments_of
from ister.spark.jobs.auditing.tables import TableLook, check_reach
from ister.spark.jobs.lake.table import Coverage, Origin
from ister.spark.jobs.snapshot import Share, take_snapshot
from ister.spark.ranges import OffsetRange

pytestmark = pytest.mark.spark

UID = 9
HOP = 3 << 40
"""What recovery keeps above the uid."""


def share(start: int, end: int) -> Share:
    return Share(OffsetRange("default/t", 5, start, end), 0, 1, UID, (1, 2, 3))


def header(base: int, count: int, time: int, segment: int = HOP | UID) -> FrameHeader:
    return FrameHeader(b"ISTF", 1, 0, 0, 0, 40, count, 0, 0, 0, base, segment, time, 0)


def checked(*headers: FrameHeader, missing: tuple[tuple[int, int], ...] = ()) -> Checked:
    made = Checked(missing=list(missing))
    own = OwnFrames(share(0, 100), 1_000_000, made)
    for each in headers:
        own.take(each)
    own.finish()
    return made


def found(findings: list[Any]) -> list[tuple[str, int, int]]:
    return [(each.check, each.start, each.end) for each in findings]


def test_frames_that_follow_each_other_are_counted() -> None:
    made = checked(header(0, 10, 5), header(10, 20, 5), header(30, 5, 2_000_001))
    assert made.findings == []
    assert (made.records, made.bytes, made.first_offset, made.next_offset) == (35, 3 * 104, 0, 35)
    assert made.rates == {0: (30, 208), 2: (5, 104)}


@pytest.mark.parametrize(
    ("frames", "finding"),
    [
        ((header(0, 10, 5), header(12, 5, 5)), ("continuity", 10, 12)),
        ((header(0, 10, 5), header(8, 5, 5)), ("continuity", 8, 10)),
        ((header(0, 10, 5), header(10, 5, 4)), ("time", 10, 15)),
        ((header(0, 10, 5), header(10, 5, 5, segment=HOP | 8)), ("identity", 10, 15)),
    ],
)
def test_a_frame_that_does_not_fit_is_found(
    frames: tuple[FrameHeader, ...], finding: tuple[str, int, int]
) -> None:
    assert found(checked(*frames).findings) == [finding]


def test_a_hole_that_was_told_is_not_told_twice() -> None:
    made = checked(header(0, 10, 5), header(20, 5, 5), missing=((10, 15), (15, 20)))
    assert made.findings == []
    partly = checked(header(0, 10, 5), header(20, 5, 5), missing=((10, 15),))
    assert found(partly.findings) == [("continuity", 10, 20)]


def test_what_was_given_up_is_a_note() -> None:
    from ister.errors import CorruptSegment, RecordsLost

    made = Checked()
    loss = _Reported(made, 1)
    loss.report("default/t", 5, 9, "given up", RecordsLost)
    loss.report("default/t", 20, 30, "damaged", CorruptSegment)
    assert [(note.start, note.end) for note in made.notes] == [(5, 9)]
    assert found(made.findings) == [("checksum", 20, 30)]
    assert made.missing == [(5, 9), (20, 30)]


# A segment, from what its shares saw.


def joined(*parts: Checked, last_time: int = 0, complete: bool = True, **figures: Any) -> AuditedSegment:
    told = {"bytes": sum(part.bytes for part in parts), "last_append_time_us": 7, "sealed": True, **figures}
    end = told.pop("end", 40)
    made = AuditedSegment(1, 0, end, told["sealed"], 1, [1])
    part = SegmentDescription(
        1, UID, 0, end, told["bytes"], 1, told["sealed"], 5, told["last_append_time_us"], "sealed",
        lost=told.get("lost", 0),
    )  # fmt: skip
    join_checked(made, part, parts, last_time, complete)
    return made


class Log:
    """Of one topic, whose second object the metadata calls damaged while nodes have copies; the third one
    has no copies, and is looked at itself."""

    cluster_id = "c"

    def describe_topic(self, _topic: str) -> TopicDescription:
        parts = [
            SegmentDescription(
                number, number + 10, 10 * number - 10, 10 * number, 100, 1, True, 0, 0, "", [1]
            )
            for number in (1, 2, 3)
        ]
        return TopicDescription("default/t", 5, 0, 30, 300, TopicSettings(), parts, 0, [])

    def offsets_at(self, _topic: str, _when: str) -> int:
        return 30

    def history(self, _topic: str, _start: int, _end: int) -> HistoryList:
        said: tuple[tuple[str, list[int]], ...] = (("published", [1]), ("damaged", [1, 2]), ("damaged", []))
        entries = [
            HistoryEntry(
                number, 10 * number - 10, 10 * number - 10, 10 * number, state, nodes, f"object-{number}",
                size=100, frames_size=80,
            )
            for number, (state, nodes) in enumerate(said, 1)
        ]  # fmt: skip
        return HistoryList("default/t", 5, 0, "store", "file:///h", entries)


def test_an_object_that_the_metadata_calls_damaged_is_found_though_copies_are_read() -> None:
    snapshot = take_snapshot(cast(Any, Log()), "default/t")
    assert [piece.descriptor is not None for piece in snapshot.lives] == [True, False, True]
    segments = segments_of(snapshot)
    assert [found(segment.findings) for segment in segments] == [[], [("object", 10, 20)], []]
    assert "object-2 was found damaged by a broker; nodes 1, 2 have copies" in segments[1].findings[0].what


def whole() -> Iterator[Checked]:
    yield checked(header(0, 10, 5), header(10, 15, 6))
    yield Checked()  # a share within a frame that begins before it
    yield checked(header(25, 15, 7))


def test_shares_make_a_segment() -> None:
    made = joined(*whole())
    assert made.is_clean
    assert (made.records, made.first_time_us, made.last_time_us) == (40, 5, 7)


@pytest.mark.parametrize(
    ("parts", "figures", "finding"),
    [
        ((checked(header(2, 38, 7)),), {}, [("continuity", 0, 2), ("count", 0, 40)]),
        (
            (checked(header(0, 20, 5)), checked(header(22, 18, 7))),
            {},
            [("continuity", 20, 22), ("count", 0, 40)],
        ),
        ((checked(header(0, 35, 7)),), {}, [("end", 35, 40), ("count", 0, 40)]),
        ((checked(header(0, 45, 7)),), {}, [("end", 40, 45), ("count", 0, 40)]),
        ((checked(header(0, 35, 7)),), {"sealed": False}, [("end", 35, 40), ("count", 0, 40)]),
        (tuple(whole()), {"bytes": 1}, [("count", 0, 40)]),
        (tuple(whole()), {"last_append_time_us": 8}, [("time", 39, 40)]),
        (tuple(whole()), {"last_time": 6}, [("time", 0, 1)]),
        (
            (checked(header(0, 20, 6)), checked(header(20, 20, 5))),
            {"last_append_time_us": 5},
            [("time", 20, 21)],
        ),
    ],
)
def test_a_segment_that_is_not_what_the_metadata_says_is_found(
    parts: tuple[Checked, ...], figures: dict[str, Any], finding: list[tuple[str, int, int]]
) -> None:
    assert found(joined(*parts, **figures).findings) == finding


def test_offsets_that_were_given_up_are_not_missed() -> None:
    parts = (checked(header(0, 25, 7), missing=((25, 40),)),)
    assert joined(*parts, lost=15).is_clean


def test_the_end_is_not_judged_where_nobody_has_looked() -> None:
    assert joined(checked(header(0, 10, 5)), complete=False).is_clean


# Replicas.


def copies(**changed: Any) -> dict[int, dict[int, tuple[int, bytes]]]:
    made = {node: {0: (10, b"a"), 10: (20, b"b")} for node in (1, 2, 3)}
    for name, headers in changed.items():
        made[int(name.removeprefix("n"))] = headers
    return made


@pytest.mark.parametrize(
    ("changed", "broken", "finding"),
    [
        ({}, set(), []),
        ({"n3": {0: (10, b"a"), 10: (20, b"x")}}, set(), [(3, 10, 20)]),
        ({"n2": {0: (10, b"a")}}, set(), [(2, 10, 20)]),
        ({"n2": {0: (10, b"a")}}, {2}, []),
        ({"n1": {0: (10, b"x")}}, {1}, [(1, 0, 10)]),
    ],
)
def test_a_replica_that_differs_is_named(
    changed: dict[str, Any], broken: set[int], finding: list[tuple[int, int, int]]
) -> None:
    differing = _differences(copies(**changed), share(0, 20), broken)
    assert [(each.node, each.start, each.end) for each in differing] == finding


def test_ranges_of_offsets() -> None:
    assert runs([3, 4, 5, 9]) == [(3, 6), (9, 10)]
    assert (shown(7, 8), shown(7, 12)) == ("offset 7", "offsets 7 to 11")


@pytest.mark.parametrize(
    ("covered", "end", "finding"),
    [
        (None, 20, [("table", 5, 20)]),
        (None, 5, []),
        (Coverage(5, 20), 20, []),
        (Coverage(5, 12), 20, []),
        (Coverage(5, 22), 20, [("table", 20, 22)]),
    ],
)
def test_a_table_that_says_it_has_nothing_or_too_much_is_found(
    covered: Coverage | None, end: int, finding: list[tuple[str, int, int]]
) -> None:
    plan: Any = None
    look = TableLook("t", Origin("c", "default/t", 5), plan, covered, [], [], 0)
    assert found(check_reach(look, 5, end)) == finding
