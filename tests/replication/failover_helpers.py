"""What the tests of a recovery share: who takes part, what they answer, and what is expected then."""

from __future__ import annotations

from ister.protocol.peer import member_of
from ister.replication.recovery.failover import Recovery
from ister.replication.recovery.failover_events import (
    Begin,
    Begun,
    Copied,
    Effect,
    Fenced,
    GiveUp,
    Members,
    ProposeSeal,
)

A, B, C, D, E, X, Y = (member_of(number, "d15c") for number in range(1, 8))
"""Replicas, A the leader; X and Y are substitutes."""
ALL = frozenset((A, B, C, D, E, X, Y))
NUMBER = 17


def everybody(*substitutes: int, gone: tuple[int, ...] = ()) -> Members:
    return Members(ALL.difference(gone), substitutes)


def has(member: int, end: int, *, in_doubt: bool = False, commit: int = 0) -> Fenced:
    return Fenced(member, end, end * 100, in_doubt, commit)


def copied(member: int, end: int) -> Copied:
    return Copied(member, end, end * 100)


def begun(own: int, replicas: tuple[int, ...], members: Members | None = None) -> Recovery:
    """A recovery that has fenced nobody yet, and has asked for it."""
    machine = Recovery(own, replicas, members or everybody())
    machine.step(Begin())
    machine.step(Begun(NUMBER))
    return machine


def seal(end: int, holders: tuple[int, ...], later: tuple[int, ...] = ()) -> list[Effect]:
    return [ProposeSeal(NUMBER, end, end * 100, holders, (*holders, *later))]


def gave_up(effects: list[Effect]) -> GiveUp:
    assert len(effects) == 1
    assert isinstance(effects[0], GiveUp)
    return effects[0]
