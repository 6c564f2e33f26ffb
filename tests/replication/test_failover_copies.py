"""Who copies from whom in a recovery, who stands in, and who is named as a holder in the end (F2)."""

from __future__ import annotations

from ister.replication.recovery.failover_events import (
    Copy,
    CopyFault,
    CopyMissed,
    Fence,
    FenceFault,
    FenceMissed,
    PausePassed,
    ProposalFault,
    Reason,
    SealMissed,
)
from tests.replication.failover_helpers import (
    NUMBER,
    A,
    B,
    C,
    D,
    E,
    X,
    Y,
    begun,
    copied,
    everybody,
    gave_up,
    has,
    seal,
)


def test_a_late_longer_answer_does_not_move_the_end_but_holds_it() -> None:
    machine = begun(B, (A, B, C))
    machine.step(has(B, 70))
    machine.step(has(C, 80))
    assert machine.step(has(A, 100)) == []
    assert machine.step(copied(B, 80)) == seal(80, (B, A, C))


def test_a_late_shorter_answer_copies_too() -> None:
    machine = begun(B, (A, B, C))
    machine.step(has(B, 70))
    machine.step(has(C, 80))
    assert machine.step(has(A, 60)) == [Copy(A, C, 80, NUMBER)]


def test_two_replicas_need_a_substitute_when_one_is_lost() -> None:
    machine = begun(B, (A, B), everybody(X, Y))
    assert machine.step(has(B, 80)) == [Copy(X, B, 80, NUMBER)]
    assert machine.step(copied(X, 80)) == seal(80, (B, X), later=(A,))


def test_another_substitute_is_asked_when_one_fails() -> None:
    machine = begun(B, (A, B), everybody(X, Y))
    machine.step(has(B, 80))
    assert machine.step(CopyMissed(X, B, CopyFault.TARGET)) == [Copy(Y, B, 80, NUMBER)]
    assert machine.step(CopyMissed(Y, B, CopyFault.TARGET)) == []
    assert machine.step(FenceMissed(A, FenceFault.UNREACHABLE)) == []
    assert machine.step(PausePassed(everybody(Y, X))) == [Fence(A, NUMBER), Copy(Y, B, 80, NUMBER)]


def test_without_substitutes_it_waits_for_a_node_to_join() -> None:
    machine = begun(B, (A, B), everybody())
    assert machine.step(has(B, 80)) == []
    assert machine.step(PausePassed(everybody(X))) == [Copy(X, B, 80, NUMBER)]


def test_a_replica_whose_copy_fails_is_stood_in_for() -> None:
    machine = begun(B, (A, B, C), everybody(X))
    machine.step(has(B, 80))
    machine.step(has(C, 70))
    assert machine.step(CopyMissed(C, B, CopyFault.TARGET)) == [Copy(X, B, 80, NUMBER)]
    assert machine.step(copied(X, 80)) == seal(80, (B, X), later=(A, C))


def test_nobody_stands_in_for_the_coordinator() -> None:
    machine = begun(B, (A, B, C), everybody(X, Y))
    machine.step(has(B, 70))
    machine.step(has(C, 80))
    assert machine.step(CopyMissed(B, C, CopyFault.TARGET)) == []
    assert machine.step(PausePassed(everybody(X, Y))) == [Copy(B, C, 80, NUMBER)]


def test_another_source_is_used_when_one_cannot_be_read() -> None:
    machine = begun(B, (A, B, C, D, E))
    machine.step(has(B, 70))
    machine.step(has(C, 80))
    assert machine.step(has(D, 80)) == [Copy(B, C, 80, NUMBER)]
    assert machine.step(CopyMissed(B, C, CopyFault.SOURCE_UNREACHABLE)) == [Copy(B, D, 80, NUMBER)]
    assert machine.step(copied(B, 80)) == seal(80, (B, C, D), later=(A, E))


def test_the_only_source_is_asked_again_after_a_pause_whether_it_is_there() -> None:
    machine = begun(B, (A, B, C))
    machine.step(has(B, 70))
    machine.step(has(C, 80))
    assert machine.step(CopyMissed(B, C, CopyFault.SOURCE_UNREACHABLE)) == []
    assert machine.step(PausePassed(everybody())) == [Fence(C, NUMBER)]
    assert machine.step(has(C, 80)) == [Copy(B, C, 80, NUMBER)]


def test_the_others_decide_when_the_only_source_is_gone_and_they_are_enough() -> None:
    machine = begun(B, (A, B, C))
    machine.step(has(B, 70))
    assert machine.step(has(C, 80)) == [Copy(B, C, 80, NUMBER)]
    assert machine.step(has(A, 70)) == [Copy(A, C, 80, NUMBER)]
    machine.step(CopyMissed(A, C, CopyFault.SOURCE_UNREACHABLE))
    machine.step(CopyMissed(B, C, CopyFault.SOURCE_UNREACHABLE))
    assert machine.step(PausePassed(everybody())) == [Fence(C, NUMBER), *seal(70, (B, A), later=(C,))]


def test_a_damaged_source_is_not_used_again_and_does_not_count() -> None:
    machine = begun(B, (A, B, C))
    machine.step(has(B, 70))
    machine.step(has(C, 80))
    assert machine.step(CopyMissed(B, C, CopyFault.SOURCE_DAMAGED)) == []
    assert machine.step(has(C, 80)) == []
    assert machine.step(has(A, 80)) == [Copy(B, A, 80, NUMBER)]


def test_a_damaged_source_that_leaves_too_few_to_hold_it_ends_the_attempt() -> None:
    machine = begun(B, (A, B))
    machine.step(has(A, 80))
    assert machine.step(has(B, 70)) == [Copy(B, A, 80, NUMBER)]
    given = gave_up(machine.step(CopyMissed(B, A, CopyFault.SOURCE_DAMAGED)))
    assert (given.why, given.retry) == (Reason.TOO_FEW, True)


def test_a_holder_that_leaves_the_cluster_is_replaced_before_the_seal_is_proposed_again() -> None:
    machine = begun(B, (A, B, C), everybody(X))
    machine.step(has(B, 80))
    assert machine.step(has(C, 80)) == seal(80, (B, C), later=(A,))
    assert machine.step(SealMissed(ProposalFault.REFUSED)) == []
    without = everybody(X, gone=(C,))
    assert machine.step(PausePassed(without)) == [Copy(X, B, 80, NUMBER)]
    assert machine.step(copied(X, 80)) == seal(80, (B, X), later=(A,))
