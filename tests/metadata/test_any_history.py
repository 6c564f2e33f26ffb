"""Any commands in any order: applying is total, and the same everywhere (R3); the chain stays a chain."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ister.metadata.chain import MAX_LOST_RANGES
from ister.metadata.codec import decode_command, encode_command
from ister.metadata.commands import (
    AcceptGone,
    AcceptLoss,
    AlterTopic,
    BeginRecovery,
    ClaimCursor,
    Command,
    CopyEntry,
    DeleteTopic,
    FlushCursors,
    FoundCluster,
    KeptPart,
    OpenedSegment,
    PinRow,
    RemoveNode,
    ReportCopies,
    Result,
    SealSegment,
    SetPins,
    SetReplicas,
    TrimTopic,
)
from ister.metadata.state import ClusterState, SegmentState, TopicState
from tests.metadata.chains import (
    NEW_TWO,
    ONE,
    THREE,
    TWO,
    accept_loss,
    apply,
    create,
    node,
    recover,
    seal,
    state_after,
)

EVERYBODY = (ONE, TWO, NEW_TWO, THREE)
LISTS = [[ONE], [ONE, TWO], [TWO, THREE, ONE], [THREE, NEW_TWO], [ONE, ONE], []]

uids = st.integers(3, 9)
numbers = st.integers(1, 4)
offsets = st.integers(0, 40)
members = st.sampled_from(EVERYBODY)
lists = st.sampled_from(LISTS)
starts = st.integers(1, 3)
names = st.sampled_from(["default/a", "default/b", "x/a"])

wild = st.one_of(
    st.builds(FoundCluster, st.sampled_from(["c1", "c2"])),
    st.builds(node, st.integers(1, 3), st.sampled_from([0, 0, 9]), starts, st.sampled_from([0, 9091])),
    st.builds(RemoveNode, st.integers(1, 3)),
    st.builds(create, names, st.integers(1, 99), members),
    st.builds(create, names, st.integers(1, 99), members, lists),
    st.builds(
        seal,
        uids,
        numbers,
        offsets,
        by=members,
        starts=starts,
        then=members,
        then_on=st.none() | lists,
        recovery=uids,
        replicas=lists,
    ),
    st.builds(recover, uids, numbers, members, starts),
    st.builds(
        SetPins,
        st.integers(0, 99),
        st.lists(st.builds(PinRow, uids, st.sampled_from("pq"), offsets, st.integers(0, 30)), max_size=3),
    ),
    st.builds(SetReplicas, uids, numbers, lists, lists),
    st.builds(SetReplicas, uids, numbers, lists, lists, expected_whole=lists),
    st.builds(
        ReportCopies,
        members,
        starts,
        st.integers(1, 9),
        st.integers(0, 60),
        st.lists(st.builds(CopyEntry, uids, uids, st.integers(1, 5), offsets), max_size=3),
    ),
    st.builds(accept_loss, uids, numbers, offsets, offsets, then=members, then_on=lists, by=members),
    st.builds(
        AcceptGone,
        uids,
        st.lists(uids, max_size=3),
        st.just(60),
        members,
        st.lists(st.builds(KeptPart, uids, offsets, offsets, offsets, lists), max_size=2),
    ),
    st.builds(DeleteTopic, uids),
    st.builds(
        AlterTopic,
        uids,
        st.dictionaries(
            st.sampled_from(["segment_records", "replicas", "fsync", "what"]), st.integers(1, 9), max_size=2
        ),
    ),
    st.builds(OpenedSegment, uids, numbers, members),
    st.builds(TrimTopic, uids, offsets),
    st.builds(ClaimCursor, uids, members, st.integers(1, 3)),
    st.builds(FlushCursors, members, st.lists(st.tuples(uids, st.integers(1, 3), offsets), max_size=3)),
    st.none(),
)
"""Whatever there may be, and mostly in vain: few of these meet a state in which they apply."""


def likely(state: ClusterState) -> st.SearchStrategy[Command | None]:
    """What somebody who knows the state would propose, with a wrong choice now and then."""
    if not state.topics:
        return wild
    return st.sampled_from(sorted(state.topics)).flatmap(lambda name: _about(state, state.topics[name]))


def _about(state: ClusterState, topic: TopicState) -> st.SearchStrategy[Command]:
    last, sealed = topic.open_segment, st.sampled_from(topic.segments[:-1] or topic.segments)
    who = last.coordinator or last.leader
    known = {node.member: node.starts for node in state.nodes.values()}
    of_last = [st.just(topic.uid), st.just(last.segment)]
    ends = st.integers(last.base_offset, last.base_offset + 9)
    on = st.sampled_from([[ONE], [TWO, ONE, THREE], [ONE, TWO], [TWO]])
    return st.one_of(
        st.builds(
            lambda uid, number, end, on, replicas: seal(
                uid, number, end, by=who, starts=known.get(who, 1), then=on[0], then_on=on,
                recovery=last.recovery, replicas=replicas if last.recovery else None,
            ),
            *of_last, ends, on, on,
        ),
        members.flatmap(lambda by: st.builds(recover, *of_last, st.just(by), st.just(known.get(by, 1)))),
        sealed.flatmap(
            lambda s: st.builds(
                SetReplicas, st.just(topic.uid), st.just(s.segment), st.just(list(s.replicas)), on
            )
        ),
        sealed.flatmap(
            lambda s: st.builds(
                lambda to: SetReplicas(
                    topic.uid, s.segment, list(s.replicas), to, expected_whole=list(s.whole)
                ),
                on,
            )
        ),
        sealed.flatmap(
            lambda s: st.builds(
                lambda by, what: ReportCopies(
                    by, known.get(by, 1), state.reports.get(by, 0) + 1, state.applied_index,
                    [CopyEntry(topic.uid, s.uid, what, s.base_offset)],
                ),
                st.sampled_from(s.replicas), st.integers(1, 4),
            )
        ),
        st.builds(
            lambda uid, number, end, on, by: accept_loss(
                uid, number, end + 9, end, then=on[0], then_on=on, by=by,
                leader_starts=known.get(last.leader, 0),
            ),
            *of_last, ends, on, members,
        ),
        sealed.map(lambda s: AcceptGone(topic.uid, [s.uid], 60, ONE)),
        sealed.flatmap(
            lambda s: st.builds(
                lambda end: AcceptGone(
                    topic.uid, [s.uid], 60, ONE,
                    [KeptPart(s.uid, s.base_offset + end, 0, 0, [m for m in s.replicas if m in known])],
                ),
                st.integers(0, 9),
            )
        ),
        st.just(msgspec.structs.replace(node(2, 9, client_port=0), replaces=True)),
        sealed.map(lambda s: TrimTopic(topic.uid, s.base_offset)),
        st.builds(OpenedSegment, *of_last, st.just(last.leader)),
        st.builds(ClaimCursor, st.just(topic.uid), members, st.just(topic.get_epoch + 1)),
        st.just(DeleteTopic(topic.uid)),
    )  # fmt: skip


@st.composite
def histories(draw: st.DrawFn) -> list[Command | None]:
    """Nodes and topics to begin with: else most sequences would do nothing."""
    history: list[Command | None] = [
        node(1),
        node(2),
        node(3),
        create("default/a", replicas=[ONE, TWO, THREE]),
        create("default/b", leader=TWO),
        seal(5, 1, 5, by=TWO, then=ONE),
    ]
    state = state_after(*history)
    for _ in range(draw(st.integers(0, 30))):
        command = draw(wild if draw(st.integers(0, 3)) == 3 else likely(state))
        state.apply(state.applied_index + 1, command)
        history.append(command)
    return history


def derived(state: ClusterState) -> dict[int, tuple[dict[int, str], dict[int, int]]]:
    return {member: (state.led_by(member), state.followed_by(member)) for member in EVERYBODY}


@pytest.mark.slow
@given(histories(), st.integers(0, 60))
def test_r3_snapshot_and_restore_equal_replay(history: list[Command | None], cut: int) -> None:
    replayed = state_after(*history)
    restored = ClusterState.from_bytes(state_after(*history[:cut]).to_bytes())
    for command in history[cut:]:
        apply(restored, command)
    assert restored.to_bytes() == replayed.to_bytes()
    assert derived(restored) == derived(replayed)


@pytest.mark.slow
@given(histories())
def test_r3_applying_through_the_journal_is_the_same(history: list[Command | None]) -> None:
    """What a node reads back from its disk, or hears from another one, does what it did there."""
    first, second = ClusterState(), ClusterState()
    for index, command in enumerate(history, 1):
        passed_on = None if command is None else decode_command(encode_command(command))
        assert passed_on == command
        assert first.apply(index, command) == second.apply(index, passed_on)
    assert first.to_bytes() == second.to_bytes()


@pytest.mark.slow
@given(histories())
def test_r3_what_is_not_applied_changes_nothing_and_says_why(history: list[Command | None]) -> None:
    state = ClusterState()
    for command in history:
        apply(state, command)  # asserts it


@pytest.mark.slow
@given(histories())
def test_what_a_member_leads_and_follows_is_what_the_chains_say(history: list[Command | None]) -> None:
    state = state_after(*history)
    open_ones = {topic.uid: (topic, topic.open_segment) for topic in state.topics.values()}
    for member in EVERYBODY:
        assert state.led_by(member) == {
            uid: topic.key_of(last) for uid, (topic, last) in open_ones.items() if last.leader == member
        }
        assert state.followed_by(member) == {
            uid: last.uid
            for uid, (_, last) in open_ones.items()
            if member in last.replicas and last.leader != member
        }


@pytest.mark.slow
@given(histories())
def test_every_chain_is_gapless_with_exactly_one_open_segment(history: list[Command | None]) -> None:
    """Invariant 9, and promise 3: next base = sealed end."""
    state = ClusterState()
    for index, command in enumerate(history, 1):
        before = _segments(state)
        state.apply(index, command)
        for topic in state.topics.values():
            _check_chain(topic)
        for place, segment in _segments(state).items():
            if place in before:
                _check_change(before[place], segment, command)


Places = dict[tuple[int, int], SegmentState]


def _segments(state: ClusterState) -> Places:
    copied = ClusterState.from_bytes(state.to_bytes())
    return {(topic.uid, s.segment): s for topic in copied.topics.values() for s in topic.segments}


def _check_chain(topic: TopicState) -> None:
    assert [s.is_sealed for s in topic.segments] == [True] * (len(topic.segments) - 1) + [False]
    for earlier, later in zip(topic.segments, topic.segments[1:], strict=False):
        assert earlier.end_offset == later.base_offset
        assert later.segment == earlier.segment + 1
    for segment in topic.segments:
        assert segment.replicas and len(set(segment.replicas)) == len(segment.replicas)
        assert topic.segment(segment.segment) is segment
        who_said = [*segment.whole, *(told.member for told in segment.told)]
        assert len(set(who_said)) == len(who_said) and set(who_said) <= set(segment.replicas), "C1"
        assert segment.is_sealed or not who_said
    assert topic.open_segment.leader in topic.open_segment.replicas
    assert len(topic.lost) <= MAX_LOST_RANGES


def _check_change(old: SegmentState, new: SegmentState, command: Command | None) -> None:
    assert new.base_offset == old.base_offset
    assert not old.is_sealed or new.end_offset == old.end_offset, "a sealed end never changes"
    if old.is_sealed and new.lost_from != old.lost_from:
        assert isinstance(command, AcceptGone)
        assert new.data_end is not None and old.data_end is not None
        assert new.base_offset <= new.data_end < old.data_end, "a loss only grows, and by what was there"
        parts = [part.end_offset for part in command.kept if part.segment == new.uid]
        assert new.data_end == (parts[-1] if parts else new.base_offset)
    assert new.recovery >= old.recovery, "numbers of recoveries only grow (F1)"
    if new.is_sealed and not old.is_sealed and new.lost_from is None:
        assert isinstance(command, SealSegment)
        assert command.recovery == old.recovery
        assert not old.recovery or command.sealed_by == old.coordinator
    if new.replicas != old.replicas:
        is_a_recoverys_end = new.is_sealed and not old.is_sealed and old.recovery > 0
        assert is_a_recoverys_end or (old.is_sealed and isinstance(command, SetReplicas)), "F4"


@pytest.mark.slow
def test_the_histories_do_apply_every_command() -> None:
    """Else the properties above would hold of nothing."""
    applied: set[str] = set()

    @settings(derandomize=True, database=None, max_examples=200)
    @given(histories())
    def look(history: list[Command | None]) -> None:
        state = ClusterState()
        for index, command in enumerate(history, 1):
            if state.apply(index, command).result in (Result.APPLIED, Result.CREATED):
                applied.add(type(command).__name__)
                if isinstance(command, AcceptGone) and command.kept:
                    applied.add("a part that is kept")
                if isinstance(command, SealSegment) and command.recovery:
                    applied.add("a recovery's seal")

    look()
    assert applied >= {
        "SealSegment",
        "BeginRecovery",
        "SetReplicas",
        "ReportCopies",
        "AcceptLoss",
        "AcceptGone",
        "DeleteTopic",
        "TrimTopic",
        "a recovery's seal",
        "a part that is kept",
    }


@pytest.mark.parametrize(
    "command",
    [
        create(),
        seal(1, 2, 3),
        seal(1, 2, 3, recovery=7, replicas=[ONE, TWO]),
        recover(1, 2),
        SetReplicas(1, 2, [ONE, TWO], [TWO, THREE]),
        accept_loss(1, 2, 40, 3),
        AcceptGone(1, [2], 60, ONE, [KeptPart(2, 5, 500, 7, [ONE, TWO])]),
        DeleteTopic(4),
        TrimTopic(1, 2),
        node(1),
        RemoveNode(1),
        OpenedSegment(1, 2, ONE),
        FlushCursors(ONE, [(1, 2, 3)]),
    ],
)
def test_commands_survive_the_journal(command: Command) -> None:
    assert decode_command(encode_command(command)) == command


HUGE = 2**64 - 1
LOW = -(2**63)


@pytest.mark.parametrize("number", [HUGE, LOW, -1, 0])
def test_r3_no_number_is_too_large_or_too_small_to_have_a_result(number: int) -> None:
    state = state_after(node(1), node(2), node(3), create(replicas=[ONE, TWO, THREE]))
    for command in (
        BeginRecovery(4, number, number, number),
        BeginRecovery(4, 1, number, number),
        SetReplicas(4, number, [number], [number]),
        SetReplicas(4, 1, [number], [number]),
        seal(4, 1, 10, by=number, recovery=number),
        seal(4, 1, 10, recovery=number, replicas=[number]),
        AcceptLoss(4, 1, number, number, [number], number, number, number, True),
        AcceptLoss(4, 1, 10, ONE, [ONE], number, number, ONE, True),
        AcceptLoss(4, 1, number, ONE, [ONE], 0, number, ONE, True, number, number, number, [], number),
        AcceptGone(4, [number], number, ONE, [KeptPart(number, number, number, number, [number])]),
        AcceptGone(4, [4], 60, ONE, [KeptPart(4, number, number, number, [number])]),
        AcceptGone(4, [4], 60, ONE, [KeptPart(4, 0, 0, number, [ONE, TWO, THREE])]),
    ):
        apply(state, command)
        assert ClusterState.from_bytes(state.to_bytes()).to_bytes() == state.to_bytes()
