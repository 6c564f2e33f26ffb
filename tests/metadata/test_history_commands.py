"""What of a topic is in the history: published once, abandoned for good, released only where it is there."""

from __future__ import annotations

from ister.metadata.commands import (
    AbandonObject,
    DeleteTopic,
    MergedPart,
    PublishObject,
    ReleaseCopies,
    ReplaceObjects,
    ReportObject,
    Result,
    SetReplicas,
    TrimTopic,
)
from ister.metadata.state import ClusterState, SegmentState, TopicState
from tests.metadata.chains import ONE, TWO, apply, create, node, seal, state_after


def with_a_sealed_segment() -> tuple[ClusterState, TopicState, SegmentState]:
    state = state_after(node(1), node(2), create("default/t", 7, ONE, [ONE, TWO]))
    topic = state.topics["default/t"]
    assert apply(state, seal(topic.uid, 1, 10, by=ONE, then=ONE, then_on=[ONE, TWO])) is Result.APPLIED
    return state, topic, topic.segments[0]


def publish(
    topic: TopicState, segment: SegmentState, attempt: int = 0, end: int = 10, replaces: str = ""
) -> PublishObject:
    return PublishObject(topic.uid, segment.uid, f"o-{attempt}", attempt, end, 500, 1, 2, ONE, 3, replaces)


def test_a_segment_is_published_once() -> None:
    state, topic, segment = with_a_sealed_segment()
    assert apply(state, publish(topic, segment)) is Result.APPLIED
    assert apply(state, publish(topic, segment)) is Result.EXISTS
    assert apply(state, publish(topic, segment, 1)) is Result.STALE
    assert segment.history is not None and segment.history.name == "o-0"


def test_only_an_object_that_was_reported_damaged_is_replaced_and_by_a_later_one() -> None:
    state, topic, segment = with_a_sealed_segment()
    apply(state, publish(topic, segment, 3))
    assert apply(state, publish(topic, segment, 4, replaces="o-3")) is Result.STALE
    assert apply(state, ReportObject(topic.uid, segment.uid, "o-3", True)) is Result.APPLIED
    assert apply(state, publish(topic, segment, 2, replaces="o-3")) is Result.STALE
    assert apply(state, publish(topic, segment, 4)) is Result.STALE
    assert apply(state, publish(topic, segment, 4, replaces="o-3")) is Result.APPLIED
    assert segment.history is not None
    assert (segment.history.name, segment.history.damaged) == ("o-4", False)
    assert apply(state, ReportObject(topic.uid, segment.uid, "o-3", True)) is Result.STALE
    assert apply(state, AbandonObject(topic.uid, segment.uid, 3)) is Result.APPLIED
    assert apply(state, AbandonObject(topic.uid, segment.uid, 4)) is Result.REFUSED


def test_only_all_of_a_sealed_segment_is_published() -> None:
    state, topic, segment = with_a_sealed_segment()
    assert apply(state, publish(topic, segment, end=9)) is Result.REFUSED
    assert apply(state, publish(topic, topic.open_segment)) is Result.REFUSED


def test_what_was_abandoned_is_never_published_and_the_next_attempt_is() -> None:
    state, topic, segment = with_a_sealed_segment()
    assert apply(state, AbandonObject(topic.uid, segment.uid, 1)) is Result.APPLIED
    assert apply(state, publish(topic, segment, 0)) is Result.STALE
    assert apply(state, publish(topic, segment, 1)) is Result.STALE
    assert apply(state, publish(topic, segment, 2)) is Result.APPLIED
    assert apply(state, AbandonObject(topic.uid, segment.uid, 2)) is Result.REFUSED
    assert apply(state, AbandonObject(topic.uid, segment.uid, 0)) is Result.APPLIED


def test_what_is_of_no_topic_any_more_is_stale_and_what_never_was_is_refused() -> None:
    state, topic, segment = with_a_sealed_segment()
    assert apply(state, AbandonObject(topic.uid, 999, 0)) is Result.REFUSED
    assert apply(state, AbandonObject(999, segment.uid, 0)) is Result.REFUSED
    assert apply(state, TrimTopic(topic.uid, 10)) is Result.APPLIED
    assert apply(state, AbandonObject(topic.uid, segment.uid, 0)) is Result.STALE
    assert apply(state, publish(topic, segment)) is Result.STALE
    assert apply(state, DeleteTopic(topic.uid)) is Result.APPLIED
    assert apply(state, AbandonObject(topic.uid, segment.uid, 0)) is Result.STALE


def test_copies_are_released_only_for_a_published_object_that_is_not_damaged() -> None:
    state, topic, segment = with_a_sealed_segment()
    release = ReleaseCopies(topic.uid, segment.uid, "o-0", [ONE, TWO])
    assert apply(state, release) is Result.REFUSED
    assert apply(state, publish(topic, segment)) is Result.APPLIED
    assert apply(state, ReportObject(topic.uid, segment.uid, "o-0", True)) is Result.APPLIED
    assert apply(state, release) is Result.REFUSED
    assert apply(state, ReportObject(topic.uid, segment.uid, "o-0", False)) is Result.APPLIED
    assert apply(state, ReleaseCopies(topic.uid, segment.uid, "o-1", [ONE, TWO])) is Result.REFUSED
    assert apply(state, ReleaseCopies(topic.uid, segment.uid, "o-0", [ONE])) is Result.STALE
    assert segment.replicas == [ONE, TWO]
    assert apply(state, release) is Result.APPLIED
    assert (segment.replicas, segment.whole, segment.is_released) == ([], [], True)
    assert apply(state, release) is Result.STALE


def test_a_copy_that_is_still_there_may_be_listed_again() -> None:
    state, topic, segment = with_a_sealed_segment()
    assert apply(state, publish(topic, segment)) is Result.APPLIED
    assert apply(state, ReleaseCopies(topic.uid, segment.uid, "o-0", [ONE, TWO])) is Result.APPLIED
    assert (
        apply(state, SetReplicas(topic.uid, segment.segment, [], [TWO], expected_whole=[])) is Result.APPLIED
    )
    assert segment.replicas == [TWO] and not segment.is_released


def test_a_snapshot_has_it_all() -> None:
    state, topic, segment = with_a_sealed_segment()
    assert apply(state, publish(topic, segment)) is Result.APPLIED
    again = ClusterState.from_bytes(state.to_bytes())
    assert again.topics["default/t"].segments[0].history == segment.history


# Merged objects.


def with_objects(count: int = 4) -> tuple[ClusterState, TopicState, list[SegmentState]]:
    """Segments of ten offsets, each in an object of its own; the one before the last is empty."""
    state = state_after(node(1), node(2), create("default/t", 7, ONE, [ONE, TWO]))
    topic = state.topics["default/t"]
    for number in range(count):
        assert apply(state, seal(topic.uid, number + 1, min(number + 1, count - 2) * 10)).name == "APPLIED"
    found = [segment for segment in topic.segments[:-1] if not segment.is_empty]
    for segment in found:
        name = f"o-{segment.uid}-0"
        command = PublishObject(
            topic.uid, segment.uid, name, 0, segment.end_offset or 0, 100 + segment.segment, 1, 2, ONE, 3
        )
        assert apply(state, command) is Result.APPLIED
    return state, topic, found


def replace(
    topic: TopicState, segments: list[SegmentState], attempt: int = 1, copied: int = 0, name: str = ""
) -> ReplaceObjects:
    parts = [MergedPart(segment.uid, copied) for segment in segments]
    return ReplaceObjects(topic.uid, name or f"m-{segments[0].uid}-{attempt}", attempt, parts, TWO, 9)


def objects(segments: list[SegmentState]) -> list[tuple[str, int, int]]:
    return [
        (one.history.name, one.history.position, one.history.size)
        for one in segments
        if one.history is not None
    ]


def test_neighbours_are_replaced_by_one_object_and_nothing_else_changes() -> None:
    state, topic, segments = with_objects(6)
    assert len(segments) == 4
    before = [one.history for one in segments]
    assert apply(state, replace(topic, segments)) is Result.APPLIED
    assert apply(state, replace(topic, segments)) is Result.EXISTS
    name = f"m-{segments[0].uid}-1"
    assert objects(segments) == [(name, 0, 101), (name, 101, 102), (name, 203, 103), (name, 306, 104)]
    for segment, old in zip(segments, before, strict=True):
        found = segment.history
        assert found is not None and old is not None and found.is_part
        assert (found.crc, found.size, found.first_append_time_us) == (
            old.crc,
            old.size,
            old.first_append_time_us,
        )
        assert (found.stored_size, found.exported_by, found.published_at_us) == (410, TWO, 9)
    again = ClusterState.from_bytes(state.to_bytes())
    assert objects(again.topics["default/t"].segments) == objects(segments)


def test_of_two_replacements_the_second_is_stale_and_one_of_a_part_is_refused() -> None:
    state, topic, segments = with_objects(6)
    assert apply(state, replace(topic, segments[:3])) is Result.APPLIED
    before = objects(segments)
    assert apply(state, replace(topic, segments)) is Result.STALE
    assert apply(state, replace(topic, segments[1:3], 2, 1)) is Result.REFUSED, "an object goes as a whole"
    assert apply(state, replace(topic, segments[:2], 2, 1)) is Result.REFUSED
    assert apply(state, replace(topic, segments[:3], 1, 1, "m")) is Result.REFUSED, "no attempt comes back"
    assert objects(segments) == before


def test_only_published_neighbours_are_replaced_that_nobody_found_damaged() -> None:
    state, topic, segments = with_objects(6)
    before = objects(segments)
    assert apply(state, replace(topic, segments[:1])) is Result.REFUSED
    assert apply(state, replace(topic, [segments[0], segments[2]])) is Result.REFUSED
    assert apply(state, replace(topic, segments[1::-1])) is Result.REFUSED
    assert apply(state, replace(topic, [segments[0], segments[0]])) is Result.REFUSED
    assert apply(state, replace(topic, [segments[-1], topic.open_segment])) is Result.STALE
    parts = [MergedPart(999, 0), MergedPart(1000, 0)]
    assert apply(state, ReplaceObjects(topic.uid, "m", 1, parts, ONE, 1)) is Result.STALE, "unborn"
    assert apply(state, ReplaceObjects(topic.uid, "m", 1, [], ONE, 1)) is Result.REFUSED
    name = objects(segments)[1][0]
    assert apply(state, ReportObject(topic.uid, segments[1].uid, name, True)) is Result.APPLIED
    assert apply(state, replace(topic, segments)) is Result.REFUSED
    assert objects(segments) == before
    assert apply(state, TrimTopic(topic.uid, 10)) is Result.APPLIED
    assert apply(state, replace(topic, segments)) is Result.STALE
    assert apply(state, DeleteTopic(topic.uid)) is Result.APPLIED
    assert apply(state, replace(topic, segments)) is Result.STALE


def test_a_merged_object_is_abandoned_before_it_is_named_or_never() -> None:
    state, topic, segments = with_objects(6)
    first = segments[0].uid
    assert apply(state, AbandonObject(topic.uid, first, 1, "a merge that died")) is Result.APPLIED
    assert apply(state, replace(topic, segments, 1)) is Result.STALE, "it was abandoned"
    assert apply(state, replace(topic, segments, 2)) is Result.APPLIED
    name = objects(segments)[0][0]
    assert apply(state, AbandonObject(topic.uid, first, 2, name)) is Result.REFUSED
    assert apply(state, AbandonObject(topic.uid, first, 2, "another run of that attempt")) is Result.APPLIED
    for segment in segments:
        old = f"o-{segment.uid}-0"
        assert apply(state, AbandonObject(topic.uid, segment.uid, 0, old)) is Result.APPLIED


def test_while_a_segment_is_left_of_a_merged_object_it_is_not_abandoned() -> None:
    state, topic, segments = with_objects(6)
    assert apply(state, replace(topic, segments)) is Result.APPLIED
    name = objects(segments)[0][0]
    for segment in segments:
        assert apply(state, AbandonObject(topic.uid, segments[0].uid, 1, name)) is Result.REFUSED
        assert segment.end_offset is not None
        assert apply(state, TrimTopic(topic.uid, segment.end_offset)) is Result.APPLIED
    assert apply(state, AbandonObject(topic.uid, segments[0].uid, 1, name)) is Result.STALE
