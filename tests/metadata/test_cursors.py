"""The shared GET cursors in the metadata: claimed by compare-and-set, moved by their owner (S1, S4, S5)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.metadata.codec import decode_command, encode_command
from ister.metadata.commands import (
    ClaimCursor,
    Command,
    CreateTopic,
    DeleteTopic,
    FlushCursors,
    Result,
    UpsertNode,
)
from ister.metadata.state import ClusterState, TopicState
from ister.protocol.messages import TopicSettings
from ister.protocol.peer import member_of


def disk(number: int) -> str:
    return f"{number:016x}"


A, B = member_of(1, disk(1)), member_of(2, disk(2))
STRANGER = member_of(3, disk(3))


def node(number: int) -> UpsertNode:
    return UpsertNode(number, disk(number), 1, "h", 1, "h", 2)


def create(name: str = "default/t") -> CreateTopic:
    return CreateTopic(name, TopicSettings(), A, [A], 1)


TOPIC = 3
"""The uid of the topic that `founded` makes."""


def founded(*commands: Command) -> ClusterState:
    state = ClusterState()
    for index, command in enumerate([node(1), node(2), create(), *commands], 1):
        state.apply(index, command)
    return state


def apply(state: ClusterState, command: Command) -> tuple[Result, str]:
    outcome = state.apply(state.applied_index + 1, command)
    return outcome.result, outcome.detail


def cursor(state: ClusterState, uid: int = TOPIC) -> tuple[int, int, int]:
    topic = state.topic_by_uid(uid)
    assert topic is not None
    return topic.get_owner, topic.get_epoch, topic.get_offset


def test_a_topic_begins_without_an_owner_and_at_its_first_record() -> None:
    assert cursor(founded()) == (0, 0, 0)


def test_s1_of_two_claims_of_the_same_epoch_one_applies() -> None:
    state = founded()
    assert apply(state, ClaimCursor(TOPIC, A, 1))[0] is Result.APPLIED
    result, detail = apply(state, ClaimCursor(TOPIC, B, 1))
    assert (result, "in epoch 1, 1 was claimed" in detail) == (Result.STALE, True)
    assert cursor(state) == (A, 1, 0)


@pytest.mark.parametrize("epoch", [0, 1, 3, -1])
def test_s1_a_claim_takes_the_very_next_epoch_or_none(epoch: int) -> None:
    state = founded(ClaimCursor(TOPIC, A, 1))
    assert apply(state, ClaimCursor(TOPIC, B, epoch))[0] is Result.STALE
    assert apply(state, ClaimCursor(TOPIC, B, 2))[0] is Result.APPLIED


def test_only_a_node_of_the_cluster_on_its_disk_may_own_a_cursor() -> None:
    state = founded()
    result, detail = apply(state, ClaimCursor(TOPIC, STRANGER, 1))
    assert (result, "node 3 is not active" in detail) == (Result.REFUSED, True)
    assert cursor(state) == (0, 0, 0)


def test_an_owner_claims_again_after_a_restart_and_keeps_the_offset() -> None:
    state = founded(ClaimCursor(TOPIC, A, 1), FlushCursors(A, [(TOPIC, 1, 7)]))
    assert apply(state, ClaimCursor(TOPIC, A, 2))[0] is Result.APPLIED
    assert cursor(state) == (A, 2, 7)
    assert apply(state, FlushCursors(A, [(TOPIC, 1, 9)]))[0] is Result.STALE, "its own former life's"


def test_invariant_8_a_flush_of_an_older_epoch_or_another_owner_is_not_applied() -> None:
    state = founded(ClaimCursor(TOPIC, A, 1), FlushCursors(A, [(TOPIC, 1, 5)]), ClaimCursor(TOPIC, B, 2))
    for flush in (
        FlushCursors(A, [(TOPIC, 1, 9)]),
        FlushCursors(A, [(TOPIC, 2, 9)]),
        FlushCursors(B, [(TOPIC, 1, 9)]),
        FlushCursors(B, [(TOPIC, 3, 9)]),
    ):
        result, detail = apply(state, flush)
        assert (result, str(TOPIC) in detail) == (Result.STALE, True)
    assert cursor(state) == (B, 2, 5)


def test_a_cursor_never_goes_back() -> None:
    state = founded(ClaimCursor(TOPIC, A, 1), FlushCursors(A, [(TOPIC, 1, 5)]))
    assert apply(state, FlushCursors(A, [(TOPIC, 1, 4)]))[0] is Result.STALE
    assert apply(state, FlushCursors(A, [(TOPIC, 1, 5)]))[0] is Result.APPLIED, "a repeat changes nothing"
    assert cursor(state) == (A, 1, 5)


def test_the_rows_of_one_flush_stand_each_for_itself() -> None:
    state = founded(create("default/u"), ClaimCursor(TOPIC, A, 1), ClaimCursor(4, B, 1))
    result, detail = apply(state, FlushCursors(A, [(TOPIC, 1, 5), (4, 1, 6), (99, 1, 1)]))
    assert result is Result.APPLIED
    assert detail.endswith("topics 4, 99")
    assert (cursor(state), cursor(state, 4)) == ((A, 1, 5), (B, 1, 0))


def test_i3_a_topic_made_again_has_a_cursor_of_its_own() -> None:
    state = founded(ClaimCursor(TOPIC, A, 1), FlushCursors(A, [(TOPIC, 1, 5)]), DeleteTopic(TOPIC), create())
    assert cursor(state, 7) == (0, 0, 0)
    assert apply(state, FlushCursors(A, [(TOPIC, 1, 6)]))[0] is Result.STALE
    assert apply(state, ClaimCursor(TOPIC, A, 2))[0] is Result.STALE


def test_a_snapshot_of_before_there_were_cursors_is_read() -> None:
    topic = founded().topics["default/t"]
    names = TopicState.__struct_fields__[: TopicState.__struct_fields__.index("get_owner")]
    fields = [getattr(topic, name) for name in names]
    old = msgspec.msgpack.encode([3, "", [fields], []])
    assert cursor(ClusterState.from_bytes(old)) == (0, 0, 0)


members = st.sampled_from([A, B, STRANGER])
uids = st.integers(1, 6)
small = st.integers(0, 4)
commands = st.one_of(
    st.builds(create, st.sampled_from(["default/t", "default/u"])),
    st.builds(DeleteTopic, uids),
    st.builds(ClaimCursor, uids, members, small),
    st.builds(FlushCursors, members, st.lists(st.tuples(uids, small, st.integers(0, 20)), max_size=4)),
)


@given(st.lists(commands, max_size=40), st.integers(0, 40))
def test_snapshot_and_restore_keep_the_cursors(history: list[Command], cut: int) -> None:
    replayed = founded(*history)
    restored = ClusterState.from_bytes(founded(*history[:cut]).to_bytes())
    for command in history[cut:]:
        apply(restored, command)
    assert restored.to_bytes() == replayed.to_bytes()


@given(st.lists(commands, max_size=40))
def test_invariant_8_epochs_and_offsets_only_grow_and_only_owners_move_them(
    history: list[Command],
) -> None:
    state = founded()
    for command in history:
        before = {topic.uid: cursor(state, topic.uid) for topic in state.topics.values()}
        apply(state, command)
        for topic in state.topics.values():
            owner, epoch, offset = before.get(topic.uid, (0, 0, 0))
            now = cursor(state, topic.uid)
            assert now[1] in (epoch, epoch + 1)
            assert now[2] >= offset
            if now[1] == epoch:
                assert now[0] == owner
            if now[2] > offset:
                assert isinstance(command, FlushCursors)
                assert command.owner == owner


@pytest.mark.parametrize("command", [ClaimCursor(3, A, 1), FlushCursors(A, [(3, 1, 5), (4, 2, 6)])])
def test_the_commands_survive_the_journal(command: Command) -> None:
    assert decode_command(encode_command(command)) == command
