"""What of a topic is in the history: published once, abandoned for good, released only where it is there."""

from __future__ import annotations

from ister.metadata.commands import (
    AbandonObject,
    DeleteTopic,
    PublishObject,
    ReleaseCopies,
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


def publish(topic: TopicState, segment: SegmentState, attempt: int = 0, end: int = 10) -> PublishObject:
    return PublishObject(topic.uid, segment.uid, f"o-{attempt}", attempt, end, 500, 1, 2, ONE, 3)


def test_a_segment_is_published_once() -> None:
    state, topic, segment = with_a_sealed_segment()
    assert apply(state, publish(topic, segment)) is Result.APPLIED
    assert apply(state, publish(topic, segment)) is Result.EXISTS
    assert apply(state, publish(topic, segment, 1)) is Result.STALE
    assert segment.history is not None and segment.history.name == "o-0"


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
