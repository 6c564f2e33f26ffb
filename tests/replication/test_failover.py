"""A recovery as its coordinator lives it: when it has heard enough, and how it ends (F1 to F3, P3, I2)."""

from __future__ import annotations

import pytest

from ister.errors import InvariantBroken
from ister.replication.recovery.failover import Phase, Recovery
from ister.replication.recovery.failover_events import (
    Begin,
    BeginMissed,
    Begun,
    Copy,
    CopyFault,
    CopyMissed,
    Done,
    Fence,
    Fenced,
    FenceFault,
    FenceMissed,
    PausePassed,
    ProposalFault,
    ProposeBegin,
    Reason,
    SealMissed,
    SegmentSealed,
    Superseded,
)
from tests.replication.failover_helpers import (
    NUMBER,
    A,
    B,
    C,
    D,
    E,
    X,
    begun,
    copied,
    everybody,
    gave_up,
    has,
    seal,
)


def test_a_lost_leader_is_recovered_step_by_step() -> None:
    machine = Recovery(B, (A, B, C), everybody())
    assert machine.step(Begin()) == [ProposeBegin()]
    assert machine.step(Begun(NUMBER)) == [Fence(A, NUMBER), Fence(B, NUMBER), Fence(C, NUMBER)]
    assert machine.step(has(B, 80)) == []
    assert machine.step(FenceMissed(A, FenceFault.UNREACHABLE)) == []
    assert machine.step(has(C, 100)) == [Copy(B, C, 100, NUMBER)]
    assert machine.step(copied(B, 100)) == seal(100, (B, C), later=(A,))
    assert machine.step(SegmentSealed(100)) == [Done(100)]
    assert machine.is_over


def test_nobody_is_fenced_before_the_recovery_has_begun() -> None:
    """F1."""
    machine = Recovery(B, (A, B, C), everybody())
    assert machine.step(has(C, 100)) == []
    assert machine.step(Begin()) == [ProposeBegin()]
    assert machine.step(has(C, 100)) == []
    assert machine.step(PausePassed(everybody())) == []
    assert machine.step(BeginMissed(ProposalFault.FAILED)) == []
    assert machine.step(PausePassed(everybody())) == [ProposeBegin()]


def test_equal_logs_need_no_copies() -> None:
    machine = begun(B, (A, B, C))
    machine.step(has(B, 100))
    assert machine.step(has(C, 100)) == seal(100, (B, C), later=(A,))


def test_an_empty_segment_is_sealed_where_it_begins() -> None:
    machine = begun(C, (A, B, C))
    machine.step(has(C, 0))
    assert machine.step(has(B, 0)) == seal(0, (C, B), later=(A,))


def test_five_replicas_take_three_answers_and_all_who_answered_copy() -> None:
    machine = begun(D, (A, B, C, D, E))
    machine.step(has(D, 10))
    assert machine.step(has(B, 30)) == []
    assert machine.step(has(E, 20)) == [Copy(D, B, 30, NUMBER), Copy(E, B, 30, NUMBER)]
    assert machine.step(copied(E, 30)) == []
    assert machine.step(copied(D, 30)) == seal(30, (D, B, E), later=(A, C))


def test_the_coordinator_waits_for_its_own_answer() -> None:
    """It folds the producers from its own log."""
    machine = begun(B, (A, B, C))
    machine.step(has(A, 100))
    assert machine.step(has(C, 100)) == []
    assert machine.step(has(B, 90)) == [Copy(B, A, 100, NUMBER)]
    assert machine.step(copied(B, 100)) == seal(100, (B, A, C))


# Doubt (P3).


def test_a_doubtful_answer_does_not_make_it_enough() -> None:
    machine = begun(B, (A, B, C))
    machine.step(has(B, 80))
    assert machine.step(has(C, 70, in_doubt=True)) == []
    assert machine.step(has(A, 90)) == [Copy(B, A, 90, NUMBER), Copy(C, A, 90, NUMBER)]


def test_all_answers_are_enough_though_most_are_in_doubt() -> None:
    machine = begun(B, (A, B, C))
    machine.step(has(B, 80, in_doubt=True))
    machine.step(has(C, 70, in_doubt=True))
    assert machine.step(has(A, 75, in_doubt=True)) == [Copy(A, B, 80, NUMBER), Copy(C, B, 80, NUMBER)]


def test_the_longest_counts_though_it_is_in_doubt_and_is_copied_from_one_that_is_not() -> None:
    machine = begun(C, (A, B, C))
    machine.step(has(C, 80))
    machine.step(has(B, 100, in_doubt=True))
    assert machine.step(has(A, 100)) == [Copy(C, A, 100, NUMBER)]


def test_doubt_and_a_lost_disk_together_are_too_much() -> None:
    machine = begun(B, (A, B, C))
    machine.step(FenceMissed(A, FenceFault.UNKNOWN))
    machine.step(has(B, 80))
    given = gave_up(machine.step(has(C, 70, in_doubt=True)))
    assert (given.why, given.retry) == (Reason.TOO_FEW, False)
    assert "node 1 has no log of it, node 2 ends at 80, node 3 ends at 70, in doubt" in given.message
    assert "accept-loss" in given.hint


# Disks that are gone (I2).


def test_a_wiped_replica_is_not_an_empty_one() -> None:
    machine = begun(B, (A, B, C))
    machine.step(has(B, 80))
    assert machine.step(FenceMissed(C, FenceFault.UNKNOWN)) == []
    assert machine.step(has(C, 0)) == []
    assert machine.step(FenceMissed(A, FenceFault.UNREACHABLE)) == []
    assert machine.step(PausePassed(everybody())) == [Fence(A, NUMBER)]
    assert machine.step(has(A, 100)) == [Copy(B, A, 100, NUMBER)]


def test_a_replica_whose_disk_left_the_cluster_is_not_asked() -> None:
    machine = Recovery(B, (A, B, C), everybody(gone=(A,)))
    machine.step(Begin())
    assert machine.step(Begun(NUMBER)) == [Fence(B, NUMBER), Fence(C, NUMBER)]
    machine.step(has(B, 80))
    assert machine.step(has(A, 100)) == []
    assert machine.step(has(C, 80)) == seal(80, (B, C))


def test_with_too_many_disks_gone_it_gives_up_at_once() -> None:
    machine = Recovery(B, (A, B, C), everybody(gone=(A, C)))
    machine.step(Begin())
    given = gave_up([effect for effect in machine.step(Begun(NUMBER)) if not isinstance(effect, Fence)])
    assert (given.why, given.retry) == (Reason.TOO_FEW, False)


def test_a_disk_that_failed_may_answer_another_attempt() -> None:
    machine = begun(B, (A, B, C))
    assert machine.step(FenceMissed(A, FenceFault.STORAGE)) == []
    given = gave_up(machine.step(FenceMissed(C, FenceFault.STORAGE)))
    assert (given.why, given.retry) == (Reason.TOO_FEW, True)


def test_a_node_without_a_log_of_its_own_leaves_it_to_others() -> None:
    given = gave_up(begun(B, (A, B, C)).step(FenceMissed(B, FenceFault.UNKNOWN)))
    assert (given.why, given.retry) == (Reason.CANNOT_COORDINATE, False)
    assert "node 2" in given.message


def test_who_does_not_answer_is_asked_again_after_a_pause_but_not_twice_at_once() -> None:
    machine = begun(B, (A, B, C))
    machine.step(has(B, 80))
    assert machine.step(PausePassed(everybody())) == []
    machine.step(FenceMissed(C, FenceFault.UNREACHABLE))
    assert machine.step(PausePassed(everybody())) == [Fence(C, NUMBER)]
    assert machine.step(PausePassed(everybody())) == []


# What is committed is never cut (F3).


def test_a_known_commit_that_nobody_has_stops_the_recovery() -> None:
    machine = begun(B, (A, B, C))
    machine.step(has(B, 70))
    given = gave_up(machine.step(has(C, 80, commit=100)))
    assert (given.why, given.retry) == (Reason.COMMITTED_MISSING, True)
    assert "up to offset 100" in given.message
    assert "ends at 80" in given.message
    assert "node 1 has not answered" in given.message


def test_a_replica_that_is_behind_what_it_knows_committed_is_no_reason_to_stop() -> None:
    machine = begun(B, (A, B, C))
    machine.step(has(B, 70, commit=90))
    assert machine.step(has(C, 90)) == [Copy(B, C, 90, NUMBER)]


def test_a_late_answer_that_knows_more_committed_stops_it_too() -> None:
    machine = begun(B, (A, B, C))
    machine.step(has(B, 70))
    machine.step(has(C, 80))
    assert gave_up(machine.step(has(A, 100, commit=100))).why is Reason.COMMITTED_MISSING


def test_logs_that_are_not_prefixes_of_one_stop_it() -> None:
    machine = begun(B, (A, B, C))
    machine.step(Fenced(B, 80, 8_000, False, 0))
    given = gave_up(machine.step(Fenced(C, 80, 8_001, False, 0)))
    assert (given.why, given.retry) == (Reason.DIVERGED, False)
    assert "8001 bytes, another 8000" in given.message


# Ends.


def test_a_seal_that_nobody_can_say_anything_of_is_proposed_again_after_a_pause() -> None:
    machine = begun(B, (A, B, C))
    machine.step(has(B, 80))
    machine.step(has(C, 80))
    assert machine.step(PausePassed(everybody())) == []
    assert machine.step(SealMissed(ProposalFault.FAILED)) == []
    assert machine.step(PausePassed(everybody())) == seal(80, (B, C), later=(A,))
    assert machine.step(SegmentSealed(80)) == [Done(80)]


@pytest.mark.parametrize(
    "event",
    [
        FenceMissed(C, FenceFault.SUPERSEDED),
        CopyMissed(B, C, CopyFault.SUPERSEDED),
        Superseded(NUMBER + 1, C),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_later_recovery_ends_this_one(
    event: FenceMissed | CopyMissed | Superseded,
) -> None:
    machine = begun(B, (A, B, C))
    machine.step(has(B, 70))
    machine.step(has(C, 80))
    given = gave_up(machine.step(event))
    assert (given.why, given.retry) == (Reason.SUPERSEDED, False)


def test_a_stale_seal_ends_it() -> None:
    machine = begun(B, (A, B, C))
    machine.step(has(B, 80))
    machine.step(has(C, 80))
    assert gave_up(machine.step(SealMissed(ProposalFault.STALE))).why is Reason.SUPERSEDED


def test_an_earlier_recovery_and_its_own_do_not_supersede_it() -> None:
    machine = begun(B, (A, B, C))
    assert machine.step(Superseded(NUMBER - 1, C)) == []
    assert machine.step(Superseded(NUMBER, B)) == []
    assert machine.phase is Phase.FENCING


def test_a_recovery_that_was_superseded_before_it_heard_of_its_number_fences_nobody() -> None:
    machine = Recovery(B, (A, B, C), everybody())
    machine.step(Begin())
    assert machine.step(Superseded(NUMBER + 1, C)) == []
    given = gave_up(machine.step(Begun(NUMBER)))
    assert (given.why, given.retry) == (Reason.SUPERSEDED, False)


def test_its_own_proposal_that_comes_late_is_no_reason_to_leave_it_to_others() -> None:
    machine = begun(B, (A, B, C))
    given = gave_up(machine.step(Superseded(NUMBER + 1, B)))
    assert (given.why, given.retry) == (Reason.SUPERSEDED, True)


def test_a_segment_that_is_sealed_needs_no_recovery() -> None:
    machine = Recovery(B, (A, B, C), everybody())
    machine.step(Begin())
    assert gave_up(machine.step(BeginMissed(ProposalFault.STALE))).why is Reason.NOT_OPEN


def test_a_node_that_left_the_cluster_does_not_coordinate() -> None:
    machine = Recovery(B, (A, B, C), everybody())
    machine.step(Begin())
    assert gave_up(machine.step(BeginMissed(ProposalFault.REFUSED))).why is Reason.CANNOT_COORDINATE
    machine = begun(B, (A, B, C))
    assert gave_up(machine.step(PausePassed(everybody(gone=(B,))))).why is Reason.CANNOT_COORDINATE


def test_a_lone_replica_seals_at_its_own_end() -> None:
    machine = begun(A, (A,))
    assert machine.step(has(A, 80, in_doubt=True)) == seal(80, (A,))


def test_only_a_replica_coordinates() -> None:
    with pytest.raises(InvariantBroken):
        Recovery(X, (A, B, C), everybody())


def test_it_says_what_it_waits_for() -> None:
    machine = begun(B, (A, B, C), everybody(gone=(A,)))
    machine.step(has(B, 80))
    assert machine.describe() == (
        "recovery 17 is fencing: 2 of 3 replicas have to answer without doubt, or all: "
        "node 1 left the cluster with that disk, node 2 ends at 80, node 3 has not answered"
    )
