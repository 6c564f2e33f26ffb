"""The state machine: compare-and-set seals, gapless chains, apply as a pure function (R3, H1, I3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.metadata.commands import (
    AlterTopic,
    AnyCommand,
    CreateTopic,
    DeleteTopic,
    FoundCluster,
    OpenedSegment,
    Result,
    SealSegment,
    TrimTopic,
    decode_command,
    encode_command,
)
from ister.metadata.state import ClusterState
from ister.protocol.messages import TopicSettings


def create(name: str = "default/t", at: int = 1) -> CreateTopic:
    return CreateTopic(name, TopicSettings(), 1, [1], at)


def seal(uid: int, segment: int, end: int) -> SealSegment:
    return SealSegment(uid, segment, end, end * 100, 1, [1], [], end, 1, 50)


def state_after(*commands: AnyCommand | None) -> ClusterState:
    state = ClusterState()
    for index, command in enumerate(commands, 1):
        state.apply(index, command)
    return state


def test_i3_creating_twice_gives_the_existing_topic() -> None:
    state = ClusterState()
    first = state.apply(1, create())
    second = state.apply(2, create())
    assert (first.result, second.result) == (Result.CREATED, Result.EXISTS)
    assert first.topic_uid == second.topic_uid == 1


def test_i3_a_topic_made_again_has_another_uid_and_starts_over() -> None:
    state = state_after(create(), seal(1, 1, 10), DeleteTopic(1), create())
    topic = state.topics["default/t"]
    assert (topic.uid, topic.open_segment.base_offset) == (4, 0)
    assert state.apply(5, seal(1, 2, 20)).result is Result.STALE, "a command for its predecessor"


def test_i1_a_cluster_is_founded_once() -> None:
    state = state_after(FoundCluster("c1"), create())
    assert state.apply(3, FoundCluster("c2")).result is Result.STALE
    assert ClusterState.from_bytes(state.to_bytes()).cluster_id == "c1"


def test_h1_a_seal_proposed_twice_is_applied_once() -> None:
    state = state_after(create(), seal(1, 1, 10))
    assert state.apply(3, seal(1, 1, 10)).result is Result.STALE
    assert state.apply(4, seal(1, 1, 99)).result is Result.STALE
    topic = state.topics["default/t"]
    assert [(s.segment, s.base_offset, s.end_offset) for s in topic.segments] == [(1, 0, 10), (2, 10, None)]


def test_h1_a_seal_before_the_base_is_refused() -> None:
    state = state_after(create(), seal(1, 1, 10))
    outcome = state.apply(3, seal(1, 2, 9))
    assert (outcome.result, "before the base 10" in outcome.detail) == (Result.REFUSED, True)


def test_a_seal_carries_producers_to_the_next_segment_only() -> None:
    rows = [(7, [(0, 1, 0, 5)])]
    command = SealSegment(1, 1, 10, 1000, 1, [1], rows, 77, 1, 50)
    topic = state_after(create(), command).topics["default/t"]
    assert topic.open_segment.carried_producers == rows
    assert topic.open_segment.carried_append_time_us == 77
    assert topic.segments[0].carried_producers == []


def test_an_offset_at_a_boundary_belongs_to_the_next_segment_and_empty_ones_hold_nothing() -> None:
    topic = state_after(create(), seal(1, 1, 10), seal(1, 2, 10), seal(1, 3, 20)).topics["default/t"]
    holders = [(offset, topic.holding(offset)) for offset in (0, 9, 10, 19, 20, 500)]
    assert [(offset, found and found.segment) for offset, found in holders] == [
        (0, 1),
        (9, 1),
        (10, 3),
        (19, 3),
        (20, 4),
        (500, 4),
    ]


def test_trimming_drops_whole_segments_and_only_up_to_a_base() -> None:
    state = state_after(create(), seal(1, 1, 10), seal(1, 2, 20))
    assert state.apply(4, TrimTopic(1, 15)).result is Result.REFUSED
    assert state.apply(5, TrimTopic(1, 10)).result is Result.APPLIED
    assert state.apply(6, TrimTopic(1, 10)).result is Result.STALE
    topic = state.topics["default/t"]
    assert (topic.start_offset, [s.segment for s in topic.segments]) == (10, [2, 3])
    assert topic.holding(5) is None
    assert state.apply(7, TrimTopic(1, 20)).result is Result.APPLIED
    assert [s.segment for s in topic.segments] == [3]


def test_r3_an_unknown_command_has_an_error_result_and_is_no_crash() -> None:
    assert decode_command(b"\x92\xaaFromFuture\x01") is None
    assert decode_command(b"garbage") is None
    state = ClusterState()
    assert state.apply(1, None).result is Result.REFUSED
    assert state.apply(2, create()).result is Result.CREATED


uids = st.integers(1, 12)
commands = st.one_of(
    st.builds(FoundCluster, st.sampled_from(["c1", "c2"])),
    st.builds(create, st.sampled_from(["default/a", "default/b", "x/a"]), st.integers(1, 99)),
    st.builds(seal, uids, st.integers(1, 4), st.integers(0, 40)),
    st.builds(DeleteTopic, uids),
    st.builds(AlterTopic, uids, st.builds(TopicSettings, segment_records=st.integers(1, 9))),
    st.builds(OpenedSegment, uids, st.integers(1, 4), st.just(1)),
    st.builds(TrimTopic, uids, st.integers(0, 40)),
    st.none(),
)


@given(st.lists(commands, max_size=60), st.integers(0, 60))
def test_snapshot_and_restore_equal_replay(history: list[AnyCommand | None], cut: int) -> None:
    replayed = state_after(*history)
    restored = ClusterState.from_bytes(state_after(*history[:cut]).to_bytes())
    for index, command in enumerate(history[cut:], min(cut, len(history)) + 1):
        restored.apply(index, command)
    assert restored.to_bytes() == replayed.to_bytes()


@given(st.lists(commands, max_size=60))
def test_every_chain_is_gapless_with_exactly_one_open_segment(history: list[AnyCommand | None]) -> None:
    """Invariant 9, and promise 3: next base = sealed end."""
    state = ClusterState()
    for index, command in enumerate(history, 1):
        before = {
            (topic.uid, s.segment): (s.base_offset, s.end_offset)
            for topic in state.topics.values()
            for s in topic.segments
        }
        state.apply(index, command)
        for topic in state.topics.values():
            assert [s.is_sealed for s in topic.segments] == [True] * (len(topic.segments) - 1) + [False]
            for earlier, later in zip(topic.segments, topic.segments[1:], strict=False):
                assert earlier.end_offset == later.base_offset
                assert later.segment == earlier.segment + 1
            for s in topic.segments:
                base, end = before.get((topic.uid, s.segment), (s.base_offset, None))
                assert s.base_offset == base
                assert end is None or s.end_offset == end, "a sealed end never changes"


@pytest.mark.parametrize("command", [create(), seal(1, 2, 3), DeleteTopic(4), TrimTopic(1, 2)])
def test_commands_survive_the_journal(command: AnyCommand) -> None:
    assert decode_command(encode_command(command)) == command
