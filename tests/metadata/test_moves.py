"""The machine of a move: each row of its table, and what its commands may not do."""

from __future__ import annotations

from ister.metadata.commands import (
    CancelMove,
    DeleteTopic,
    EndMove,
    FailMove,
    OpenedSegment,
    PublishObject,
    ReleaseCopies,
    ReleaseTopic,
    ReportObject,
    RequestMove,
    Result,
    SealSegment,
)
from ister.metadata.moves import MAX_ENDED, MoveReason, MoveStage, MoveState
from ister.metadata.state import ClusterState
from tests.metadata.chains import (
    FOUR,
    ONE,
    THREE,
    TWO,
    accept_loss,
    apply,
    create,
    node,
    recover,
    result_of,
    seal,
    state_after,
    the_topic,
)

UID = 4
"""Of the topic: three nodes come before it. Its first segment is led by node 1, and has a log."""


def a_topic(replicas: list[int] | None = None) -> ClusterState:
    state = state_after(node(1), node(2), node(3), create(replicas=replicas))
    apply(state, OpenedSegment(UID, 1, ONE))
    return state


def move(
    target: int = TWO, *, stays: bool = True, number: int = 1, by: int = ONE, has_history: bool = False
) -> RequestMove:
    return RequestMove(UID, target, MoveReason.OPERATOR, stays, 20, by, 1, number, has_history)


def move_seal(state: ClusterState, move_id: int, *, then: int = TWO, end: int = 10) -> SealSegment:
    opened = the_topic(state).open_segment
    made = seal(UID, opened.segment, end, by=opened.leader, then=then)
    return SealSegment(**{name: getattr(made, name) for name in made.__struct_fields__} | {"move": move_id})


def requested(state: ClusterState, command: RequestMove | None = None) -> int:
    outcome = state.apply(state.applied_index + 1, command or move())
    assert outcome.result is Result.APPLIED, outcome.detail
    return outcome.index


def row(state: ClusterState, move_id: int) -> MoveState:
    copy = ClusterState.from_bytes(state.to_bytes())
    assert copy.to_bytes() == state.to_bytes()
    assert copy.moves.of(UID) == state.moves.of(UID), "a snapshot has the same moves under way"
    return state.moves.rows[move_id]


def stage(state: ClusterState, move_id: int) -> MoveStage:
    return MoveStage(row(state, move_id).stage)


def test_a_move_is_requested_sealed_and_done_when_the_target_made_its_log() -> None:
    state = a_topic()
    found = requested(state)
    assert stage(state, found) is MoveStage.REQUESTED
    assert the_topic(state).home == 0
    assert apply(state, move_seal(state, found)) is Result.APPLIED
    assert stage(state, found) is MoveStage.SEALED
    assert (row(state, found).segment, row(state, found).end_offset) == (1, 10)
    assert (the_topic(state).open_segment.leader, the_topic(state).home) == (TWO, TWO)
    assert apply(state, OpenedSegment(UID, 2, TWO)) is Result.APPLIED
    assert stage(state, found) is MoveStage.DONE
    assert state.moves.of(UID) is None


def published(state: ClusterState, number: int) -> Result:
    """The segment with that number is in the history."""
    segment = the_topic(state).segment(number)
    assert segment is not None and segment.data_end is not None
    return apply(state, PublishObject(UID, segment.uid, f"o{number}", 0, segment.data_end, 1, 2, 3, ONE, 4))


def released(state: ClusterState, number: int) -> Result:
    segment = the_topic(state).segment(number)
    assert segment is not None
    return apply(state, ReleaseCopies(UID, segment.uid, f"o{number}", segment.replicas))


def a_move_with_history() -> tuple[ClusterState, int]:
    """Of a topic with two segments on node 1; the target leads the third, and has its log."""
    state = a_topic()
    apply(state, seal(UID, 1, 5))
    apply(state, OpenedSegment(UID, 2, ONE))
    found = requested(state, move(has_history=True))
    apply(state, move_seal(state, found))
    apply(state, OpenedSegment(UID, 3, TWO))
    return state, found


def test_where_there_is_a_history_it_is_over_when_the_old_node_has_let_go_of_what_was_exported() -> None:
    state, found = a_move_with_history()
    assert (stage(state, found), row(state, found).arrived) == (MoveStage.SEALED, True)
    assert published(state, 2) is Result.APPLIED
    assert stage(state, found) is MoveStage.SEALED, "the first one is not there yet"
    assert released(state, 2) is Result.APPLIED, "by retention, say"
    assert published(state, 1) is Result.APPLIED
    assert stage(state, found) is MoveStage.EXPORTED
    assert apply(state, EndMove(found)) is Result.STALE
    assert released(state, 1) is Result.APPLIED
    assert stage(state, found) is MoveStage.RELEASED
    assert apply(state, EndMove(found, "")) is Result.APPLIED
    assert stage(state, found) is MoveStage.DONE
    assert state.moves.of(UID) is None
    assert apply(state, EndMove(found)) is Result.STALE


def test_it_is_not_exported_before_the_target_has_its_log_nor_with_a_damaged_object() -> None:
    state = a_topic()
    found = requested(state, move(has_history=True))
    apply(state, move_seal(state, found))
    assert published(state, 1) is Result.APPLIED
    uid = the_topic(state).segments[0].uid
    apply(state, ReportObject(UID, uid, "o1", True))
    apply(state, OpenedSegment(UID, 2, TWO))
    assert stage(state, found) is MoveStage.SEALED
    apply(state, ReportObject(UID, uid, "o1", False))
    assert stage(state, found) is MoveStage.EXPORTED


def test_one_that_waits_for_copies_to_go_is_cancelled_at_each_step_and_the_topic_stays() -> None:
    steps = [(published, 1), (published, 2), (released, 1), (released, 2)]
    for count in range(len(steps) + 1):
        state, found = a_move_with_history()
        for step, number in steps[:count]:
            assert step(state, number) is Result.APPLIED
        assert (stage(state, found) is MoveStage.RELEASED) == (count == len(steps))
        assert apply(state, CancelMove(found)) is Result.APPLIED
        assert (stage(state, found), the_topic(state).open_segment.leader) == (MoveStage.CANCELLED, TWO)
        assert apply(state, EndMove(found)) is Result.STALE


def test_one_that_waits_for_copies_to_go_gives_way_to_the_next_and_does_not_fail_any_more() -> None:
    state, found = a_move_with_history()
    assert apply(state, seal(UID, 3, 20, by=TWO, then=TWO)) is Result.APPLIED
    assert apply(state, seal(UID, 4, 20, by=TWO, then=TWO)) is Result.APPLIED, "never opened"
    assert stage(state, found) is MoveStage.SEALED
    same = state.apply(state.applied_index + 1, move(number=2, has_history=True))
    assert (same.result, same.index) == (Result.EXISTS, found), "it is led there"
    assert apply(state, ReleaseTopic(UID)) is Result.APPLIED
    later = requested(state, move(THREE, number=3, has_history=True))
    assert stage(state, found) is MoveStage.CANCELLED
    assert f"move {later}" in row(state, found).detail
    assert state.moves.of(UID) is row(state, later)


def test_who_is_led_elsewhere_by_now_is_moved_back_by_a_move_of_its_own() -> None:
    state, found = a_move_with_history()
    apply(state, accept_loss(UID, 3, 90, 20, then=THREE, by=THREE))
    assert requested(state, move(number=2, has_history=True)) > found


def test_a_topic_that_is_deleted_ends_one_that_waits_for_copies_to_go() -> None:
    state, found = a_move_with_history()
    apply(state, DeleteTopic(UID))
    assert (stage(state, found), row(state, found).detail) == (MoveStage.FAILED, "the topic was deleted")


def test_the_seal_of_a_cancelled_move_is_refused_and_a_seal_without_it_is_not() -> None:
    """E7: however late it arrives."""
    state = a_topic()
    found = requested(state)
    late = move_seal(state, found)
    assert apply(state, CancelMove(found)) is Result.APPLIED
    result, detail = result_of(state, late)
    assert (result, detail) == (Result.REFUSED, f"move {found} of default/t is cancelled")
    assert the_topic(state).open_segment.segment == 1
    assert apply(state, seal(UID, 1, 10)) is Result.APPLIED
    assert (the_topic(state).open_segment.leader, the_topic(state).home) == (ONE, 0)
    assert apply(state, CancelMove(found)) is Result.STALE


def test_a_move_s_seal_goes_to_its_target_and_is_of_its_topic() -> None:
    state = a_topic()
    found = requested(state)
    assert apply(state, move_seal(state, found, then=THREE)) is Result.REFUSED
    assert apply(state, move_seal(state, found + 1)) is Result.REFUSED
    apply(state, create("default/u"))
    other = state.topics["default/u"]
    stray = SealSegment(
        **{name: getattr(move_seal(state, found), name) for name in move_seal(state, found).__struct_fields__}
        | {"topic_uid": other.uid}
    )
    assert apply(state, stray) is Result.REFUSED
    assert stage(state, found) is MoveStage.REQUESTED


def test_a_seal_that_was_applied_before_is_stale_and_not_refused() -> None:
    state = a_topic()
    found = requested(state)
    again = move_seal(state, found)
    apply(state, again)
    assert apply(state, again) is Result.STALE


def test_a_move_asked_during_a_rollover_applies_to_the_next_segment() -> None:
    """H5."""
    state = a_topic()
    found = requested(state)
    assert apply(state, seal(UID, 1, 5, then=THREE)) is Result.APPLIED
    apply(state, OpenedSegment(UID, 2, THREE))
    assert stage(state, found) is MoveStage.REQUESTED
    assert apply(state, move_seal(state, found, end=9)) is Result.APPLIED
    assert stage(state, found) is MoveStage.SEALED


def test_any_seal_that_leads_to_the_target_is_the_move() -> None:
    state = a_topic()
    found = requested(state)
    assert apply(state, seal(UID, 1, 5, then=TWO)) is Result.APPLIED
    assert stage(state, found) is MoveStage.SEALED
    assert the_topic(state).home == TWO


def test_a_target_that_is_lost_before_it_opened_its_log_makes_the_move_fail() -> None:
    state = a_topic([ONE, TWO])
    found = requested(state)
    opened = move_seal(state, found)
    apply(
        state,
        SealSegment(
            **{name: getattr(opened, name) for name in opened.__struct_fields__}
            | {"next_replicas": [TWO, THREE]}
        ),
    )
    begun = state.applied_index + 1
    assert apply(state, recover(UID, 2, by=THREE)) is Result.APPLIED
    ended = seal(UID, 2, 10, by=THREE, then=THREE, recovery=begun, replicas=[TWO, THREE], holders=[THREE])
    assert apply(state, ended) is Result.APPLIED
    assert stage(state, found) is MoveStage.FAILED
    assert "node 2" in row(state, found).detail
    assert the_topic(state).home == 0, "it failed over: it stays nowhere"


def test_cancelled_after_the_seal_it_stays_where_it_is_by_then() -> None:
    state = a_topic()
    found = requested(state)
    apply(state, move_seal(state, found))
    assert apply(state, CancelMove(found)) is Result.APPLIED
    assert stage(state, found) is MoveStage.CANCELLED
    assert the_topic(state).open_segment.leader == TWO
    apply(state, OpenedSegment(UID, 2, TWO))
    assert stage(state, found) is MoveStage.CANCELLED


def test_a_topic_has_one_move_at_a_time_and_a_repeat_is_the_same() -> None:
    """M1."""
    state = a_topic()
    found = requested(state)
    again = state.apply(state.applied_index + 1, move())
    assert (again.result, again.index) == (Result.EXISTS, found)
    same = state.apply(state.applied_index + 1, move(number=2, by=THREE))
    assert (same.result, same.index) == (Result.EXISTS, found)
    assert apply(state, move(THREE, number=3)) is Result.REFUSED
    apply(state, CancelMove(found))
    late = state.apply(state.applied_index + 1, move())
    assert (late.result, late.index) == (Result.EXISTS, found), "a repeat that was long on its way"
    assert requested(state, move(THREE, number=4)) > found


def test_a_move_to_where_it_is_is_done_and_binds_it() -> None:
    state = a_topic()
    found = requested(state, move(ONE))
    assert stage(state, found) is MoveStage.DONE
    assert the_topic(state).home == ONE
    assert apply(state, ReleaseTopic(UID)) is Result.APPLIED
    assert the_topic(state).home == 0


def test_a_move_that_does_not_stay_takes_the_home_away() -> None:
    state = a_topic()
    requested(state, move(ONE))
    found = requested(state, move(TWO, stays=False, number=2))
    assert apply(state, ReleaseTopic(UID)) is Result.REFUSED, "while a move is under way"
    apply(state, move_seal(state, found))
    assert the_topic(state).home == 0


def test_a_home_stays_across_rollovers_and_goes_with_a_failover_or_a_loss() -> None:
    state = a_topic()
    requested(state, move(ONE))
    apply(state, seal(UID, 1, 5, then=TWO))
    assert the_topic(state).home == ONE, "it is led elsewhere for the moment"
    apply(state, accept_loss(UID, 2, 90, 5, then=THREE, by=THREE))
    assert the_topic(state).home == 0


def test_nobody_is_moved_to_a_node_that_is_not_there() -> None:
    state = a_topic()
    assert apply(state, move(FOUR)) is Result.REFUSED


def test_a_move_fails_with_its_reason_before_the_seal_and_not_after_it() -> None:
    state = a_topic()
    found = requested(state)
    assert apply(state, FailMove(found, "node 2 does not answer")) is Result.APPLIED
    assert (stage(state, found), row(state, found).detail) == (MoveStage.FAILED, "node 2 does not answer")
    later = requested(state, move(number=2))
    apply(state, move_seal(state, later))
    assert apply(state, FailMove(later, "late")) is Result.STALE
    assert stage(state, later) is MoveStage.SEALED


def test_a_deleted_topic_ends_its_move_and_only_the_last_ones_are_kept() -> None:
    state = a_topic()
    for number in range(MAX_ENDED + 5):
        requested(state, move(ONE, number=number))
    assert len(state.moves.rows) == MAX_ENDED
    found = requested(state, move(TWO, number=9_999))
    apply(state, DeleteTopic(UID))
    assert (stage(state, found), row(state, found).detail) == (MoveStage.FAILED, "the topic was deleted")
